"""Deadlines and budgets of gens and runs, on this side: what ends, when, and what it says."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest

import banyan as bn
from banyan.execution import run_limits
from banyan.execution.clock import Clock
from banyan.runtime.protocol import wire


@bn.function
def one(s: bn.State, **options: Any) -> None:
    s += "prompt" + bn.gen("a", **options)


@bn.function
def chat(s: bn.State) -> None:
    s += bn.user("hi") + bn.assistant(bn.gen("a"))


class Deaf(bn.Mock):
    """Takes programs and says nothing any more, not even that they are cancelled."""

    def program(self, name: str = "") -> Any:
        made = super().program(name)
        made.submit = lambda ops, last=False: None
        return made


def tokens(n: int) -> wire.Sample:
    return wire.Sample("x" * n, "length", n_tokens=n)


def test_a_run_that_takes_too_long() -> None:
    backend = bn.Mock({"a": "slow", "b": "never"}, latency=30)

    @bn.function
    def program(s: bn.State) -> None:
        s += "prompt" + bn.gen("a")
        s += bn.gen("b")
        s["a"]

    start = time.monotonic()
    with pytest.raises(bn.DeadlineExceeded, match=r"the run's timeout of 0\.1 s ran out") as raised:
        program.run(backend=backend, timeout=0.1)
    assert time.monotonic() - start < 5
    assert (raised.value.program, raised.value.gen) == ("program", "a")
    assert isinstance(raised.value, TimeoutError)


@pytest.mark.parametrize("backend", [bn.Mock("late", latency=30), Deaf()], ids=["slow", "deaf"])
def test_whoever_looks_hears_that_the_time_is_up(backend: bn.Mock) -> None:
    state = chat.run(backend=backend, opts=bn.Options(timeout=0.05))
    looks = [lambda: state["a"], state.text, state.sync, lambda: list(state.text_iter("a")), state.messages]
    for look in looks[:1] if isinstance(backend, Deaf) else looks:
        with pytest.raises(bn.DeadlineExceeded):
            look()
    assert isinstance(state.error(), bn.DeadlineExceeded)
    state += bn.gen("b")
    with pytest.raises(bn.DeadlineExceeded):
        state["b"]


def test_what_was_known_in_time_stays_known(mock: bn.Mock) -> None:
    state = chat.run(timeout=0.02)
    time.sleep(0.05)
    assert state["a"] == "<a>"
    assert state.error() is None


def test_an_async_body_ends_where_it_stands() -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> None:
        s += bn.gen("a")
        await asyncio.sleep(60)

    start = time.monotonic()
    for body in (program, chat):
        with pytest.raises(bn.DeadlineExceeded, match="the run's timeout"):
            asyncio.run(body.run_async(backend=bn.Mock("late", latency=30), timeout=0.1))
    assert time.monotonic() - start < 10


def test_a_timeout_of_the_body_itself_is_its_own() -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError) as raised:
        asyncio.run(program.run_async(backend=bn.Mock(), timeout=30))
    assert not isinstance(raised.value, bn.DeadlineExceeded)


# ---- gens --------------------------------------------------------------------------------------------------------


def test_a_gen_that_takes_too_long_costs_its_state_alone() -> None:
    backend = bn.Mock({"a": "slow", "b": "after", "c": "quick"}, latency=lambda call: 30 if call.name == "a" else 0.01)

    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks[0].assistant(bn.gen("a", timeout=0.1) + bn.gen("b"))
        forks[1].assistant(bn.gen("c"))
        forks.join()
        assert forks[1]["c"] == "quick"

    state = program.run(backend=backend)
    with pytest.raises(bn.DeadlineExceeded, match=r"the gen's timeout of 0\.1 s ran out") as raised:
        state["b"]
    assert (raised.value.gen, raised.value.prompt_tail) == ("a", "<|im_start|>assistant\n")


def test_the_time_of_a_gen_begins_when_all_before_it_is_done() -> None:
    backend = bn.Mock("x", latency=0.3)

    @bn.function
    def program(s: bn.State) -> None:
        (branch,) = s.fork(1)
        branch += bn.gen("first") + bn.gen("second")
        s += bn.gen("before") + branch.ref("second") + bn.gen("a", timeout=0.45)

    assert program.run(backend=backend)["a"] == "x"


def test_a_backend_that_does_not_keep_the_time_of_a_gen_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_limits, "GRACE", 0.05)
    with pytest.raises(bn.DeadlineExceeded, match="the gen's timeout"):
        one.bind(timeout=0.05).run(backend=Deaf())["a"]


def test_the_time_of_a_select() -> None:
    backend = bn.Mock({"a": "yes", "b": "x"}, latency=lambda call: 30.0 if call.name == "a" else 0.0)

    @bn.function
    def program(s: bn.State, how: Any) -> None:
        s += how("a", choices=["yes", "no"], timeout=0.05)
        s += bn.gen("b")

    for how in (bn.select, bn.gen):
        with pytest.raises(bn.DeadlineExceeded, match=r"the select's timeout of 0\.05 s ran out") as raised:
            program.run(how, backend=backend)["b"]
        assert raised.value.gen == "a"
    with pytest.raises(bn.BadProgram, match="bad option"):
        bn.select("a", ["yes"], timeout=0)


def test_a_backend_that_does_not_keep_the_time_of_a_select_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_limits, "GRACE", 0.05)
    program = bn.function(lambda s: s.__iadd__(bn.select("a", ["x"], timeout=0.05)))
    with pytest.raises(bn.DeadlineExceeded, match="the select's timeout"):
        program.run(backend=Deaf())["a"]


def test_the_budget_of_a_gen() -> None:
    backend = bn.Mock({"a": tokens(9), "b": "after"})

    @bn.function
    def program(s: bn.State, budget: int) -> None:
        s += bn.gen("a", budget=budget) + bn.gen("b")

    assert program.run(9, backend=backend)["b"] == "after"
    with pytest.raises(bn.BudgetExceeded, match="the gen's budget of 8 tokens ran out") as raised:
        program.run(8, backend=backend)["b"]
    assert raised.value.gen == "a"


# ---- runs --------------------------------------------------------------------------------------------------------


def test_the_budget_of_a_run() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(3)
        forks += bn.gen("a")
        assert forks[0]["a"] == "x" * 5
        s += bn.gen("b")
        s["b"]

    backend = bn.Mock(tokens(5))
    program.run(backend=backend, opts=bn.Options(budget=20))
    with pytest.raises(bn.BudgetExceeded, match="the run's budget of 14 tokens ran out"):
        program.run(backend=backend, opts=bn.Options(budget=14))


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1.0}, {"budget": 0}, {"budget": 1.5}])
def test_limits_that_cannot_be(mock: bn.Mock, options: dict[str, Any]) -> None:
    with pytest.raises(bn.BadProgram, match="bad option"):
        bn.gen("a", **options)
    with pytest.raises(bn.BadProgram, match="bad option"):
        chat.run(**options)


def test_a_run_without_limits_has_none(mock: bn.Mock) -> None:
    state = one.run()
    assert state._record.limits is None
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert (op.timeout, op.budget) == (0.0, 0)


def test_alarms_go_with_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Clock()
    monkeypatch.setattr(run_limits, "clock", lambda: made)
    for _ in range(300):
        one.bind(timeout=100).run(backend=bn.Mock("x"), opts=bn.Options(timeout=100))
    gc.collect()
    assert len(made._due) < 250
    alive = [alarm for _, _, alarm in made._due if alarm.action is not None]
    assert len(alive) < 5


def test_what_a_stopped_run_is_told_does_not_depend_on_where_it_stood() -> None:
    """A value of which only the one before it was asked for already."""
    state = one.bind(n=1).run(backend=bn.Mock("late", latency=30), opts=bn.Options(timeout=0.05))
    with pytest.raises(bn.DeadlineExceeded):
        state["a"]
    state += bn.gen("b")
    with pytest.raises(bn.DeadlineExceeded, match=r"gen 'a'"):
        state["b"]
