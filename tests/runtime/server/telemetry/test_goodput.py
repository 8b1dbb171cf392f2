"""Goodput: the requests, tokens and programs that meet the service levels."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.runtime import config
from banyan.runtime.errors import BanyanError, ConfigError
from banyan.runtime.protocol import wire
from banyan.runtime.server.telemetry.observer import Goodput, Observer


def finished_request(ttft: float, itl: float, n: int = 5) -> Any:
    """Sent at 100 s, with n tokens; ttft and itl in seconds."""
    at = 100.0 + ttft if n else 0.0
    return SimpleNamespace(sent=100.0, first=at, ended=at + itl * (n - 1), ids=bytes(4 * n))


def test_service_levels_are_parsed_to_seconds() -> None:
    assert config.slo("ttft=500ms, itl=0.05,program=30s") == {"ttft": 0.5, "itl": 0.05, "program": 30.0}
    assert config.slo("") == {}


@pytest.mark.parametrize("text", ["ttft", "ttft=fast", "ttft=-1", "ttft=0", "rate=5", "ttft=1,ttft=2", "itl=5min"])
def test_invalid_service_level_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ttft=500ms,itl=50ms"):
        config.make(slo=text)


def test_good_request_meets_both_levels() -> None:
    goodput = Goodput("ttft=500ms,itl=50ms")
    for ttft, itl in ((0.4, 0.04), (0.6, 0.04), (0.4, 0.06), (0.6, 0.06), (0.5, 0.04)):
        goodput.request(finished_request(ttft, itl))
    goodput.request(finished_request(0.4, 0.0, n=1))  # one token has no inter-token latency
    goodput.request(finished_request(0.0, 0.0, n=0))  # as for a select
    assert goodput.counts | {} == {
        "requests": 6, "good_requests": 3, "tokens": 26, "good_tokens": 11, "programs": 0, "good_programs": 0
    }  # fmt: skip


def test_how_a_program_ends_is_reported_once(bench: Any) -> None:
    ends: list[Any] = []
    telemetry = SimpleNamespace(
        program_ended=lambda program, error: ends.append(error and error.code),
        generated=lambda program, op, outcome: None,
    )
    b = bench(telemetry=telemetry)
    ops = (wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=2)))
    for k in range(5):
        b.submit(*ops, program=k, last=k == 0)
    b.run()
    b.programs.cancel(b"me", wire.Cancel(1, 1))
    b.submit(*ops[1:], program=2)  # the same ref twice
    b.submit(wire.Append(0, (wire.Ref(9),)), program=3)
    b.programs.cancel(b"me", wire.Cancel(3, 2))
    b.submit(wire.Append(0, (wire.Ref(9),)), program=4)
    b.leave()
    assert ends == [None, None, "bad_program", "cancelled", "runtime_lost"]


def test_program_time_ends_at_its_last_gen() -> None:
    observer = Observer(config.make(slo="program=1s"), "m", contextlib.ExitStack())
    started = datetime.now() - timedelta(seconds=30)
    program: Any = SimpleNamespace(started=started, last=started + timedelta(seconds=0.5))
    observer.program_ended(program, None)  # it stayed open for 29.5 s after its last gen
    assert (observer.goodput.counts["programs"], observer.goodput.counts["good_programs"]) == (1, 1)
    observer.generated(program, wire.Gen(0, 0), BanyanError("m"))
    observer.program_ended(program, None)
    assert (observer.goodput.counts["programs"], observer.goodput.counts["good_programs"]) == (2, 1)


def test_program_time_does_not_jump_with_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that runs when daylight saving time begins does not seem to take an hour more."""
    observer = Observer(config.make(slo="program=10s"), "m", contextlib.ExitStack())
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        started, last = (datetime.fromtimestamp(1743296399 + seconds) for seconds in (0, 2))
        assert (started.hour, last.hour) == (1, 3)
        program: Any = SimpleNamespace(started=started, last=last)
        observer.program_ended(program, None)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert observer.goodput.counts["good_programs"] == 1


def test_levels_are_independent() -> None:
    ttft, itl, program = Goodput("ttft=1s"), Goodput("itl=1s"), Goodput("program=1s")
    for goodput in (ttft, itl, program):
        goodput.request(finished_request(0.5, 2.0))
        goodput.program(0.5)
        goodput.program(1.5)
    assert (ttft.counts["requests"], ttft.counts["good_requests"]) == (1, 1)
    assert (itl.counts["requests"], itl.counts["good_requests"]) == (1, 0)
    assert program.counts["requests"] == ttft.counts["programs"] == 0
    assert (program.counts["programs"], program.counts["good_programs"]) == (2, 1)
