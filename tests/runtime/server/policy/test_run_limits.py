"""Seconds and tokens that run out: what ends, what it says, and what goes on."""

from __future__ import annotations

from typing import Any

import pytest

from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Fork, Gen, ProgramLimits, Read, Select
from banyan.runtime.server.policy.run_limits import Timers


def start(b: Any, limits: ProgramLimits | None, *ops: wire.Op, program: int = 0) -> None:
    b.programs.submit(b"me", wire.Submit(program, 0, ops, False, "test", limits))


def later(b: Any, seconds: float) -> None:
    b.now += seconds
    b.timers.run()
    assert b.programs.check(b.requests) == ""


def test_timers() -> None:
    now, called = 0.0, []
    timers = Timers(lambda: now)
    assert timers.wait(5.0) == 5.0
    taken_back = timers.call(1.0, lambda: called.append("taken back"))
    timers.call(2.0, lambda: called.append("second"))
    timers.call(2.0, lambda: called.append("third"))
    timers.call(1.5, lambda: called.append("first") or timers.call(0.1, lambda: called.append("at once")))  # type: ignore[func-returns-value]
    taken_back.cancel()
    taken_back.cancel()
    now = 1.0
    timers.run()
    assert called == []
    assert timers.wait(5.0) == 0.5
    now = 3.0
    timers.run()
    assert called == ["first", "second", "third"] or called == ["first", "at once", "second", "third"]
    timers.run()
    now = 4.0
    timers.run()
    assert sorted(called) == ["at once", "first", "second", "third"]


def test_timers_that_are_taken_back_do_not_pile_up() -> None:
    timers = Timers(lambda: 0.0)
    for _ in range(10_000):
        timers.call(100.0, lambda: None).cancel()
    assert len(timers._heap) < 500


def test_the_time_of_a_run(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    start(b, ProgramLimits(timeout=5.0, left=4.0), Append(0, ("a",)), Gen(0, 0, greedy()))
    b.run()
    start(b, None, Append(0, ("long",)), Gen(0, 0, greedy()), program=1)
    b.programs.submit(b"me", wire.Submit(0, 1, (Gen(0, 1, greedy()), Gen(0, 2, greedy()))))
    b.run(2)
    later(b, 3.9)
    assert not b.messages(wire.Failed)
    later(b, 0.2)
    failed = b.failed(None)
    assert (failed.code, failed.message) == ("deadline_exceeded", "the run's timeout of 5 s ran out")
    assert b.text(0) == "b", "what was known stays known"
    assert b.engine.aborted == [2]
    b.run(100)
    assert b.value(0, program=1), "the other program went on"


@pytest.mark.parametrize("is_last", [True, False])
def test_a_run_that_is_done_in_time_is_left_alone(bench: Any, is_last: bool) -> None:
    b = bench()
    b.programs.submit(b"me", wire.Submit(0, 0, (Read(0, 0),), is_last, "test", ProgramLimits(timeout=1.0, left=1.0)))
    later(b, 2.0)
    assert not b.messages(wire.Failed)


def test_the_time_of_a_gen_begins_with_its_turn(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    gen = Gen(0, 1, greedy(), timeout=2.0)
    start(b, None, Append(0, ("slow",)), Gen(0, 0, greedy()), gen, Gen(0, 2, greedy()), Fork(0, (1,)))
    b.run(1)
    later(b, 10.0)
    assert not b.messages(wire.Failed), "it is not its turn yet"
    b.run(65)
    later(b, 1.9)
    assert not b.messages(wire.Failed)
    later(b, 0.2)
    assert (b.failed(1).code, b.failed(1).message) == ("deadline_exceeded", "the gen's timeout of 2 s ran out")
    assert b.failed(2).code == "deadline_exceeded"
    assert "before it" in b.failed(2).message
    start(b, None, Append(0, ("a",)), Gen(0, 0, greedy(), timeout=1.0), program=1)
    b.run()
    later(b, 5.0)
    assert b.text(0, program=1) == "b"


def test_the_time_of_a_select(bench: Any, greedy: Any) -> None:
    b = bench()
    select = Select(0, 0, ("yes", "no"), timeout=2.0)
    start(b, None, Append(0, ("the answer is",)), select, Gen(0, 1, greedy()))
    later(b, 1.9)
    assert not b.messages(wire.Failed)
    later(b, 0.2)
    assert (b.failed(0).code, b.failed(0).message) == ("deadline_exceeded", "the select's timeout of 2 s ran out")
    assert "before it" in b.failed(1).message
    assert not b.requests.living


def test_the_budget_of_a_run_is_shared_by_its_branches(bench: Any, greedy: Any) -> None:
    b = bench()
    limits = ProgramLimits(budget=20)
    start(b, limits, Append(0, ("x",)), Gen(0, 0, greedy(max_tokens=10)), Fork(0, (1, 2)), *(
        Gen(child, child, greedy(max_tokens=6)) for child in (1, 2)))  # fmt: skip
    b.run()
    failed = b.failed(None)
    assert (failed.code, failed.message) == ("budget_exceeded", "the run's budget of 20 tokens ran out")
    assert b.value(0).samples[0].n_tokens == 10
    assert len(b.requests) == 0


def test_a_budget_that_is_met_exactly_is_kept(bench: Any, greedy: Any) -> None:
    b = bench()
    start(
        b, ProgramLimits(budget=10), Append(0, ("x",)), Gen(0, 0, greedy(max_tokens=5)), Gen(0, 1, greedy(max_tokens=5))
    )
    b.run()
    assert not b.messages(wire.Failed)


@pytest.mark.parametrize("n", [1, 2])
def test_the_budget_of_a_gen(bench: Any, greedy: Any, n: int) -> None:
    b = bench()
    gen = Gen(0, 0, greedy(max_tokens=6, n=n), budget=8)
    start(b, None, Append(0, ("x",)), Fork(0, (1,)), gen, Gen(1, 1, greedy(max_tokens=30)))
    b.run()
    assert len(b.messages(wire.Failed)) == (n == 2)
    if n == 2:
        assert (b.failed(0).code, b.failed(0).message) == ("budget_exceeded", "the gen's budget of 8 tokens ran out")
    assert b.value(1), "other states go on"


def test_the_budget_of_a_batch_is_shared_by_its_programs(bench: Any, greedy: Any) -> None:
    b = bench()
    for i in range(3):
        start(b, ProgramLimits(batch=7, batch_budget=20), Append(0, ("x",)), Gen(0, 0, greedy(max_tokens=9)), program=i)
    start(b, ProgramLimits(batch=8, batch_budget=20), Append(0, ("x",)), Gen(0, 0, greedy(max_tokens=9)), program=3)
    b.run()
    assert {b.failed(None, program=i).message for i in range(3)} == {"the batch's budget of 20 tokens ran out"}
    assert b.value(0, program=3)
    start(b, ProgramLimits(batch=7, batch_budget=20), Append(0, ("x",)), Gen(0, 0, greedy(max_tokens=9)), program=4)
    later(b, 0.0)
    assert b.failed(None, program=4).code == "budget_exceeded", "what comes later finds nothing left"
    assert len(b.requests) == 0


def test_nothing_is_remembered_of_what_ended(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    limits = ProgramLimits(timeout=9.0, left=9.0, budget=100, batch=1, batch_budget=100)
    ops = (Append(0, ("a",)), Gen(0, 0, greedy(), timeout=3.0, budget=50))
    b.programs.submit(b"me", wire.Submit(0, 0, ops, True, "test", limits))
    start(b, limits, Append(0, ("long",)), Gen(0, 0, greedy(), timeout=3.0, budget=50), program=1)
    b.run(8)
    b.programs.forget(b"me")
    limiter = b.programs._limiter
    assert (limiter._programs, limiter._timeouts, limiter._gens) == ({}, {}, {})
    assert not limiter._batches[b"me", 1].programs
