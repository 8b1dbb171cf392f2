"""Goodput: what kept to the service levels, of what is judged by them."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.runtime import config
from banyan.runtime.errors import BanyanError, ConfigError
from banyan.runtime.protocol import wire
from banyan.runtime.server.telemetry.goodput import Goodput
from banyan.runtime.server.telemetry.observer import Observer


def request(first: float, gap: float, n: int = 5) -> Any:
    """Sent at 100; so long to its first token, and between two."""
    at = 100.0 + first if n else 0.0
    return SimpleNamespace(sent=100.0, first=at, ended=at + gap * (n - 1), ids=bytes(4 * n))


def test_levels_are_read_in_seconds() -> None:
    assert config.slo("ttft=500ms, itl=0.05,program=30s") == {"ttft": 0.5, "itl": 0.05, "program": 30.0}
    assert config.slo("") == {}


@pytest.mark.parametrize("text", ["ttft", "ttft=fast", "ttft=-1", "ttft=0", "rate=5", "ttft=1,ttft=2", "itl=5min"])
def test_what_is_no_level_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ttft=500ms,itl=50ms"):
        config.make(slo=text)


def test_a_request_is_good_that_keeps_to_both() -> None:
    goodput = Goodput("ttft=500ms,itl=50ms")
    for first, gap in ((0.4, 0.04), (0.6, 0.04), (0.4, 0.06), (0.6, 0.06), (0.5, 0.04)):
        goodput.request(request(first, gap))
    goodput.request(request(0.4, 0.0, n=1))  # nothing between its tokens
    goodput.request(request(0.0, 0.0, n=0))  # a select's
    assert goodput.counts | {} == {
        "requests": 6, "good_requests": 3, "tokens": 26, "good_tokens": 11, "programs": 0, "good_programs": 0
    }  # fmt: skip


def test_a_program_that_is_left_when_all_is_done_has_ended_well(bench: Any) -> None:
    over: list[Any] = []
    telemetry = SimpleNamespace(
        program_ended=lambda program, error: over.append(error and error.code),
        generated=lambda program, op, outcome: None,
    )
    b = bench(telemetry=telemetry)
    ops = (wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=2)))
    for k in range(5):
        b.submit(*ops, program=k, last=k == 0)
    b.run()
    b.programs.cancel(b"me", wire.Cancel(1, 1))
    b.submit(*ops[1:], program=2)  # the same value twice
    b.submit(wire.Append(0, (wire.Ref(9),)), program=3)
    b.programs.cancel(b"me", wire.Cancel(3, 2))
    b.submit(wire.Append(0, (wire.Ref(9),)), program=4)
    b.programs.forget(b"me")
    assert over == [None, None, "bad_program", "cancelled", "runtime_lost"]


def test_how_long_a_program_takes_is_up_to_its_last_gen() -> None:
    observed = Observer(config.make(slo="program=1s"), "m", contextlib.ExitStack())
    started = datetime.now() - timedelta(seconds=30)
    program: Any = SimpleNamespace(started=started, last=started + timedelta(seconds=0.5))
    observed.program_ended(program, None)  # it was held for half a minute after that
    assert (observed.goodput.counts["programs"], observed.goodput.counts["good_programs"]) == (1, 1)
    observed.generated(program, wire.Gen(0, 0), BanyanError("m"))
    observed.program_ended(program, None)
    assert (observed.goodput.counts["programs"], observed.goodput.counts["good_programs"]) == (2, 1)


def test_each_level_stands_alone() -> None:
    first, gap, program = Goodput("ttft=1s"), Goodput("itl=1s"), Goodput("program=1s")
    for one in (first, gap, program):
        one.request(request(0.5, 2.0))
        one.program(0.5)
        one.program(1.5)
    assert (first.counts["requests"], first.counts["good_requests"]) == (1, 1)
    assert (gap.counts["requests"], gap.counts["good_requests"]) == (1, 0)
    assert program.counts["requests"] == first.counts["programs"] == 0
    assert (program.counts["programs"], program.counts["good_programs"]) == (2, 1)
