"""Timeouts and budgets of runs, gens, selects and batches."""

from __future__ import annotations

from typing import Any

import pytest

from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Fork, Gen, ProgramLimits, Read, Select


def submit(b: Any, limits: ProgramLimits | None, *ops: wire.Op, program: int = 0) -> None:
    b.send(wire.Submit(program, 0, ops, False, "test", limits))


def advance(b: Any, seconds: float) -> None:
    b.now += seconds
    b.timers.run()
    assert b.programs.check() == ""


def test_run_timeout_fails_only_its_program(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    submit(b, ProgramLimits(timeout=5.0, left=4.0), Append(0, ("a",)), Gen(0, 0, greedy()))
    b.run()
    submit(b, None, Append(0, ("long",)), Gen(0, 0, greedy()), program=1)
    b.send(wire.Submit(0, 1, (Gen(0, 1, greedy()), Gen(0, 2, greedy()))))
    b.run(2)
    advance(b, 3.9)
    assert not b.messages(wire.Failed)
    advance(b, 0.2)
    failed = b.failed(None)
    assert (failed.code, failed.message) == ("deadline_exceeded", "the run's timeout of 5 s ran out")
    assert b.text(0) == "b", "earlier values remain"
    assert b.engine.aborted == [2]
    b.run(100)
    assert b.value(0, program=1), "the other program continues"


@pytest.mark.parametrize("is_last", [True, False])
def test_run_without_open_work_does_not_time_out(bench: Any, is_last: bool) -> None:
    b = bench()
    b.send(wire.Submit(0, 0, (Read(0, 0),), is_last, "test", ProgramLimits(timeout=1.0, left=1.0)))
    advance(b, 2.0)
    assert not b.messages(wire.Failed)


def test_gen_timeout_starts_when_the_gen_is_ready(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    gen = Gen(0, 1, greedy(), timeout=2.0)
    submit(b, None, Append(0, ("slow",)), Gen(0, 0, greedy()), gen, Gen(0, 2, greedy()), Fork(0, (1,)))
    b.run(1)
    advance(b, 10.0)
    assert not b.messages(wire.Failed), "the gen is not ready yet"
    b.run(65)
    advance(b, 1.9)
    assert not b.messages(wire.Failed)
    advance(b, 0.2)
    assert (b.failed(1).code, b.failed(1).message) == ("deadline_exceeded", "the gen's timeout of 2 s ran out")
    assert b.failed(2).code == "deadline_exceeded"
    assert "an earlier op of the same state failed" in b.failed(2).message
    submit(b, None, Append(0, ("a",)), Gen(0, 0, greedy(), timeout=1.0), program=1)
    b.run()
    advance(b, 5.0)
    assert b.text(0, program=1) == "b"


def test_select_timeout_fails_the_select(bench: Any, greedy: Any) -> None:
    b = bench()
    select = Select(0, 0, ("yes", "no"), timeout=2.0)
    submit(b, None, Append(0, ("the answer is",)), select, Gen(0, 1, greedy()))
    advance(b, 1.9)
    assert not b.messages(wire.Failed)
    advance(b, 0.2)
    assert (b.failed(0).code, b.failed(0).message) == ("deadline_exceeded", "the select's timeout of 2 s ran out")
    assert "an earlier op of the same state failed" in b.failed(1).message
    assert not b.requests.living


def test_run_budget_is_shared_by_its_branches(bench: Any, greedy: Any) -> None:
    b = bench()
    limits = ProgramLimits(budgets=(wire.TokenLimit(20),))
    submit(b, limits, Append(0, ("x",)), Gen(0, 0, greedy(max_tokens=10)), Fork(0, (1, 2)), *(
        Gen(child, child, greedy(max_tokens=6)) for child in (1, 2)))  # fmt: skip
    b.run()
    failed = b.failed(None)
    assert (failed.code, failed.message) == ("budget_exceeded", "the run's budget of 20 tokens ran out")
    assert b.value(0).samples[0].n_tokens == 10
    assert len(b.requests) == 0


def test_exactly_used_budget_is_not_exceeded(bench: Any, greedy: Any) -> None:
    b = bench()
    submit(
        b,
        ProgramLimits(budgets=(wire.TokenLimit(10),)),
        Append(0, ("x",)),
        Gen(0, 0, greedy(max_tokens=5)),
        Gen(0, 1, greedy(max_tokens=5)),
    )
    b.run()
    assert not b.messages(wire.Failed)


@pytest.mark.parametrize("n", [1, 2])
def test_gen_budget_is_shared_by_its_samples(bench: Any, greedy: Any, n: int) -> None:
    b = bench()
    gen = Gen(0, 0, greedy(max_tokens=6, n=n), budget=8)
    submit(b, None, Append(0, ("x",)), Fork(0, (1,)), gen, Gen(1, 1, greedy(max_tokens=30)))
    b.run()
    assert len(b.messages(wire.Failed)) == (n == 2)
    if n == 2:
        assert (b.failed(0).code, b.failed(0).message) == ("budget_exceeded", "the gen's budget of 8 tokens ran out")
    assert b.value(1), "other states continue"


@pytest.mark.parametrize("of", ["batch", "run"])
def test_a_budget_is_shared_by_the_programs_that_have_its_number(bench: Any, greedy: Any, of: Any) -> None:
    b = bench()
    shared, other = (ProgramLimits(budgets=(wire.TokenLimit(20, number, of),)) for number in (7, 8))
    ops = Append(0, ("x",)), Gen(0, 0, greedy(max_tokens=9))
    for i in range(3):
        submit(b, shared, *ops, program=i)
    submit(b, other, *ops, program=3)
    b.run()
    assert {b.failed(None, program=i).message for i in range(3)} == {f"the {of}'s budget of 20 tokens ran out"}
    assert b.value(0, program=3)
    submit(b, shared, *ops, program=4)
    advance(b, 0.0)
    assert b.failed(None, program=4).code == "budget_exceeded", "the budget is spent"
    assert len(b.requests) == 0


def test_a_program_spends_all_its_budgets(bench: Any, greedy: Any) -> None:
    b = bench()
    batch, run = wire.TokenLimit(12, 1, "batch"), wire.TokenLimit(100, 2, "run")
    ops = Append(0, ("x",)), Gen(0, 0, greedy(max_tokens=9))
    submit(b, ProgramLimits(budgets=(batch, run)), *ops)
    b.run()
    assert b.value(0).samples[0].n_tokens == 9
    submit(b, ProgramLimits(budgets=(batch,)), *ops, program=1)
    b.run()
    assert b.failed(None, program=1).message == "the batch's budget of 12 tokens ran out"


def test_limits_of_ended_programs_are_removed(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    limits = ProgramLimits(timeout=9.0, left=9.0, budgets=(wire.TokenLimit(100), wire.TokenLimit(100, 1, "batch")))
    ops = (Append(0, ("a",)), Gen(0, 0, greedy(), timeout=3.0, budget=50))
    b.send(wire.Submit(0, 0, ops, True, "test", limits))
    submit(b, limits, Append(0, ("long",)), Gen(0, 0, greedy(), timeout=3.0, budget=50), program=1)
    b.run(8)
    b.leave()
    limiter = b.programs._limiter
    assert (limiter._programs, limiter._timeouts, limiter._gens) == ({}, {}, {})
    assert not limiter._shared
