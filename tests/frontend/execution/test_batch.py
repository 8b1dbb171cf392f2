"""Batches: order, concurrency, errors, deadlines and budgets."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from itertools import count
from typing import Any

import pytest

import banyan as bn
from banyan.execution import batch
from banyan.runtime.protocol import wire
from waits import wait_until

USER: ContextVar[str] = ContextVar("user", default="nobody")


@bn.function
def item(s: bn.State, x: Any) -> Any:
    s += f"{x}" + bn.gen("a")
    return x


class ManualMock(bn.Mock):
    """A backend that runs submitted programs only when the test calls `finish`."""

    def __init__(self) -> None:
        super().__init__("late")
        self.waiting: list[Callable[[], None]] = []
        self.max_waiting = 0

    def program(self, name: str = "") -> Any:
        program = super().program(name)
        submit, program.submit = program.submit, lambda ops, last=False: self._hold(lambda: submit(ops))
        return program

    def _hold(self, submit_held: Callable[[], None]) -> None:
        self.waiting.append(submit_held)
        self.max_waiting = max(self.max_waiting, len(self.waiting))

    def finish(self, i: int = 0) -> None:
        self.waiting.pop(i)()

    def finish_once_waiting(self, n: int, i: int = 0) -> threading.Thread:
        """Start a thread that waits for `n` submits and then finishes submit `i`."""
        thread = threading.Thread(target=lambda: (wait_until(lambda: len(self.waiting) == n, f"{n}"), self.finish(i)))
        thread.start()
        return thread

    def finish_all(self) -> None:
        while self.waiting:
            self.finish()


def test_results_are_in_item_order(mock: bn.Mock) -> None:
    states = item.run_batch([{"x": i} for i in range(50)])
    assert [state.ret_value for state in states] == list(range(50))
    assert [state["a"] for state in states] == ["<a>"] * 50
    assert len(mock.submits) == 50


def test_items_may_be_tuples_lists_or_a_generator(mock: bn.Mock) -> None:
    assert [s.ret_value for s in item.run_batch((i,) for i in range(3))] == [0, 1, 2]
    assert [s.ret_value for s in item.run_batch([{"x": 1}, (2,), [3]])] == [1, 2, 3]
    assert item.run_batch([]) == []
    assert list(item.run_batch([], generator_style=True)) == []


@pytest.mark.parametrize(
    ("items", "match"),
    [([(1,), (1, 2)], "item 1 .*too many"), ([{"y": 1}], "item 0 .*missing"), (["text"], "item 0 .* is a str")],
)
def test_invalid_items_are_refused_before_any_run(mock: bn.Mock, items: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        item.run_batch(items)
    assert mock.submits == []


def test_run_batch_takes_the_options_of_run(mock: bn.Mock) -> None:
    item.run_batch([(1,)], temperature=0, opts=bn.Options(top_k=3))
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert (op.sampling.temperature, op.sampling.top_k) == (0, 3)
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        item.run_batch([(1,)], temprature=0)
    with pytest.raises(bn.Unsupported, match="stream"):
        item.run_batch([(1,)], stream=True)
    with pytest.raises(bn.BadProgram, match="on_error"):
        item.run_batch([(1,)], on_error="ignore")  # type: ignore[call-overload]


def test_straight_programs_are_in_flight_concurrently_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_IN_FLIGHT", 8)
    backend = ManualMock()
    results: list[bn.State] = []
    caller = threading.Thread(target=lambda: results.extend(item.run_batch([(i,) for i in range(20)], backend=backend)))
    caller.start()
    wait_until(lambda: len(backend.waiting) == 8, "eight on their way")
    time.sleep(0.02)
    assert len(backend.waiting) == 8, "the ninth waits for a free slot"
    assert sum(t.name.startswith("banyan-batch") for t in threading.enumerate()) < 8, (
        "straight programs need no thread each"
    )
    backend.finish(5)
    wait_until(lambda: len(backend.waiting) == 8, "eight on their way")
    wait_until(
        lambda: backend.finish_all() or not caller.is_alive(), "the end of the batch", seen=lambda: backend.waiting
    )
    caller.join(10)
    assert backend.max_waiting == 8
    assert [state.ret_value for state in results] == list(range(20))


def test_waiting_bodies_get_threads_up_to_num_threads(mock: bn.Mock) -> None:
    @bn.function
    def waiting(s: bn.State, n_wanted: int) -> None:
        with running:
            n_running[0] += 1
            max_running[0] = max(max_running[0], n_running[0])
            running.notify_all()
            running.wait_for(lambda: max_running[0] >= n_wanted, 20)
            n_running[0] -= 1

    running, n_running, max_running = threading.Condition(), [0], [0]
    waiting.run_batch([(6,)] * 24, num_threads=6)
    assert max_running[0] == 6
    max_running[0] = 0
    waiting.run_batch([(7,)] * 64)
    assert max_running[0] >= 7


@pytest.mark.parametrize(("most", "concurrency"), [(2, 6), (256, 6)])
def test_waiting_bodies_get_as_many_threads_as_programs_may_run(
    mock: bn.Mock, monkeypatch: pytest.MonkeyPatch, most: int, concurrency: int
) -> None:
    @bn.function
    def waiting(s: bn.State) -> None:
        together.wait()
        time.sleep(0.02)  # while nothing starts
        n_threads.append(sum(t.name.startswith("banyan-batch") for t in threading.enumerate()))

    monkeypatch.setattr(batch, "MAX_IN_FLIGHT", most)
    together, n_threads = threading.Barrier(concurrency, timeout=20), list[int]()
    states = waiting.run_batch([()] * 60, concurrency=concurrency, num_threads=60)
    assert len(states) == len(n_threads) == 60
    assert max(n_threads) <= 6, "no thread for a program that must not start"


def test_items_that_come_late_get_no_more_threads(mock: bn.Mock) -> None:
    never, n_threads = threading.Event(), list[int]()

    def late() -> Iterator[tuple[int]]:
        for i in range(8):
            never.wait(20 * batch.PATIENCE)
            n_threads.append(sum(t.name.startswith("banyan-batch") for t in threading.enumerate()))
            yield (i,)

    assert [state.index for state in item.run_batch(late(), generator_style=True)] == list(range(8))
    assert max(n_threads) < 16, "and not all 64"


@pytest.mark.parametrize("n", [1, 2])
def test_batch_never_exceeds_num_threads(mock: bn.Mock, n: int) -> None:
    max_threads = 0

    @bn.function
    def read(s: bn.State) -> None:
        nonlocal max_threads
        max_threads = max(max_threads, sum(t.name.startswith("banyan-batch") for t in threading.enumerate()))
        s += "x" + bn.gen("a")
        assert s["a"]  # blocks its thread, so the batch wants another

    for _ in range(50):
        wait_until(
            lambda: not any(t.name.startswith("banyan-batch") for t in threading.enumerate()), "the threads' end"
        )
        read.run_batch([()] * 4, num_threads=n)
    assert 1 <= max_threads <= n, "at every moment, including the thread that starts the others"


def failing_mock(*bad: int) -> bn.Mock:
    def script(prompt: str, name: str) -> str:
        if int(prompt) in bad:
            raise OSError(f"no luck with {prompt}")
        return prompt

    return bn.Mock(script)


def test_failed_items_do_not_affect_the_others() -> None:
    with pytest.raises(bn.BatchError, match=r"2 of 5 items failed; the first is item 1: .*no luck with 1") as raised:
        item.run_batch([(i,) for i in range(5)], backend=failing_mock(1, 3))
    error = raised.value
    assert list(error.errors) == [1, 3]
    assert isinstance(error.errors[3].__cause__, OSError)
    assert isinstance(error.__cause__, bn.ProgramError)
    assert [state["a"] for i, state in enumerate(error.results) if i not in error.errors] == ["0", "2", "4"]


def test_error_that_is_not_banyans_is_named_with_its_line(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        json.loads("")

    with pytest.raises(bn.BatchError) as raised:
        program.run_batch([()])
    line = program.func.__code__.co_firstlineno + 2
    assert (
        f"the first is item 0: JSONDecodeError: Expecting value: line 1 column 1 (char 0) [test_batch.py:{line}]"
        in str(raised.value)
    )


def test_errors_can_be_returned() -> None:
    states = item.run_batch([(i,) for i in range(3)], backend=failing_mock(1), on_error="return")
    assert [type(state.error()) for state in states] == [type(None), bn.ProgramError, type(None)]
    with pytest.raises(bn.ProgramError, match="no luck with 1"):
        states[1]["a"]


def test_body_error_fails_its_item(mock: bn.Mock) -> None:
    @bn.function
    def divides(s: bn.State, x: int) -> float:
        s += bn.gen("a")
        return 1 / x

    states = divides.run_batch([(1,), (0,), (2,)], on_error="return")
    assert [type(state.error()) for state in states] == [type(None), ZeroDivisionError, type(None)]
    with pytest.raises(bn.BatchError) as raised:
        divides.run_batch([(1,), (0,)])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_generator_style_yields_results_as_they_finish(mock: bn.Mock) -> None:
    backend = ManualMock()
    results = item.run_batch([(i,) for i in range(3)], backend=backend, generator_style=True)
    assert backend.waiting == [], "nothing runs before the first next()"
    finisher = backend.finish_once_waiting(3)
    assert next(results).ret_value == 0
    finisher.join(10)
    assert len(backend.waiting) == 2, "the first result does not wait for the others"
    backend.finish()
    backend.finish()
    assert [state.ret_value for state in results] == [1, 2]


def test_closing_the_generator_cancels_the_remaining_items() -> None:
    backend = ManualMock()
    results = item.run_batch([(i,) for i in range(3)], backend=backend, generator_style=True)
    finisher = backend.finish_once_waiting(3)
    next(results)
    finisher.join(10)
    results.close()  # type: ignore[attr-defined]
    n_calls = len(backend.calls)
    for _ in range(2):
        backend.finish()
    assert len(backend.calls) == n_calls, "the others were cancelled"


def test_generator_style_raises_at_the_failed_item(mock: bn.Mock) -> None:
    results = item.run_batch([(i,) for i in range(3)], backend=failing_mock(1), generator_style=True)
    assert next(results)["a"] == "0"
    with pytest.raises(bn.ProgramError, match="no luck with 1"):
        next(results)
    results = item.run_batch([(i,) for i in range(3)], backend=failing_mock(1), generator_style=True, on_error="return")
    assert [state.error() is None for state in results] == [True, False, True]


# ---- items without a length --------------------------------------------------------------------------------------


def endless(taken: list[int]) -> Iterator[tuple[int]]:
    for i in count():
        taken.append(i)
        yield (i,)


@pytest.mark.parametrize("style", [{"generator_style": True}, {"ordered": False}], ids=str)
def test_iterator_reads_items_as_their_runs_start(style: Any) -> None:
    backend, taken = ManualMock(), list[int]()
    results = iter(item.run_batch(endless(taken), backend=backend, concurrency=3, **style))
    finisher = backend.finish_once_waiting(3)
    assert next(results).index == 0
    finisher.join(10)
    wait_until(lambda: len(backend.waiting) == 3, "the run after the first")
    assert taken == [0, 1, 2, 3]
    results.close()  # type: ignore[attr-defined]


def test_iterator_reads_no_further_than_the_states_that_it_may_keep(
    monkeypatch: pytest.MonkeyPatch, mock: bn.Mock
) -> None:
    monkeypatch.setattr(batch, "MAX_AHEAD", 5)
    taken: list[int] = []
    results = iter(item.run_batch(endless(taken), concurrency=2, generator_style=True))
    for i in range(20):
        assert next(results).index == i
        assert len(taken) <= i + 1 + 2 + 5
    results.close()  # type: ignore[attr-defined]
    wait_until(lambda: not any(t.name.startswith("banyan-batch") for t in threading.enumerate()), "the threads' end")


@pytest.mark.parametrize("style", [{"generator_style": True}, {"ordered": False}], ids=str)
def test_error_of_the_iterable_comes_after_the_items_before_it(style: Any, mock: bn.Mock) -> None:
    def broken() -> Iterator[tuple[int, ...]]:
        yield (0,)
        yield (1,)
        raise OSError("the socket is closed")

    results = iter(item.run_batch(broken(), **style))
    assert {next(results).index, next(results).index} == {0, 1}
    with pytest.raises(OSError, match="the socket is closed"):
        next(results)
    results = iter(item.run_batch(((i,) * i for i in (1, 2)), **style))
    assert next(results).index == 0
    with pytest.raises(TypeError, match=r"item 1 .*too many"):
        next(results)


def test_items_are_read_in_one_context(mock: bn.Mock) -> None:
    threads = set()

    def items() -> Iterator[tuple[str]]:
        token = USER.set("me")
        for _ in range(4):
            threads.add(threading.current_thread())
            yield (USER.get(),)
        USER.reset(token)

    @bn.function
    def together(s: bn.State, user: str) -> str:
        both.wait()
        return user

    both = threading.Barrier(2, timeout=20)
    states = together.run_batch(items(), generator_style=True, num_threads=2)
    assert [state.ret_value for state in states] == ["me"] * 4
    assert len(threads) == 2
    assert USER.get() == "nobody"


@pytest.mark.parametrize("n_threads", [1, 4])
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()], ids=repr)
def test_every_exception_of_the_iterable_reaches_the_caller(
    error: BaseException, n_threads: int, mock: bn.Mock
) -> None:
    def broken() -> Iterator[tuple[int]]:
        yield (0,)
        raise error

    results = iter(item.run_batch(broken(), generator_style=True, num_threads=n_threads))
    assert next(results).index == 0
    with pytest.raises(type(error)):
        next(results)


@pytest.mark.parametrize("n_items", [0, 2])
def test_items_are_not_read_after_the_timeout(n_items: int) -> None:
    release, n_read = threading.Event(), [0]

    def slow() -> Iterator[tuple[int]]:
        for i in count():
            if i == n_items:
                release.wait(60)
            n_read[0] += 1
            yield (i,)

    backend = bn.Mock("late", latency=60)
    results = iter(item.run_batch(slow(), backend=backend, ordered=False, timeout=0.2, on_error="return"))
    for _ in range(n_items):
        assert isinstance(next(results).error(), bn.DeadlineExceeded)
    with pytest.raises(bn.DeadlineExceeded, match=r"the batch's timeout of 0\.2 s ran out"):
        next(results)
    release.set()
    assert n_read[0] <= n_items + 1


def test_bodies_run_in_the_callers_context(mock: bn.Mock) -> None:
    @bn.function
    def current_user(s: bn.State) -> str:
        return USER.get()

    token = USER.set("me")
    assert [state.ret_value for state in current_user.run_batch([()] * 3)] == ["me"] * 3
    USER.reset(token)


# ---- order, concurrency and limits -------------------------------------------------------------------------------


def test_unordered_results_are_yielded_as_completed() -> None:
    backend = ManualMock()
    results = iter(item.run_batch([(i,) for i in range(3)], backend=backend, ordered=False))
    finisher = backend.finish_once_waiting(3, 1)
    first = next(results)
    finisher.join(10)
    assert (first.index, first.ret_value) == (1, 1)
    backend.finish(1)
    assert next(results).index == 2
    backend.finish()
    assert [state.index for state in results] == [0]
    assert item.run("x", backend=bn.Mock("a")).index is None


@pytest.mark.parametrize("concurrency", [1, 3])
def test_concurrency_bounds_programs_in_flight(concurrency: int) -> None:
    backend = ManualMock()
    caller = threading.Thread(
        target=lambda: item.run_batch([(i,) for i in range(6)], backend=backend, concurrency=concurrency)
    )
    caller.start()
    wait_until(
        lambda: backend.finish_all() or not caller.is_alive(), "the end of the batch", seen=lambda: backend.waiting
    )
    assert backend.max_waiting <= concurrency


@pytest.mark.parametrize("value", [0, "x", 2.5])
@pytest.mark.parametrize("name", ["concurrency", "num_threads"])
def test_invalid_number_of_programs_or_threads_is_refused(name: str, value: Any, mock: bn.Mock) -> None:
    with pytest.raises(bn.BadProgram, match=f"{name} is {value!r}; it must be an int of at least 1"):
        item.run_batch([(1,)], backend=mock, **{name: value})


def test_batch_timeout_fails_unfinished_items() -> None:
    fast = {"0", "1"}
    backend = bn.Mock(lambda prompt, name: prompt, latency=lambda call: 0.0 if call.prompt in fast else 30)
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


def test_busy_body_does_not_delay_the_timeout(mock: bn.Mock) -> None:
    release, n_started = threading.Event(), [0]

    @bn.function
    def program(s: bn.State, x: int) -> int:
        n_started[0] += 1
        if x == 1:
            release.wait(60)
        return x

    start = time.monotonic()
    states = program.run_batch([(i,) for i in range(4)], timeout=0.2, num_threads=1, on_error="return")
    assert time.monotonic() - start < 10
    assert [type(state.error()) for state in states] == [type(None), *[bn.DeadlineExceeded] * 3]
    release.set()
    assert n_started[0] == 2, "no further body started"


def test_batch_budget_fails_later_items() -> None:
    backend = bn.Mock(wire.Sample("xxxx", "stop", n_tokens=4))
    states = item.run_batch([(i,) for i in range(5)], backend=backend, budget=12, num_threads=1, on_error="return")
    assert [type(state.error()) for state in states] == [*[type(None)] * 3, *[bn.BudgetExceeded] * 2]
    with pytest.raises(bn.BudgetExceeded, match="the batch's budget of 12 tokens ran out"):
        states[4]["a"]
    item.run_batch([(i,) for i in range(5)], backend=backend, budget=20)
    item.run_batch([(i,) for i in range(5)], backend=backend, opts=bn.Options(budget=4))
    with pytest.raises(bn.BatchError, match="the run's budget of 3 tokens ran out"):
        item.run_batch([(i,) for i in range(2)], backend=backend, opts=bn.Options(budget=3))
    for invalid in ({"timeout": 0}, {"budget": 0}):
        with pytest.raises(bn.BadProgram, match="bad option"):
            item.run_batch([(1,)], backend=backend, **invalid)  # type: ignore[call-overload]


def test_batch_budget_leaves_finished_items_readable() -> None:
    backend = bn.Mock(wire.Sample("xxxxxx", "stop", n_tokens=6))
    states = item.run_batch([(i,) for i in range(3)], backend=backend, budget=10, concurrency=1, on_error="return")
    assert [type(state.error()) for state in states] == [type(None), bn.BudgetExceeded, bn.BudgetExceeded]
    assert states[0].text() == "0xxxxxx"


def test_invalid_options_are_refused(mock: bn.Mock) -> None:
    with pytest.raises(bn.BadProgram):
        item.run_batch([(1,)] * 3, min_tokens=9, max_new_tokens=3)
