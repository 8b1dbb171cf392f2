"""A small future: it consists of two objects and has no lock. A `concurrent.futures.Future` consists of eleven objects.
A batch of programs holds a future for each generation, and such futures were half of all objects that the garbage
collector traversed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from banyan.runtime.waiting import until

T = TypeVar("T")

_log = logging.getLogger("banyan")


class ValueFuture(Generic[T]):
    """A future with the interface of concurrent.futures.Future. Any thread may set it, once.

    No lock is needed, because list.append and list.pop are atomic. The setter stores the result before it looks for
    callbacks. `add_done_callback` adds the callback before it looks for a result. So at least one of the two threads
    sees both the result and the callback. The thread that pops a callback from the list calls it, so each callback is
    called once.
    """

    __slots__ = ("_callbacks", "_error", "_is_done", "_value")

    def __init__(self) -> None:
        self._is_done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[ValueFuture[T]], object]] = []

    def set_result(self, value: T) -> None:
        self._value = value
        self._is_done = True
        self._run_callbacks()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._is_done = True
        self._run_callbacks()

    def fail_in_forked_child(self, error: BaseException) -> None:
        """Set the error without calling the callbacks. For a forked child process: the callbacks belong to threads and
        event loops of its parent."""
        self._error = error
        self._is_done = True

    def _run_callbacks(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread took the last one
                return
            try:
                callback(self)
            except Exception:
                _log.exception("a callback of a future raised")

    def done(self) -> bool:
        return self._is_done

    def add_done_callback(self, callback: Callable[[ValueFuture[T]], object]) -> None:
        """Call `callback(self)` when the future is done, on the thread that sets the future; immediately, if the future
        is done already. Exceptions of the callback are logged."""
        self._callbacks.append(callback)
        if self._is_done:
            self._run_callbacks()

    def wait(self, timeout: float | None = None) -> None:
        """Block until the future is done. TimeoutError: the future was not done within `timeout` seconds."""
        if self._is_done:
            return
        done = threading.Event()
        self.add_done_callback(lambda _: done.set())
        if not until(done, timeout):
            raise TimeoutError(f"not known after {timeout:g} s")

    def result(self, timeout: float | None = None) -> T:
        """Wait, then return the value or raise the error. TimeoutError: the future was not done within `timeout`
        seconds."""
        self.wait(timeout)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]  # Any, because there is no value before it is set

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, then return the error; None if the future has a value. TimeoutError: the future was not done within
        `timeout` seconds."""
        self.wait(timeout)
        return self._error


class _AllDone:
    """Calls `callback` once all futures are done. This is a class instead of a nested function: a function that refers
    to itself forms a reference cycle, which only the garbage collector frees."""

    __slots__ = ("_callback", "_pending")

    def __init__(self, futures: Iterable[ValueFuture[Any]], callback: Callable[[], object]) -> None:
        self._pending, self._callback = list(futures), callback

    def __call__(self, _: object = None) -> None:
        while self._pending:
            if not self._pending[-1].done():
                self._pending[-1].add_done_callback(self)
                return
            self._pending.pop()
        self._callback()


def when_all_done(futures: Iterable[ValueFuture[Any]], callback: Callable[[], object]) -> None:
    """Call `callback` once all `futures` are done: immediately, or on the thread that completes the last future."""
    _AllDone(futures, callback)()
