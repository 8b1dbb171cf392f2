from __future__ import annotations

import random

import pytest

from banyan.runtime.engine.scheduling.output_lengths import Growth, OutputLengths, peak


def test_before_anything_ended_all_is_expected() -> None:
    assert OutputLengths().left(128, 0) == 128
    assert OutputLengths().left(128, 100) == 28


def test_what_was_seen_is_expected_again() -> None:
    lengths = OutputLengths()
    for n in (10, 20, 30) * 20:
        lengths.note(128, n)
    assert lengths.left(128, 0) == 20
    assert lengths.left(128, 15) == pytest.approx(25 - 15, abs=5), "the mean of the longer ones"
    assert lengths.left(128, 90) == 19, "longer than all: half of what is left"
    assert lengths.left(8, 0) == 8, "who asks for 8 tokens is of another kind"


def test_old_outputs_are_forgotten_by_and_by() -> None:
    lengths = OutputLengths()
    for _ in range(5000):
        lengths.note(1000, 10)
    for _ in range(5000):
        lengths.note(1000, 500)
    assert lengths.left(1000, 0) > 480


@pytest.mark.parametrize("n", [0, 1, 7, 100, 10**6])
def test_never_more_than_there_may_be_and_at_least_none(n: int) -> None:
    lengths = OutputLengths()
    for length in (0, 3, 10**6, 10**9):
        lengths.note(10**6, length)
    assert 0 <= lengths.left(10**6, n) <= 10**6 - n


def simulated(some: list[Growth], page: int) -> int:
    """The same by steps: the most pages that are claimed at once, beyond what is there now."""
    running, most, freed, t = list(some), 0, 0, 0
    while running:
        claimed = sum(max(0, -(-(t - g.n_room) // page)) for g in running)
        most = max(most, claimed - freed)
        freed += sum(g.n_own for g in running if g.n_left <= t)
        running = [g for g in running if g.n_left > t]
        t += 1
    return most


@pytest.mark.parametrize("seed", range(50))
def test_the_peak_is_that_of_the_steps_to_come(seed: int) -> None:
    chance = random.Random(seed)
    page = chance.choice([1, 4, 16])
    some = [
        Growth(chance.randrange(200), chance.randrange(page), chance.randrange(12)) for _ in range(chance.randrange(64))
    ]
    assert peak(some, page) == pytest.approx(simulated(some, page), abs=1 + len(some))


def test_a_prompt_that_has_no_pages_yet_is_part_of_the_peak() -> None:
    assert peak([Growth(0, -160, 0)], 16) == 10
    assert peak([], 16) == 0
