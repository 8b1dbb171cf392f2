"""ValueFuture: results, errors, waiting threads and callbacks."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future

import pytest

from banyan.runtime.future import ValueFuture
from waits import wait_until


def test_future_is_completed_with_a_value_or_an_error() -> None:
    with_value, with_error = ValueFuture[int](), ValueFuture[int]()
    assert not with_value.done()
    with_value.set_result(7)
    with_error.set_exception(LookupError("gone"))
    assert with_value.done()
    assert (with_value.result(), with_value.exception()) == (7, None)
    with pytest.raises(LookupError, match="gone"):
        with_error.result()
    assert isinstance(with_error.exception(), LookupError)


def test_none_is_a_valid_result() -> None:
    future = ValueFuture[None]()
    future.set_result(None)
    assert future.done()
    assert future.result() is None


def test_wait_times_out() -> None:
    future = ValueFuture[int]()
    for read in (future.result, future.exception):
        with pytest.raises(TimeoutError, match=r"0\.01"):
            read(0.01)
    future.set_result(1)
    assert future.result(0) == 1


def test_callbacks_run_once_before_and_after_completion() -> None:
    future = ValueFuture[int]()
    calls: list[tuple[str, int]] = []
    future.add_done_callback(lambda p: calls.append(("before", p.result())))
    future.set_result(1)
    future.add_done_callback(lambda p: calls.append(("after", p.result())))
    future.add_done_callback(lambda p: calls.append(("last", p.result())))
    assert calls == [("before", 1), ("after", 1), ("last", 1)]


def test_callback_may_add_another() -> None:
    future = ValueFuture[int]()
    calls: list[str] = []

    def first(p: ValueFuture[int]) -> None:
        p.add_done_callback(lambda _: calls.append("second"))
        calls.append("first")

    future.add_done_callback(first)
    future.set_result(1)
    assert calls == ["second", "first"]


def test_raising_callback_is_logged_and_others_run(caplog: pytest.LogCaptureFixture) -> None:
    future = ValueFuture[int]()
    calls: list[int] = []
    future.add_done_callback(lambda p: [][p.result()])
    future.add_done_callback(lambda p: calls.append(p.result()))
    future.set_result(1)
    assert calls == [1]
    assert "IndexError" in caplog.text


def test_all_waiting_threads_get_the_result() -> None:
    for round in range(200):
        future = ValueFuture[int]()
        results: list[int] = []
        calls: list[int] = []

        def read(future: ValueFuture[int] = future, results: list[int] = results, calls: list[int] = calls) -> None:
            future.add_done_callback(lambda p: calls.append(p.result()))
            results.append(future.result(20))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads[:2]:
            thread.start()
        setter = threading.Thread(target=future.set_result, args=(round,))
        setter.start()
        for thread in threads[2:]:
            thread.start()
        for thread in (*threads, setter):
            thread.join(20)
        assert results == [round] * 4
        wait_until(lambda calls=calls: len(calls) == 4, "four calls")
        assert calls == [round] * 4


def test_future_uses_fewer_objects_than_concurrent_future() -> None:
    def count_objects(kind: type) -> int:
        gc.collect()
        before = len(gc.get_objects())
        futures = [kind() for _ in range(100)]
        return (len(gc.get_objects()) - before) // len(futures)

    gc.disable()
    try:
        assert count_objects(ValueFuture) <= 2 < count_objects(Future)
    finally:
        gc.enable()
