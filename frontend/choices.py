"""How a `select` scores its choices: the names and what they mean. The scoring itself happens on the server.

Each choice is scored by the log-probabilities of its tokens as the continuation of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from banyan.fstring import refuse
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.wire import ChoicesMethod

token_length_normalized: Final = "token_length_normalized"
"""The best mean log-probability per token. The default; it leans towards long choices whose tails are predictable."""

greedy_token_selection: Final = "greedy_token_selection"
"""Token by token, keep the choices whose next token is the likeliest; shorter ones go on with their own mean."""

unconditional_likelihood_normalized: Final = "unconditional_likelihood_normalized"
"""The best mean gain of the prompt over no prompt: takes back the advantage of choices that are likely anywhere."""


def checked_method(method: object) -> ChoicesMethod:
    """`method`, if it is one of the three; Unsupported if not (such as a scoring class of one's own)."""
    for known in get_args(ChoicesMethod):
        if method == known:
            return known  # type: ignore[no-any-return]  # get_args forgets the type
    raise Unsupported(f"choices_method={method!r}: choices are scored by one of {', '.join(get_args(ChoicesMethod))}")


def checked_choices(choices: Sequence[str] | None) -> tuple[str, ...]:
    """The choices as a tuple of distinct, non-empty strings; BadProgram says which one is not."""
    if choices is None or isinstance(choices, str) or not (found := tuple(choices)):
        raise BadProgram(f"choices must be a list of strings with at least one in it, not {choices!r}")
    for choice in found:
        if not isinstance(choice, str) or not choice:
            raise BadProgram(f"each choice must be a non-empty string, not {choice!r}")
        refuse(choice, "a choice is text, and an expression stands in this one")
    if len(set(found)) < len(found):
        twice = next(choice for choice in found if found.count(choice) > 1)
        raise BadProgram(f"the choice {twice!r} stands twice in the list; its two scores would be the same")
    return found
