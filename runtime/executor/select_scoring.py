"""Which choice wins: three readings of the log-probabilities of choices, and the draw among them.

The methods are SGLang's. Two of its traps are avoided: a log-probability of exactly 0.0 counts like any other, and the
tokens that are compared begin behind what all choices have in common, so that no choice is scored on the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from random import Random
from typing import NamedTuple

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol.wire import ChoicesMethod

Logprobs = Sequence[float]


class SelectDecision(NamedTuple):
    chosen: int
    """Its index."""
    normalized: tuple[float, ...]
    """Mean log-probability of each choice's tokens."""
    weights: tuple[float, ...]
    """The probability that each had in the draw."""


def score_from(prompts: Sequence[Sequence[int]]) -> int:
    """The index from which the choices' prompts are scored: behind their longest common prefix, but every choice has at
    least one token there. BadProgram if that leaves nothing before the first scored token."""
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False)))
    start = min(common, min(map(len, prompts)) - 1)
    if start < 1:
        raise BadProgram("a select cannot be the first thing in a state: put text before it")
    return start


def decide(
    method: ChoicesMethod,
    logprobs: Sequence[Logprobs],
    unconditional: Sequence[Logprobs] = (),
    temperature: float = 0.0,
    rng: Random | None = None,
) -> SelectDecision:
    """The choice that `method` takes, or that is drawn with `temperature` from softmax(score / temperature).

    unconditional: the same tokens' log-probabilities with no prompt, for the method that compares with them.
    BadProgram: greedy token selection gives no scores to draw from.
    """
    normalized = tuple(map(_mean, logprobs))
    match method:
        case "token_length_normalized":
            scores = normalized
        case "unconditional_likelihood_normalized":
            pairs = zip(logprobs, unconditional, strict=True)
            scores = tuple(_mean([a - b for a, b in zip(one, without, strict=True)]) for one, without in pairs)
        case "greedy_token_selection":
            if temperature > 0:
                raise BadProgram("greedy_token_selection has no scores to draw from; use temperature=0")
            return _sure(_greedy(logprobs, normalized), normalized)
    if temperature <= 0 or rng is None:
        return _sure(max(range(len(scores)), key=scores.__getitem__), normalized)
    top = max(scores)
    odds = [math.exp((score - top) / temperature) for score in scores]
    weights = tuple(x / sum(odds) for x in odds)
    return SelectDecision(rng.choices(range(len(scores)), weights)[0], normalized, weights)


def _sure(index: int, normalized: tuple[float, ...]) -> SelectDecision:
    return SelectDecision(index, normalized, tuple(float(k == index) for k in range(len(normalized))))


def _mean(values: Logprobs) -> float:
    return sum(values) / len(values)


def _greedy(logprobs: Sequence[Logprobs], normalized: Sequence[float]) -> int:
    """Token by token, keep the choices whose token is best there; a choice that has ended counts with its own mean.
    Ties at the end: the first."""
    left = list(range(len(logprobs)))
    for position in range(max(map(len, logprobs))):
        column = {k: logprobs[k][position] if position < len(logprobs[k]) else normalized[k] for k in left}
        best = max(column.values())
        left = [k for k in left if column[k] == best]
        if len(left) == 1:
            break
    return left[0]
