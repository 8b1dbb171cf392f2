"""How a `select` scores its choices: the names and what they mean. The scoring itself happens on the server.

Each choice is scored by the log-probabilities of its tokens as the continuation of the prompt. A method of one's own
decides by them in the user's process, while the state waits on the server; its body goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from banyan.lang.fstring import refuse
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol.wire import ChoicesMethod

token_length_normalized: Final = "token_length_normalized"
"""The best mean log-probability per token. The default; it leans towards long choices whose tails are predictable."""

greedy_token_selection: Final = "greedy_token_selection"
"""Token by token, keep the choices whose next token is the likeliest; shorter ones go on with their own mean."""

unconditional_likelihood_normalized: Final = "unconditional_likelihood_normalized"
"""The best mean gain of the prompt over no prompt: takes back the advantage of choices that are likely anywhere."""


@dataclass
class ChoicesDecision:
    """What a method of one's own decides. meta_info: joins what `s.get_meta_info(name)` tells of the select."""

    decision: str
    meta_info: dict[str, Any] | None = None


class ChoicesSamplingMethod(ABC):
    """A way of one's own to decide a select: `bn.select("x", choices, choices_method=Mine())`.

    It is called once for each select, on a thread of its own, with keywords; the lists have one item a choice. What it
    raises, and a decision that is no choice, fails the program.
    """

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether it wants to know what the choices score without the prompt."""
        return False

    @abstractmethod
    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Any]],
        output_token_logprobs: list[list[Any]],
        unconditional_token_logprobs: list[list[Any]] | None = None,
    ) -> ChoicesDecision:
        """Decide.

        normalized_prompt_logprobs: mean log-probability of a choice's tokens, in nats. input_token_logprobs: its tokens
        as (log-probability, id, None). output_token_logprobs: empty lists. unconditional_token_logprobs: the same
        tokens without the prompt, where they are required.
        """


Method = ChoicesMethod | Callable[..., Any]
"""One of the three, or a method of one's own."""


def checked_method(method: object) -> tuple[ChoicesMethod, Callable[..., Any] | None]:
    """How the server scores, and who decides in its place, if somebody does. Unsupported: neither of both."""
    for known in get_args(ChoicesMethod):
        if method == known:
            return known, None
    if not callable(method) or isinstance(method, type):
        own = f"an instance, {method.__name__}()" if isinstance(method, type) else "a ChoicesSamplingMethod of your own"
        raise Unsupported(
            f"choices_method={method!r}: choices are scored by one of {', '.join(get_args(ChoicesMethod))}, or by {own}"
        )
    if getattr(method, "requires_unconditional_logprobs", False):
        return unconditional_likelihood_normalized, method
    return token_length_normalized, method


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
