"""Selects one of several choices by their log-probabilities, with one of SGLang's three methods.

As in SGLang, all tokens of a choice count, also those with which all choices begin. Unlike there, a log-probability of
exactly 0.0 counts like any other, and no choice is scored on a token of the prompt, unless it merges with the choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from os.path import commonprefix
from random import Random
from typing import NamedTuple

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire

Logprobs = Sequence[float]


class SelectDecision(NamedTuple):
    """The result of a select. chosen: the index of the choice. normalized: the mean log-probability of each choice's
    tokens. weights: the probability that each choice had in the draw."""

    chosen: int
    normalized: tuple[float, ...]
    weights: tuple[float, ...]


def score_from(prompt: bytes, continued: Sequence[bytes]) -> int:
    """The token index from which the choices are scored. prompt: its int32 ids. continued: for each choice, the ids of
    the prompt with the choice appended. The index is where the prompt ends or, if tokens of it merge with a choice,
    before these tokens; it leaves each choice at least one token. BadProgram: the index would be 0."""
    n_common = len(commonprefix((prompt, *continued)))  # noqa: RUF071 (they are no paths)
    start = min(n_common, min(map(len, continued)) - 4) // 4
    if start < 1:
        raise BadProgram(
            "a select needs a token before its choices: there is no text before it, or all of that text is part of the "
            "first token of a choice; put more text, such as a line break, before it"
        )
    return start


def decide(
    method: wire.ChoicesMethod,
    logprobs: Sequence[Logprobs],
    unconditional: Sequence[Logprobs] = (),
    temperature: float = 0.0,
    rng: Random | None = None,
) -> SelectDecision:
    """Take the choice with the highest score. With temperature > 0 and an `rng`, draw one from softmax(score /
    temperature).

    The score is the mean log-probability of a choice's tokens. With unconditional_likelihood_normalized, it is the mean
    of logprob - unconditional logprob. greedy_token_selection has no scores: it compares the choices token by token.

    logprobs: for each choice, the log-probabilities of its tokens. unconditional: the same without the prompt, only for
    unconditional_likelihood_normalized. Raises BadProgram for greedy_token_selection with temperature > 0.
    """
    normalized = scores = tuple(map(_mean, logprobs))
    if method == "greedy_token_selection":
        if temperature > 0:
            raise BadProgram("greedy_token_selection gives no scores from which to draw; use temperature=0")
        best = _greedy(logprobs, normalized)
        scores = tuple(float(k == best) for k in range(len(normalized)))
    elif method == "unconditional_likelihood_normalized":
        pairs = zip(logprobs, unconditional, strict=True)
        scores = tuple(_mean([a - b for a, b in zip(one, without, strict=True)]) for one, without in pairs)
    top = max(scores)
    if temperature <= 0 or rng is None:
        chosen = scores.index(top)
        return SelectDecision(chosen, normalized, tuple(float(k == chosen) for k in range(len(scores))))
    odds = [math.exp((score - top) / temperature) for score in scores]
    total = sum(odds)
    weights = tuple(x / total for x in odds)
    return SelectDecision(rng.choices(range(len(scores)), weights)[0], normalized, weights)


def with_tokens(
    decision: SelectDecision,
    logprobs: Sequence[Logprobs],
    unconditional: Sequence[Logprobs] = (),
    ids: Sequence[Sequence[int]] | None = None,
) -> wire.Scores:
    """The scores of all choices for the client: those of `decision`, and the logprob and id of each token. ids: the
    token ids of each choice; None: unknown, so each id is -1."""
    known = [[-1] * len(one) for one in logprobs] if ids is None else ids
    conditional, alone = (
        tuple(tuple(zip(one, tokens, strict=True)) for one, tokens in zip(each, known, strict=False))
        for each in (logprobs, unconditional)
    )
    return wire.Scores(decision.normalized, conditional, decision.weights, alone)


def _mean(values: Logprobs) -> float:
    return sum(values) / len(values)


def _greedy(logprobs: Sequence[Logprobs], normalized: Sequence[float]) -> int:
    """The index of the choice that wins the comparison token by token. At each position, only the choices with the
    highest logprob remain. A choice that has no token at the position is compared by its mean logprob. Of equal
    choices, the first wins."""
    left = list(range(len(logprobs)))
    for position in range(max(map(len, logprobs))):
        column = {k: logprobs[k][position] if position < len(logprobs[k]) else normalized[k] for k in left}
        best = max(column.values())
        left = [k for k in left if column[k] == best]
        if len(left) == 1:
            break
    return left[0]
