from __future__ import annotations

import random

import pytest

from banyan.runtime.engine.scheduling.output_lengths import Growth, OutputLengths, peak
from forms import in_short


def test_full_length_is_expected_without_history() -> None:
    assert OutputLengths().left(128, 0) == 128
    assert OutputLengths().left(128, 100) == 28


def test_expected_length_is_the_mean_of_longer_outputs() -> None:
    lengths = OutputLengths()
    for n in (10, 20, 30) * 20:
        lengths.note(128, n)
    assert lengths.left(128, 0) == 20
    assert lengths.left(128, 15) == pytest.approx(25 - 15, abs=5), "the mean of the longer outputs"
    assert lengths.left(128, 90) == 19, "longer than all outputs: half of the remainder"
    assert lengths.left(8, 0) == 8, "a max_tokens of 8 has its own history"


def test_old_outputs_lose_weight() -> None:
    lengths = OutputLengths()
    for _ in range(5000):
        lengths.note(1000, 10)
    for _ in range(5000):
        lengths.note(1000, 500)
    assert lengths.left(1000, 0) > 480


@pytest.mark.parametrize("n", [0, 1, 7, 100, 10**6])
def test_expected_length_is_within_its_bounds(n: int) -> None:
    lengths = OutputLengths()
    for length in (0, 3, 10**6, 10**9):
        lengths.note(10**6, length)
    assert 0 <= lengths.left(10**6, n) <= 10**6 - n


def simulated(growths: list[Growth], page: int) -> int:
    """The peak computed step by step: the most additional pages claimed at once."""
    running, most, freed, t = list(growths), 0, 0, 0
    while running:
        claimed = sum(max(0, -(-(t - g.n_room) // page)) for g in running)
        most = max(most, claimed - freed)
        freed += sum(g.n_own for g in running if g.n_left <= t)
        running = [g for g in running if g.n_left > t]
        t += 1
    return most


@pytest.mark.parametrize("seed", in_short(range(10), range(50)))
def test_peak_matches_a_step_by_step_simulation(seed: int) -> None:
    rng = random.Random(seed)
    page = rng.choice([1, 4, 16])
    growths = [Growth(rng.randrange(200), rng.randrange(page), rng.randrange(12)) for _ in range(rng.randrange(64))]
    assert peak(growths, page) == pytest.approx(simulated(growths, page), abs=1 + len(growths))


@pytest.mark.parametrize("seed", in_short(range(10), range(50)))
def test_bound_is_compared_with_enough_pages_as_the_peak_is(seed: int) -> None:
    rng = random.Random(seed)
    page = rng.choice([1, 4, 16])
    growths = [Growth(rng.randrange(50), rng.randrange(-40, page), rng.randrange(4)) for _ in range(rng.randrange(16))]
    exact = peak(growths, page)
    for enough in range(2 * exact + 20):
        assert (peak(growths, page, enough) > enough) == (exact > enough)


def test_peak_includes_prompts_without_pages() -> None:
    assert peak([Growth(0, -160, 0)], 16) == 10
    assert peak([], 16) == 0
