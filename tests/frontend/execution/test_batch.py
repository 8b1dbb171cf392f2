"""Batches: in order, many at once, bounded, and one item's error costs no other its result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

import banyan as bn
from banyan.execution import batch
from banyan.runtime.protocol import wire
from waits import wait_until


@bn.function
def item(s: bn.State, x: Any) -> Any:
    s += f"{x}" + bn.gen("a")
    return x


class Later(bn.Mock):
    """A backend that finishes a program when the test says so."""

    def __init__(self) -> None:
        super().__init__("late")
        self.waiting: list[Callable[[], None]] = []
        self.most = 0

    def program(self, name: str = "") -> Any:
        made = super().program(name)
        submit, made.submit = made.submit, lambda ops, last=False: self._hold(lambda: submit(ops))
        return made

    def _hold(self, go: Callable[[], None]) -> None:
        self.waiting.append(go)
        self.most = max(self.most, len(self.waiting))

    def finish(self, i: int = 0) -> None:
        self.waiting.pop(i)()

    def finish_all(self) -> None:
        while self.waiting:
            self.finish()


def test_results_come_in_the_order_of_the_items(mock: bn.Mock) -> None:
    states = item.run_batch([{"x": i} for i in range(50)])
    assert [state.ret_value for state in states] == list(range(50))
    assert [state["a"] for state in states] == ["<a>"] * 50
    assert len(mock.submits) == 50


def test_items_may_be_tuples_and_come_from_anywhere(mock: bn.Mock) -> None:
    assert [s.ret_value for s in item.run_batch((i,) for i in range(3))] == [0, 1, 2]
    assert [s.ret_value for s in item.run_batch([{"x": 1}, (2,), [3]])] == [1, 2, 3]
    assert item.run_batch([]) == []
    assert list(item.run_batch([], generator_style=True)) == []


@pytest.mark.parametrize(
    ("items", "why"),
    [([(1,), (1, 2)], "item 1 .*too many"), ([{"y": 1}], "item 0 .*missing"), (["text"], "item 0 .* is a str")],
)
def test_items_that_do_not_fit_are_refused_before_anything_runs(mock: bn.Mock, items: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        item.run_batch(items)
    assert mock.submits == []


def test_options_are_those_of_run(mock: bn.Mock) -> None:
    item.run_batch([(1,)], temperature=0, opts=bn.Options(top_k=3))
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert (op.sampling.temperature, op.sampling.top_k) == (0, 3)
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        item.run_batch([(1,)], temprature=0)
    with pytest.raises(bn.Unsupported, match="stream"):
        item.run_batch([(1,)], stream=True)
    with pytest.raises(bn.BadProgram, match="on_error"):
        item.run_batch([(1,)], on_error="ignore")  # type: ignore[call-overload]
    with pytest.raises(bn.BadProgram, match="num_threads"):
        item.run_batch([(1,)], num_threads=0)


def test_straight_lines_are_all_on_their_way_at_once_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_IN_FLIGHT", 8)
    backend = Later()
    results: list[bn.State] = []
    caller = threading.Thread(target=lambda: results.extend(item.run_batch([(i,) for i in range(20)], backend=backend)))
    caller.start()
    wait_until(lambda: len(backend.waiting) == 8, "eight on their way")
    time.sleep(0.02)
    assert len(backend.waiting) == 8, "the ninth waits until one is finished"
    assert sum(t.name.startswith("banyan-batch") for t in threading.enumerate()) < 8, "and they need no thread each"
    backend.finish(5)
    wait_until(lambda: len(backend.waiting) == 8, "eight on their way")
    wait_until(
        lambda: backend.finish_all() or not caller.is_alive(), "the end of the batch", seen=lambda: backend.waiting
    )
    caller.join(10)
    assert backend.most == 8
    assert [state.ret_value for state in results] == list(range(20))


def test_bodies_that_wait_get_threads_up_to_a_bound(mock: bn.Mock) -> None:
    together, most, n = threading.Lock(), [0], [0]

    @bn.function
    def slow(s: bn.State) -> None:
        with together:
            n[0] += 1
            most[0] = max(most[0], n[0])
        time.sleep(0.03)
        with together:
            n[0] -= 1

    slow.run_batch([()] * 24, num_threads=6)
    assert most[0] == 6
    slow.run_batch([()] * 64)
    assert most[0] > 6


@pytest.mark.parametrize("n", [1, 2])
def test_a_batch_never_has_more_threads_than_it_may(mock: bn.Mock, n: int) -> None:
    most = 0

    @bn.function
    def look(s: bn.State) -> None:
        nonlocal most
        most = max(most, sum(t.name.startswith("banyan-batch") for t in threading.enumerate()))
        s += "x" + bn.gen("a")
        assert s["a"]  # its thread waits: another is wanted

    for _ in range(50):
        wait_until(
            lambda: not any(t.name.startswith("banyan-batch") for t in threading.enumerate()), "the threads' end"
        )
        look.run_batch([()] * 4, num_threads=n)
    assert 1 <= most <= n, "not for a moment, and the one that sets the others to work is of them"


def fails_for(*bad: int) -> bn.Mock:
    def script(prompt: str, name: str) -> str:
        if int(prompt) in bad:
            raise OSError(f"no luck with {prompt}")
        return prompt

    return bn.Mock(script)


def test_an_error_costs_no_other_item_its_result() -> None:
    with pytest.raises(bn.BatchError, match=r"2 of 5 items failed; the first is item 1: .*no luck with 1") as raised:
        item.run_batch([(i,) for i in range(5)], backend=fails_for(1, 3))
    error = raised.value
    assert list(error.errors) == [1, 3]
    assert isinstance(error.errors[3].__cause__, OSError)
    assert isinstance(error.__cause__, bn.ProgramError)
    assert [state["a"] for i, state in enumerate(error.results) if i not in error.errors] == ["0", "2", "4"]


def test_errors_can_be_returned() -> None:
    states = item.run_batch([(i,) for i in range(3)], backend=fails_for(1), on_error="return")
    assert [type(state.error()) for state in states] == [type(None), bn.ProgramError, type(None)]
    with pytest.raises(bn.ProgramError, match="no luck with 1"):
        states[1]["a"]


def test_a_body_that_raises_is_an_items_error_too(mock: bn.Mock) -> None:
    @bn.function
    def divides(s: bn.State, x: int) -> float:
        s += bn.gen("a")
        return 1 / x

    states = divides.run_batch([(1,), (0,), (2,)], on_error="return")
    assert [type(state.error()) for state in states] == [type(None), ZeroDivisionError, type(None)]
    with pytest.raises(bn.BatchError) as raised:
        divides.run_batch([(1,), (0,)])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_generator_style(mock: bn.Mock) -> None:
    backend = Later()
    results = item.run_batch([(i,) for i in range(3)], backend=backend, generator_style=True)
    assert backend.waiting == [], "nothing runs before somebody listens"
    caller = threading.Thread(target=lambda: (wait_until(lambda: len(backend.waiting) == 3, "3"), backend.finish()))
    caller.start()
    assert next(results).ret_value == 0
    caller.join(10)
    assert len(backend.waiting) == 2, "the first is given before the others are finished"
    backend.finish()
    backend.finish()
    assert [state.ret_value for state in results] == [1, 2]


def test_who_stops_to_listen_stops_the_rest() -> None:
    backend = Later()
    results = item.run_batch([(i,) for i in range(3)], backend=backend, generator_style=True)
    caller = threading.Thread(target=lambda: (wait_until(lambda: len(backend.waiting) == 3, "3"), backend.finish()))
    caller.start()
    next(results)
    caller.join(10)
    results.close()  # type: ignore[attr-defined]
    n_calls = len(backend.calls)
    for _ in range(2):
        backend.finish()
    assert len(backend.calls) == n_calls, "they were cancelled"


def test_generator_style_raises_at_the_item(mock: bn.Mock) -> None:
    results = item.run_batch([(i,) for i in range(3)], backend=fails_for(1), generator_style=True)
    assert next(results)["a"] == "0"
    with pytest.raises(bn.ProgramError, match="no luck with 1"):
        next(results)
    results = item.run_batch([(i,) for i in range(3)], backend=fails_for(1), generator_style=True, on_error="return")
    assert [state.error() is None for state in results] == [True, False, True]


WHO: ContextVar[str] = ContextVar("who", default="nobody")


def test_bodies_run_in_the_callers_context(mock: bn.Mock) -> None:
    @bn.function
    def asks(s: bn.State) -> str:
        return WHO.get()

    WHO.set("me")
    assert [state.ret_value for state in asks.run_batch([()] * 3)] == ["me"] * 3


def test_a_progress_bar_stands_on_stderr(mock: bn.Mock, capsys: pytest.CaptureFixture[str]) -> None:
    item.run_batch([(i,) for i in range(7)], progress_bar=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert "item" in said.err
    assert "7/7" in said.err
    item.run_batch([(1,)])
    assert capsys.readouterr().err == ""


# ---- as they are finished, bounded, limited ----------------------------------------------------------------------


def test_states_can_be_had_as_they_are_finished() -> None:
    backend = Later()
    results = iter(item.run_batch([(i,) for i in range(3)], backend=backend, ordered=False))
    caller = threading.Thread(target=lambda: (wait_until(lambda: len(backend.waiting) == 3, "3"), backend.finish(1)))
    caller.start()
    first = next(results)
    caller.join(10)
    assert (first.index, first.ret_value) == (1, 1)
    backend.finish(1)
    assert next(results).index == 2
    backend.finish()
    assert [state.index for state in results] == [0]
    assert item.run("x", backend=bn.Mock("a")).index is None


@pytest.mark.parametrize("concurrency", [1, 3])
def test_concurrency_bounds_how_many_are_on_their_way(concurrency: int) -> None:
    backend = Later()
    caller = threading.Thread(
        target=lambda: item.run_batch([(i,) for i in range(6)], backend=backend, concurrency=concurrency)
    )
    caller.start()
    wait_until(
        lambda: backend.finish_all() or not caller.is_alive(), "the end of the batch", seen=lambda: backend.waiting
    )
    assert backend.most <= concurrency
    with pytest.raises(bn.BadProgram, match="concurrency is 0"):
        item.run_batch([(1,)], backend=backend, concurrency=0)


def test_a_batch_has_a_deadline() -> None:
    quick = {"0", "1"}
    backend = bn.Mock(lambda prompt, name: prompt, latency=lambda call: 0.0 if call.prompt in quick else 30)
    start = time.monotonic()
    states = item.run_batch([(i,) for i in range(6)], backend=backend, concurrency=4, timeout=0.3, on_error="return")
    assert time.monotonic() - start < 10
    assert [state["a"] for state in states[:2]] == ["0", "1"]
    for state in states[2:]:
        with pytest.raises(bn.DeadlineExceeded, match=r"the batch's timeout of 0\.3 s ran out"):
            state["a"]
    with pytest.raises(bn.BatchError) as raised:
        item.run_batch([(i,) for i in range(3)], backend=backend, timeout=0.1)
    assert list(raised.value.errors) == [2]
    assert raised.value.results[0]["a"] == "0"


def test_a_body_that_is_busy_does_not_hold_up_the_deadline(mock: bn.Mock) -> None:
    stuck, n = threading.Event(), [0]

    @bn.function
    def program(s: bn.State, x: int) -> int:
        n[0] += 1
        if x == 1:
            stuck.wait(60)
        return x

    start = time.monotonic()
    states = program.run_batch([(i,) for i in range(4)], timeout=0.2, num_threads=1, on_error="return")
    assert time.monotonic() - start < 10
    assert [type(state.error()) for state in states] == [type(None), *[bn.DeadlineExceeded] * 3]
    stuck.set()
    assert n[0] == 2, "and no other began"


def test_a_batch_has_a_budget() -> None:
    backend = bn.Mock(wire.Sample("xxxx", "stop", n_tokens=4))
    states = item.run_batch([(i,) for i in range(5)], backend=backend, budget=12, num_threads=1, on_error="return")
    assert [type(state.error()) for state in states] == [*[type(None)] * 3, *[bn.BudgetExceeded] * 2]
    with pytest.raises(bn.BudgetExceeded, match="the batch's budget of 12 tokens ran out"):
        states[4]["a"]
    item.run_batch([(i,) for i in range(5)], backend=backend, budget=20)
    item.run_batch([(i,) for i in range(5)], backend=backend, opts=bn.Options(budget=4))
    with pytest.raises(bn.BatchError, match="the run's budget of 3 tokens ran out"):
        item.run_batch([(i,) for i in range(2)], backend=backend, opts=bn.Options(budget=3))
    for wrong in ({"timeout": 0}, {"budget": 0}):
        with pytest.raises(bn.BadProgram, match="bad option"):
            item.run_batch([(1,)], backend=backend, **wrong)  # type: ignore[call-overload]


def test_options_that_no_run_can_have_are_told_at_once(mock: bn.Mock) -> None:
    for options in ({"min_tokens": 9, "max_new_tokens": 3}, {"top_logprobs_num": 1}):
        with pytest.raises(bn.BadProgram):
            item.run_batch([(1,)] * 3, **options)  # type: ignore[call-overload]
