from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from banyan.runtime.engine.scheduling.admission import FIRST_ROWS, PAUSES, AdmissionControl, StepTime
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.protocol.wire import Run


def request(program: int, n: int, state: int = 0, first: int = 7, **fields: Any) -> Request:
    """A request of `program` with a prompt of n tokens, of which the first 32 are `first`."""
    ids = [first] * 32 + [program] * (n - 32)
    return Request(
        Run(program, array("i", ids[:n]).tobytes(), order=(program, state, 0, 0), **fields), max_total=n + 100
    )


class Admission(AdmissionControl):
    """Admission control with pages of 16 slots."""

    def __init__(self) -> None:
        super().__init__(16)

    def play(self, program: int, n: int, n_cached: int = 0, at: float = 0.0, **fields: Any) -> Request:
        """A request that starts and finishes at the same time."""
        r = request(program, n, **fields)
        self.start(r, n_cached, at)
        r.n_cached = n_cached
        self.stop(r, at)
        return r


def test_pages_of_paused_older_programs_are_reserved() -> None:
    admission = Admission()
    for program in (1, 3, 5):
        admission.play(program, 200)
    assert admission.has_room(request(0, 500), 500, 500, 1.0), "no program is older"
    assert admission.has_room(request(2, 280), 280, 500, 1.0), "220 are reserved for the older program"
    assert not admission.has_room(request(2, 281), 281, 500, 1.0)
    assert not admission.has_room(request(5, 200), 61, 500, 1.0)
    assert admission.has_room(request(5, 200), 60, 500, 1.0)
    assert not admission.has_room(request(6, 100), 1, 659, 1.0)
    assert admission.has_room(request(6, 100, priority=1), 500, 500, 1.0), "a higher priority ignores reservations"
    admission.end_program(0, 1)
    assert admission.has_room(request(6, 100), 1, 500, 1.0)
    admission.end_program(0, 99)


def test_running_programs_reserve_nothing() -> None:
    admission = Admission()
    one = request(1, 400)
    admission.start(one, 0, 0.0)
    assert admission.has_room(request(2, 100), 100, 100, 1.0)
    admission.stop(one, 1.0)
    assert not admission.has_room(request(2, 100), 100, 100, 1.0)


def test_shared_prefix_is_reserved_once() -> None:
    admission = Admission()
    for program in (1, 2, 3):
        admission.play(program, 132, n_cached=32)
    assert admission.has_room(request(4, 100), 38, 400, 1.0), "3 x 110 + 32"
    assert not admission.has_room(request(4, 100), 39, 400, 1.0)
    runs = request(5, 132)
    admission.start(runs, 32, 1.0)
    assert admission.has_room(request(6, 100), 70, 400, 1.0), "a running request keeps the prefix cached"
    admission.play(0, 132, n_cached=32, first=8)
    assert not admission.has_room(request(6, 100), 1, 470, 1.0), "a different prefix is not shared"


def test_branches_reserve_only_their_own_tokens() -> None:
    admission = Admission()
    admission.play(0, 400)
    for state in range(1, 6):
        admission.play(0, 450, 400, state=state)
    for _ in range(3):
        admission.play(0, 460, 450, state=1)  # the same text, slightly longer
    assert admission.has_room(request(1, 100), 100, 826, 1.0), "400 + 4 x 50 + 60, plus a tenth"
    assert not admission.has_room(request(1, 100), 101, 826, 1.0)


def test_reservation_expires_after_a_multiple_of_the_usual_pause() -> None:
    admission = Admission()
    admission.play(0, 700, at=10.0)
    young = request(1, 300)
    assert not admission.has_room(young, 300, 900, 11.0)
    assert admission.has_room(young, 300, 900, 10.1 + PAUSES * 2.0)
    now = 10.0
    for _ in range(100):
        now += 30.0
        admission.play(0, 700, at=now)
    assert not admission.has_room(young, 300, 900, now + PAUSES * 25)
    assert admission.has_room(young, 300, 900, now + PAUSES * 35)


def test_program_that_ends_while_running_leaves_no_reservation() -> None:
    admission = Admission()
    r = request(0, 700)
    admission.start(r, 32, 0.0)
    admission.end_program(0, 0)
    admission.stop(r, 1.0)
    assert not admission._by_rank
    assert not admission._shared_now
    assert admission.has_room(request(1, 700), 700, 700, 2.0)


# ---- step time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fixed", "row"), [(10e-3, 0.06e-3), (2e-3, 0.25e-3), (1e-3, 1e-3)])
def test_step_time_is_fitted_to_measurements(fixed: float, row: float) -> None:
    rng, step_time, now = random.Random(0), StepTime(), 5.0
    assert step_time.free_rows == FIRST_ROWS
    assert step_time.seconds == (0.0, 0.0)
    for _ in range(300):
        n = rng.choice([1, 4, 16, 64, 512])
        step_time.note(now, n)
        now += (fixed + n * row) * rng.uniform(0.9, 1.1)
    assert step_time.free_rows == pytest.approx(fixed / row, rel=0.5)
    for n in (1, 512):
        assert step_time.seconds[0] + n * step_time.seconds[1] == pytest.approx(fixed + n * row, rel=0.25)


def test_idle_time_does_not_count_as_step_time() -> None:
    step_time, now = StepTime(), 0.0
    for k in range(200):
        n = 1 + k % 64
        step_time.note(now, n)
        now += 2e-3 + n * 0.25e-3
        step_time.note(now, 0)
        now += 100.0
    assert step_time.free_rows == pytest.approx(8.0, rel=0.25)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_uninformative_clock_keeps_the_default(seconds: float) -> None:
    step_time = StepTime()
    for k in range(100):
        step_time.note(k * seconds, 8)
    assert step_time.free_rows == pytest.approx(FIRST_ROWS)
