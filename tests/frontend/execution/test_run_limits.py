"""Client-side deadlines and budgets of gens and runs."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from typing import Any

import pytest

import banyan as bn
from banyan.execution import run_limits
from banyan.execution.clock import Clock
from banyan.lang import state_base
from banyan.runtime.protocol import wire
from waits import wait_until


@bn.function
def single_gen(s: bn.State, **options: Any) -> None:
    s += "prompt" + bn.gen("a", **options)


@bn.function
def chat(s: bn.State) -> None:
    s += bn.user("hi") + bn.assistant(bn.gen("a"))


class SilentMock(bn.Mock):
    """Accepts programs and never answers, not even a cancel."""

    def program(self, name: str = "") -> Any:
        program = super().program(name)
        program.submit = lambda ops, last=False: None
        return program


def tokens(n: int) -> wire.Sample:
    return wire.Sample("x" * n, "length", n_tokens=n)


def test_run_timeout_is_raised_in_the_body() -> None:
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


@pytest.mark.parametrize("backend", [bn.Mock("late", latency=30), SilentMock()], ids=["slow", "silent"])
def test_run_timeout_is_raised_by_every_read(backend: bn.Mock) -> None:
    state = chat.run(backend=backend, opts=bn.Options(timeout=0.05))
    reads = [lambda: state["a"], state.text, state.sync, lambda: list(state.text_iter("a")), state.messages]
    for read in reads[:1] if isinstance(backend, SilentMock) else reads:
        with pytest.raises(bn.DeadlineExceeded):
            read()
    assert isinstance(state.error(), bn.DeadlineExceeded)
    state += bn.gen("b")
    with pytest.raises(bn.DeadlineExceeded):
        state["b"]


def test_values_before_the_timeout_stay_readable(mock: bn.Mock) -> None:
    state = chat.run(timeout=0.02)
    time.sleep(0.05)
    assert state["a"] == "<a>"
    assert state.error() is None


def test_run_timeout_ends_an_async_body() -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> None:
        s += bn.gen("a")
        await asyncio.sleep(60)

    start = time.monotonic()
    for body in (program, chat):
        with pytest.raises(bn.DeadlineExceeded, match="the run's timeout") as raised:
            asyncio.run(body.run_async(backend=bn.Mock("late", latency=30), timeout=0.1))
        assert raised.value.program == body.name
    assert time.monotonic() - start < 10


def test_timeout_in_the_body_is_raised_unchanged() -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError) as raised:
        asyncio.run(program.run_async(backend=bn.Mock(), timeout=30))
    assert not isinstance(raised.value, bn.DeadlineExceeded)


# ---- gens --------------------------------------------------------------------------------------------------------


def test_gen_timeout_fails_only_its_state() -> None:
    backend = bn.Mock({"a": "slow", "b": "after", "c": "quick"}, latency=lambda call: 30 if call.name == "a" else 0.01)

    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks[0].assistant(bn.gen("a", timeout=0.1) + bn.gen("b"))
        forks[1].assistant(bn.gen("c"))
        forks.join()
        assert forks[1]["c"] == "quick"

    state = program.run(backend=backend)
    with pytest.raises(bn.ForkError, match=r"branch 0 failed: the gen's timeout of 0\.1 s ran out") as raised:
        state["b"]
    assert isinstance(raised.value.__cause__, bn.DeadlineExceeded)
    assert (raised.value.gen, raised.value.prompt_tail) == ("a", "<|im_start|>assistant\n")


def test_gen_timeout_starts_when_all_before_it_is_done() -> None:
    backend = bn.Mock("x", latency=0.3)

    @bn.function
    def program(s: bn.State) -> None:
        (branch,) = s.fork(1)
        branch += bn.gen("first") + bn.gen("second")
        s += bn.gen("before") + branch.ref("second") + bn.gen("a", timeout=0.45)

    assert program.run(backend=backend)["a"] == "x"


def test_gen_timeout_waits_for_values_of_the_same_append(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_limits, "GRACE", 0.05)
    backend = bn.Mock("x", latency=lambda call: 0.7 if call.name == "plan" else 0.25)

    @bn.function
    def three(s: bn.State) -> None:
        s += "Q" + bn.gen("a", timeout=0.6) + " " + bn.gen("b", timeout=0.6) + " " + bn.gen("c", timeout=0.6)

    @bn.function
    def spliced(s: bn.State) -> None:
        (branch,) = s.fork(1)
        branch += "Plan: " + bn.gen("plan")
        s += "Given " + branch.ref("plan") + bn.gen("c", timeout=0.6)

    for program in (three, spliced):
        assert program.run(backend=backend)["c"] == "x"


def test_gen_with_a_timeout_waits_for_each_value_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(record: Any, ref: int, kind: str, timeout: float, before: list[Any]) -> None:
        n_before.append(len(before))

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("first")
        for _ in range(50):
            s += bn.gen("x", timeout=9) + s.ref("first") + bn.gen("y") + bn.select("z", ["x", "y"], timeout=9)

    n_before = list[int]()
    monkeypatch.setattr(state_base, "limit_gen", count)
    program.run(backend=bn.Mock("x"))
    assert n_before == [1, 3] + [1, 3] * 49


@pytest.mark.parametrize(
    ("expression", "match"),
    [
        (bn.gen("a", timeout=0.05), "the gen's timeout"),
        (bn.select("a", ["x"], timeout=0.05), "the select's timeout"),
    ],
    ids=["gen", "select"],
)
def test_silent_backend_is_abandoned_after_the_timeout(
    expression: Any, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_limits, "GRACE", 0.05)
    program = bn.function(lambda s: s.__iadd__("prompt" + expression))
    with pytest.raises(bn.DeadlineExceeded, match=match):
        program.run(backend=SilentMock())["a"]


def test_select_timeout() -> None:
    backend = bn.Mock({"a": "yes", "b": "x"}, latency=lambda call: 30.0 if call.name == "a" else 0.0)

    @bn.function
    def program(s: bn.State, expression: Any) -> None:
        s += expression("a", choices=["yes", "no"], timeout=0.05)
        s += bn.gen("b")

    for expression in (bn.select, bn.gen):
        with pytest.raises(bn.DeadlineExceeded, match=r"the select's timeout of 0\.05 s ran out") as raised:
            program.run(expression, backend=backend)["b"]
        assert raised.value.gen == "a"
    with pytest.raises(bn.BadProgram, match="bad option"):
        bn.select("a", ["yes"], timeout=0)


def test_gen_budget_fails_its_state() -> None:
    backend = bn.Mock({"a": tokens(9), "b": "after"})

    @bn.function
    def program(s: bn.State, budget: int) -> None:
        s += bn.gen("a", budget=budget) + bn.gen("b")

    assert program.run(9, backend=backend)["b"] == "after"
    with pytest.raises(bn.BudgetExceeded, match="the gen's budget of 8 tokens ran out") as raised:
        program.run(8, backend=backend)["b"]
    assert raised.value.gen == "a"


# ---- runs --------------------------------------------------------------------------------------------------------


def test_run_budget_fails_the_run() -> None:
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


INVALID: list[dict[str, Any]] = [
    *({"timeout": 0}, {"timeout": -1.0}, {"budget": 0}, {"budget": 1.5}),
    *({"priority": 101}, {"priority": -101}, {"priority": 1.5}, {"deadline": 0.0}),
]


@pytest.mark.parametrize("options", INVALID, ids=str)
def test_invalid_limits_are_refused(mock: bn.Mock, options: dict[str, Any]) -> None:
    with pytest.raises(bn.BadProgram, match="bad option"):
        bn.gen("a", **options)
    with pytest.raises(bn.BadProgram, match="bad option"):
        chat.run(**options)


def test_run_without_limits_has_none(mock: bn.Mock) -> None:
    state = single_gen.run()
    assert state._record.counters == []
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert (op.timeout, op.budget) == (0.0, 0)


def test_alarms_are_removed_with_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    test_clock = Clock()
    monkeypatch.setattr(run_limits, "clock", lambda: test_clock)
    for _ in range(300):
        single_gen.bind(timeout=100).run(backend=bn.Mock("x"), opts=bn.Options(timeout=100))
    gc.collect()
    assert len(test_clock._due) < 250
    active = [alarm for _, _, alarm in test_clock._due if alarm.action is not None]
    assert len(active) < 5


def test_clock_goes_on_after_an_endless_timeout() -> None:
    clock, is_called = Clock(), threading.Event()
    clock.call(float("inf"), is_called.clear)
    time.sleep(0.05)  # until the thread waits for the first call
    clock.call(time.monotonic() + 0.01, is_called.set)
    assert is_called.wait(10)


def test_clock_goes_on_after_an_action_that_raised(caplog: pytest.LogCaptureFixture) -> None:
    clock, is_called = Clock(), threading.Event()

    def fail() -> None:
        raise KeyboardInterrupt("no reason")

    clock.call(0.0, fail)
    clock.call(0.0, is_called.set)
    assert is_called.wait(10)
    assert "no reason" in caplog.text


def test_error_after_a_timeout_names_the_unfinished_gen() -> None:
    """Also for a gen whose predecessor alone was already sent."""
    state = single_gen.bind(n=1).run(backend=bn.Mock("late", latency=30), opts=bn.Options(timeout=0.05))
    with pytest.raises(bn.DeadlineExceeded):
        state["a"]
    state += bn.gen("b")
    with pytest.raises(bn.DeadlineExceeded, match=r"gen 'a'"):
        state["b"]


# ---- programs that a program calls -----------------------------------------------------------------------------------


@bn.function
def inner(s: bn.State) -> None:
    s += "inner" + bn.gen("x")


def test_the_timeout_of_a_run_ends_the_runs_that_it_calls() -> None:
    called: list[bn.State] = []

    @bn.function
    def middle(s: bn.State) -> None:
        called.append(inner())
        s["x"] = called[0]["x"]

    @bn.function
    def outer(s: bn.State) -> None:
        s["x"] = middle()["x"]

    with pytest.raises(bn.DeadlineExceeded, match=r"the run's timeout of 0\.1 s ran out") as raised:
        outer.run(backend=bn.Mock("never", latency=3600), timeout=0.1)
    assert (raised.value.program, raised.value.gen) == ("inner", "x")
    assert isinstance(called[0].error(), bn.DeadlineExceeded)


@pytest.mark.parametrize("how", ["cancel", "leave", "drop", "raise"])
def test_a_run_that_is_stopped_ends_the_runs_that_it_calls(how: str) -> None:
    called: list[bn.State] = []
    backend = bn.Mock("never", latency=3600)

    @bn.function
    def outer(s: bn.State) -> None:
        called.append(inner())
        if how == "raise":
            raise ZeroDivisionError
        called[0]["x"]

    if how == "raise":
        with pytest.raises(ZeroDivisionError):
            outer.run(backend=backend)
    elif how == "drop":
        state = outer.run(backend=backend, stream=True)
        wait_until(lambda: called, "the inner run")
        del state
        gc.collect()
    else:
        with bn.stream(outer, backend=backend) as run:
            wait_until(lambda: called, "the inner run")
            if how == "cancel":
                run.cancel()
    with pytest.raises(bn.Cancelled):
        called[0]["x"]


def test_the_runs_that_a_run_calls_spend_its_budget() -> None:
    backend = bn.Mock(tokens(4))

    @bn.function
    def outer(s: bn.State, n: int) -> None:
        s["x"] = [inner()["x"] for _ in range(n)]

    assert outer.run(3, backend=backend, budget=12)["x"] == ["xxxx"] * 3
    with pytest.raises(bn.BudgetExceeded, match="the run's budget of 12 tokens ran out"):
        outer.run(4, backend=backend, budget=12)
    states = outer.run_batch([(2,)] * 3, backend=backend, budget=16, num_threads=1, on_error="return")
    assert [type(state.error()) for state in states] == [type(None), type(None), bn.BudgetExceeded]


def test_a_finished_run_stays_readable_when_its_caller_is_stopped() -> None:
    called: list[bn.State] = []
    backend = bn.Mock({"x": "done", "slow": "never"})
    slow = bn.Mock("never", latency=3600)

    @bn.function
    def outer(s: bn.State) -> None:
        called.append(inner(backend=backend))
        called[0].sync()
        inner(backend=slow)["x"]

    with pytest.raises(bn.DeadlineExceeded):
        outer.run(backend=slow, timeout=0.1)
    assert called[0]["x"] == "done"
    assert called[0].error() is None


def test_a_run_that_a_tool_starts_ends_with_the_program() -> None:
    called: list[bn.State] = []

    def ask() -> str:
        """Ask."""
        called.append(inner(backend=bn.Mock("never", latency=3600)))
        return str(called[0]["x"])

    @bn.function
    def agent(s: bn.State) -> None:
        s += bn.user("go") + bn.assistant(bn.gen("a", tools=[ask]))

    with pytest.raises(bn.DeadlineExceeded):
        agent.run(backend=bn.Mock({"a": [{"ask": {}}]}), timeout=0.2)["a"]
    assert isinstance(called[0].error(), bn.DeadlineExceeded)


def test_a_run_that_starts_after_its_caller_was_cancelled_is_stopped() -> None:
    may_go, seen = threading.Event(), list[BaseException]()

    @bn.function
    def outer(s: bn.State) -> None:
        assert may_go.wait(30)
        with pytest.raises(bn.Cancelled) as raised:
            inner(backend=bn.Mock("never", latency=3600))["x"]
        seen.append(raised.value)

    state = outer.run(backend=bn.Mock("x"), stream=True)
    del state
    gc.collect()
    may_go.set()
    wait_until(lambda: seen, "the inner run's end")


def test_a_run_that_a_body_returns_goes_on() -> None:
    @bn.function
    def outer(s: bn.State) -> bn.State:
        return inner(backend=bn.Mock("late", latency=0.05))

    state = outer.run(backend=bn.Mock("x"), stream=True)
    returned = state.ret_value
    del state
    gc.collect()
    assert returned["x"] == "late"


def test_a_failed_run_that_was_streamed_is_not_kept() -> None:
    @bn.function
    def fails(s: bn.State) -> None:
        raise ZeroDivisionError

    kept = []
    for _ in range(5):
        state = fails.run(backend=bn.Mock("x"), stream=True)
        with pytest.raises(ZeroDivisionError):
            state["x"]
        kept.append(weakref.ref(state._record))
        del state
    gc.collect()
    assert [one() for one in kept[:-1]] == [None] * 4


def test_a_cancel_waits_for_no_lock(mock: bn.Mock) -> None:
    """A finalizer may cancel a run at any time, also on a thread that holds the lock of this or another record."""
    record = single_gen.run()._record
    with record._lock:
        record.cancel()
