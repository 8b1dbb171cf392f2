"""What an overview of programs names, and what it only counts."""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from banyan.runtime.server.programs.overview import MAX_PROGRAMS, SLICE, Overview


def program(serial: int, is_running: bool) -> Any:
    state = SimpleNamespace(number=0, generation=None, children=[], queue=())
    return SimpleNamespace(
        serial=serial, name="x", started=datetime.now(), states={0: state}, running=[state] if is_running else [],
        ended_gens=deque(),
    )  # fmt: skip


def ask(programs: list[Any]) -> Any:
    steps = Overview().of(programs)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return msgspec.json.decode(msgspec.json.encode(end.value))


def test_programs_that_run_are_named_before_those_that_are_idle() -> None:
    n = SLICE + 100
    running = {3, 40, SLICE + 7}
    found = ask([program(serial, serial in running) for serial in range(n)])
    serials = [one["serial"] for one in found["running"]]
    assert serials[:5] == [SLICE + 7, 40, 3, n - 1, n - 2]
    assert len(serials) == MAX_PROGRAMS
    assert (found["n_running"], found["n_idle"]) == (3, n - 3)


def test_age_of_a_program_does_not_jump_with_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    began = 1743296399  # one second before daylight saving time began
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        monkeypatch.setattr(time, "time", lambda: began + 2)
        one = program(0, True)
        one.started = datetime.fromtimestamp(began)
        (found,) = ask([one])["running"]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found["seconds"] == 2.0
