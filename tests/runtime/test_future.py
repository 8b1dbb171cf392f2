"""Promises: as futures, to those who wait on threads and to those who are called back."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future

import pytest

from banyan.runtime.future import ValueFuture
from waits import wait_until


def test_it_is_kept_with_a_value_or_an_error() -> None:
    one, two = ValueFuture[int](), ValueFuture[int]()
    assert not one.done()
    one.set_result(7)
    two.set_exception(LookupError("gone"))
    assert one.done()
    assert (one.result(), one.exception()) == (7, None)
    with pytest.raises(LookupError, match="gone"):
        two.result()
    assert isinstance(two.exception(), LookupError)


def test_none_is_a_value_too() -> None:
    promise = ValueFuture[None]()
    promise.set_result(None)
    assert promise.done()
    assert promise.result() is None


def test_who_waits_too_long_is_told() -> None:
    promise = ValueFuture[int]()
    for look in (promise.result, promise.exception):
        with pytest.raises(TimeoutError, match=r"0\.01"):
            look(0.01)
    promise.set_result(1)
    assert promise.result(0) == 1


def test_callbacks_are_called_once_whenever_they_are_added() -> None:
    promise = ValueFuture[int]()
    seen: list[tuple[str, int]] = []
    promise.add_done_callback(lambda p: seen.append(("before", p.result())))
    promise.set_result(1)
    promise.add_done_callback(lambda p: seen.append(("after", p.result())))
    promise.add_done_callback(lambda p: seen.append(("last", p.result())))
    assert seen == [("before", 1), ("after", 1), ("last", 1)]


def test_a_callback_may_add_another() -> None:
    promise = ValueFuture[int]()
    seen: list[str] = []

    def first(p: ValueFuture[int]) -> None:
        p.add_done_callback(lambda _: seen.append("second"))
        seen.append("first")

    promise.add_done_callback(first)
    promise.set_result(1)
    assert seen == ["second", "first"]


def test_a_callback_that_raises_is_logged_and_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    promise = ValueFuture[int]()
    seen: list[int] = []
    promise.add_done_callback(lambda p: [][p.result()])
    promise.add_done_callback(lambda p: seen.append(p.result()))
    promise.set_result(1)
    assert seen == [1]
    assert "IndexError" in caplog.text


def test_many_threads_wait_and_none_is_forgotten() -> None:
    for round in range(200):
        promise = ValueFuture[int]()
        got: list[int] = []
        calls: list[int] = []

        def look(promise: ValueFuture[int] = promise, got: list[int] = got, calls: list[int] = calls) -> None:
            promise.add_done_callback(lambda p: calls.append(p.result()))
            got.append(promise.result(20))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads[:2]:
            thread.start()
        keeper = threading.Thread(target=promise.set_result, args=(round,))
        keeper.start()
        for thread in threads[2:]:
            thread.start()
        for thread in (*threads, keeper):
            thread.join(20)
        assert got == [round] * 4
        wait_until(lambda calls=calls: len(calls) == 4, "four calls")
        assert calls == [round] * 4


def test_it_is_lighter_than_a_future() -> None:
    def weight(kind: type) -> int:
        gc.collect()
        before = len(gc.get_objects())
        kept = [kind() for _ in range(100)]
        return (len(gc.get_objects()) - before) // len(kept)

    gc.disable()
    try:
        assert weight(ValueFuture) <= 2 < weight(Future)
    finally:
        gc.enable()
