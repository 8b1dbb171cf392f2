"""The calls that the server's loop makes at a later time."""

from __future__ import annotations

import pytest

from banyan.runtime.server.timers import Timers


def test_timers_run_in_order() -> None:
    now, calls = 0.0, []
    timers = Timers(lambda: now)
    assert timers.wait(5.0) == 5.0
    cancelled = timers.call(1.0, lambda: calls.append("cancelled"))
    timers.call(2.0, lambda: calls.append("second"))
    timers.call(2.0, lambda: calls.append("third"))
    timers.call(1.5, lambda: calls.append("first") or timers.call(0.1, lambda: calls.append("at once")))  # type: ignore[func-returns-value]
    cancelled.cancel()
    cancelled.cancel()
    now = 1.0
    timers.run()
    assert calls == []
    assert timers.wait(5.0) == 0.5
    now = 3.0
    timers.run()
    assert calls == ["first", "second", "third"] or calls == ["first", "at once", "second", "third"]
    timers.run()
    now = 4.0
    timers.run()
    assert sorted(calls) == ["at once", "first", "second", "third"]


def test_cancelled_timers_are_removed() -> None:
    timers = Timers(lambda: 0.0)
    for _ in range(10_000):
        timers.call(100.0, lambda: None).cancel()
        timers.run()
    assert len(timers._heap) < 500


def test_raising_timer_does_not_stop_other_timers(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    timers, calls = Timers(lambda: 0.0), list[int]()
    timers.call(0.0, fail)
    timers.call(0.0, lambda: calls.append(1))
    timers.run()
    assert calls == [1]
    assert "RuntimeError: a bug" in capsys.readouterr().err
