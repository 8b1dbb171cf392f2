from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from banyan.runtime.engine.scheduling.admission import FIRST_ROWS, PAUSES, AdmissionControl, StepTime
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.protocol.wire import Run


def request(program: int, n: int, state: int = 0, first: int = 7, **fields: Any) -> Request:
    """A request of `program` with a prompt of n tokens, the first 32 of which are its kind's."""
    ids = [first] * 32 + [program] * (n - 32)
    return Request(
        Run(program, array("i", ids[:n]).tobytes(), order=(program, state, 0, 0), **fields), max_total=n + 100
    )


class Begun(AdmissionControl):
    """Of pages of 16 slots."""

    def __init__(self) -> None:
        super().__init__(16)

    def play(self, program: int, n: int, n_cached: int = 0, at: float = 0.0, **fields: Any) -> Request:
        """A request that is run, and ends in the same moment."""
        r = request(program, n, **fields)
        self.start(r, n_cached, at)
        r.n_cached = n_cached
        self.stop(r, at)
        return r


def test_the_texts_of_older_programs_that_pause_are_left_alone() -> None:
    begun = Begun()
    for program in (1, 3, 5):
        begun.play(program, 200)
    assert begun.has_room(request(0, 500), 500, 500, 1.0), "none is older"
    assert begun.has_room(request(2, 280), 280, 500, 1.0), "220 are the older one's, to come"
    assert not begun.has_room(request(2, 281), 281, 500, 1.0)
    assert not begun.has_room(request(5, 200), 61, 500, 1.0)
    assert begun.has_room(request(5, 200), 60, 500, 1.0)
    assert not begun.has_room(request(6, 100), 1, 659, 1.0)
    assert begun.has_room(request(6, 100, priority=1), 500, 500, 1.0), "before them all"
    begun.end_program(0, 1)
    assert begun.has_room(request(6, 100), 1, 500, 1.0)
    begun.end_program(0, 99)


def test_those_that_run_hold_their_pages_themselves() -> None:
    begun = Begun()
    one = request(1, 400)
    begun.start(one, 0, 0.0)
    assert begun.has_room(request(2, 100), 100, 100, 1.0)
    begun.stop(one, 1.0)
    assert not begun.has_room(request(2, 100), 100, 100, 1.0)


def test_what_several_have_in_common_counts_once() -> None:
    begun = Begun()
    for program in (1, 2, 3):
        begun.play(program, 132, n_cached=32)
    assert begun.has_room(request(4, 100), 38, 400, 1.0), "3 x 110 + 32"
    assert not begun.has_room(request(4, 100), 39, 400, 1.0)
    runs = request(5, 132)
    begun.start(runs, 32, 1.0)
    assert begun.has_room(request(6, 100), 70, 400, 1.0), "one that runs keeps it in the tree"
    begun.play(0, 132, n_cached=32, first=8)
    assert not begun.has_room(request(6, 100), 1, 470, 1.0), "another beginning is not shared with them"


def test_branches_count_with_what_is_their_own() -> None:
    begun = Begun()
    begun.play(0, 400)
    for state in range(1, 6):
        begun.play(0, 450, 400, state=state)
    for _ in range(3):
        begun.play(0, 460, 450, state=1)  # the same text, a little longer
    assert begun.has_room(request(1, 100), 100, 826, 1.0), "400 + 4 x 50 + 60, and a tenth"
    assert not begun.has_room(request(1, 100), 101, 826, 1.0)


def test_who_pauses_for_long_counts_as_gone_and_pauses_are_learned() -> None:
    begun = Begun()
    begun.play(0, 700, at=10.0)
    young = request(1, 300)
    assert not begun.has_room(young, 300, 900, 11.0)
    assert begun.has_room(young, 300, 900, 10.1 + PAUSES * 2.0)
    now = 10.0
    for _ in range(100):
        now += 30.0
        begun.play(0, 700, at=now)
    assert not begun.has_room(young, 300, 900, now + PAUSES * 25)
    assert begun.has_room(young, 300, 900, now + PAUSES * 35)


def test_what_is_over_while_it_runs_leaves_nothing() -> None:
    begun = Begun()
    r = request(0, 700)
    begun.start(r, 32, 0.0)
    begun.end_program(0, 0)
    begun.stop(r, 1.0)
    assert len(begun) == 0
    assert not begun._shared_now
    assert begun.has_room(request(1, 700), 700, 700, 2.0)


# ---- pace ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fixed", "row"), [(10e-3, 0.06e-3), (2e-3, 0.25e-3), (1e-3, 1e-3)])
def test_the_cost_of_a_step_is_learned_from_times(fixed: float, row: float) -> None:
    chance, pace, now = random.Random(0), StepTime(), 5.0
    assert pace.free_rows == FIRST_ROWS
    for _ in range(300):
        n = chance.choice([1, 4, 16, 64, 512])
        pace.note(now, n)
        now += (fixed + n * row) * chance.uniform(0.9, 1.1)
    assert pace.free_rows == pytest.approx(fixed / row, rel=0.5)


def test_time_without_a_step_is_none_of_it() -> None:
    pace, now = StepTime(), 0.0
    for k in range(200):
        n = 1 + k % 64
        pace.note(now, n)
        now += 2e-3 + n * 0.25e-3
        pace.note(now, 0)
        now += 100.0
    assert pace.free_rows == pytest.approx(8.0, rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_clock_that_tells_nothing_is_borne(seconds: float) -> None:
    pace = StepTime()
    for k in range(100):
        pace.note(k * seconds, 8)
    assert pace.free_rows == FIRST_ROWS
