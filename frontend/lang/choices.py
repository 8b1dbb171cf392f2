"""How a `select` scores its choices. The server computes the log-probability of each token of each choice after the
prompt, and one of three methods computes a score per choice from them.

If the method is a user's own, it runs in the client process. Meanwhile the state waits on the server, and the body
continues.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from banyan.lang.fstring import check_unicode, refuse, shown
from banyan.lang.output_types import refuse_type
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol.wire import ChoicesMethod

token_length_normalized: Final = "token_length_normalized"
"""Score: the mean log-probability per token. The default. It favours long choices whose last tokens are predictable."""

greedy_token_selection: Final = "greedy_token_selection"
"""Compares the choices token by token, and keeps those with the likeliest next token. For a choice that has no tokens
left, its mean log-probability is compared."""

unconditional_likelihood_normalized: Final = "unconditional_likelihood_normalized"
"""Score: the mean, over a choice's tokens, of the log-probability with the prompt minus that without the prompt. So
this method does not favour texts that are common anyway."""


@dataclass
class ChoicesDecision:
    """What a user's ChoicesSamplingMethod returns for a select. decision: one of the choices. meta_info: entries to add
    to the meta info of the select."""

    decision: str
    meta_info: dict[str, Any] | None = None


class ChoicesSamplingMethod(ABC):
    """Base of a user's own method to decide a select: `bn.select("x", choices, choices_method=Mine())`.

    The method is called on a thread, with keyword arguments. If it does not return a choice, the program fails.
    """

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether the method needs the log-probabilities of the choices without the prompt."""
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
        """Decide the select. Each list has one item per choice.

        normalized_prompt_logprobs: the mean log-probability of the choice's tokens. input_token_logprobs: its tokens,
        as (log-probability, id, None). unconditional_token_logprobs: the same without the prompt, if required; else
        None. output_token_logprobs: empty lists.
        """


Method = ChoicesMethod | Callable[..., Any]
"""One of the three names above, or a user's own method."""


def checked_method(method: object) -> tuple[ChoicesMethod, Callable[..., Any] | None]:
    """Returns (the method by which the server scores, the user's own method or None). Unsupported: `method` is
    neither a known name nor a user's own method."""
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
    """The choices as a tuple. BadProgram: there are none, or one is empty or not a string."""
    if isinstance(choices, str) or not isinstance(choices, Iterable) or not (found := tuple(choices)):
        refuse_type("choices", choices)
        raise BadProgram(f"choices must be a list of strings with at least one in it, not {shown(choices)}")
    for choice in found:
        if not isinstance(choice, str) or not choice:
            refuse_type("choices", choices)
            raise BadProgram(f"each choice must be a non-empty string, not {shown(choice, 80)}")
        check_unicode(choice)
        refuse(choice, "a choice must be plain text, but this one contains an expression")
    return found
