from __future__ import annotations

import time
from collections import Counter
from random import Random

import pytest

from banyan.runtime.errors import BadProgram
from banyan.runtime.executor.select_scoring import decide, score_from
from banyan.runtime.server.text.prompt import pack


@pytest.mark.parametrize(
    ("prompt", "continued", "start"),
    [
        ([1, 2], [[1, 2, 3], [1, 2, 4, 5]], 2),
        ([1, 2], [[1, 2, 3, 4], [1, 2, 3, 5]], 2),  # the choices begin with the same token
        ([1, 2], [[1, 2, 3, 4, 5]], 2),
        ([1, 2, 3], [[1, 2, 4], [1, 2, 5, 6]], 2),  # the end of the prompt merges with the choices
        ([1, 2], [[1, 2], [1, 2, 4]], 1),  # an empty choice
        ([1, 258], [[1, 514, 3], [1, 514, 4]], 1),  # the ids begin with the same byte
    ],
)
def test_scoring_starts_where_the_prompt_ends(prompt: list[int], continued: list[list[int]], start: int) -> None:
    assert score_from(pack(prompt), [pack(ids) for ids in continued]) == start


def test_select_without_a_prefix_raises() -> None:
    with pytest.raises(BadProgram, match="a select needs a token before its choices"):
        score_from(b"", [pack([1]), pack([2, 3])])
    with pytest.raises(BadProgram):
        score_from(pack([7]), [pack([7]), pack([7, 1])])


def test_time_of_a_draw_is_linear_in_the_choices() -> None:
    logprobs = [[-1.0]] * 20_000
    start = time.thread_time()
    decide("token_length_normalized", logprobs, temperature=1.0, rng=Random(0))
    assert time.thread_time() - start < 1, "20 s if each weight is divided by a new sum"


def test_choice_has_the_highest_mean_over_tokens() -> None:
    choice = decide("token_length_normalized", [[-1.0, -1.0], [-0.5, -2.0]])
    assert choice == (0, (-1.0, -1.25), (1.0, 0.0))


@pytest.mark.parametrize(
    ("logprobs", "chosen"),
    [
        ([[0.0, -3.0], [-2.0, -2.0]], 0),  # without the zero, the mean of the first choice would be -3.0
        ([[-1.0], [0.0, 0.0]], 1),
        ([[-0.5, -5.0], [-0.5, -1.0, -9.0], [-0.6, 0.0]], 2),
    ],
)
def test_mean_includes_every_token(logprobs: list[list[float]], chosen: int) -> None:
    assert decide("token_length_normalized", logprobs).chosen == chosen


@pytest.mark.parametrize(
    ("logprobs", "chosen"),
    [
        ([[-0.5, -5.0], [-0.5, -1.0, -9.0], [-0.6, 0.0]], 1),
        ([[-0.5], [-0.5, -0.4]], 1),  # behind its end, a choice counts with its mean
        ([[-0.5], [-0.5, -0.6]], 0),
        ([[-0.5], [-0.5]], 0),
    ],
)
def test_greedy_compares_token_by_token(logprobs: list[list[float]], chosen: int) -> None:
    assert decide("greedy_token_selection", logprobs).chosen == chosen


def test_unconditional_method_subtracts_the_unconditional_likelihood() -> None:
    logprobs = [[-1.0], [-2.0]]
    assert decide("unconditional_likelihood_normalized", logprobs, [[-1.0], [-5.0]]).chosen == 1
    assert decide("unconditional_likelihood_normalized", logprobs, [[-5.0], [-2.0]]).chosen == 0


def test_temperature_samples_from_the_softmax() -> None:
    rng = Random(1)
    counts = Counter(decide("token_length_normalized", [[-1.0], [-2.0]], (), 1.0, rng).chosen for _ in range(4000))
    assert counts[0] / 4000 == pytest.approx(0.7311, abs=0.03)
    weights = decide("token_length_normalized", [[-1.0], [-2.0]], (), 1.0, rng).weights
    assert weights == pytest.approx((0.7311, 0.2689), abs=1e-3)


def test_small_temperature_does_not_overflow() -> None:
    assert decide("token_length_normalized", [[-500.0], [-2.0]], (), 1e-6, Random(0)).chosen == 1


def test_greedy_with_a_temperature_raises() -> None:
    with pytest.raises(BadProgram, match="temperature=0"):
        decide("greedy_token_selection", [[-1.0], [-2.0]], (), 0.5, Random(0))
