"""A value that comes later, at the price of a value.

A `concurrent.futures.Future` is eleven objects, a lock among them, and a batch of programs holds one per generation:
they were half of what the garbage collector had to walk. A Promise is two, and takes no lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from banyan.runtime.waiting import until

T = TypeVar("T")

_log = logging.getLogger("banyan")


class ValueFuture(Generic[T]):
    """Kept once, by `set_result` or `set_exception`, from any thread; the rest is as a Future has it.

    No lock: who keeps it sets the outcome and *then* looks for callbacks, who adds one adds it and *then* looks for the
    outcome, so that one of the two always sees the other.
    """

    __slots__ = ("_callbacks", "_error", "_is_kept", "_value")

    def __init__(self) -> None:
        self._is_kept = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[ValueFuture[T]], object]] = []

    def set_result(self, value: T) -> None:
        self._value = value
        self._keep()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._keep()

    def _keep(self) -> None:
        self._is_kept = True
        self._tell()

    def _tell(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread told the last one
                return
            try:
                callback(self)
            except Exception:
                _log.exception("a callback of a promise raised")

    def done(self) -> bool:
        return self._is_kept

    def add_done_callback(self, callback: Callable[[ValueFuture[T]], object]) -> None:
        """Call `callback` with this promise once it is kept, on whatever thread keeps it; at once, if that is so
        already. What it raises is logged."""
        self._callbacks.append(callback)
        if self._is_kept:
            self._tell()

    def wait(self, timeout: float | None = None) -> None:
        """Until it is kept. TimeoutError, where that takes longer than `timeout` seconds."""
        if self._is_kept:
            return
        kept = threading.Event()
        self.add_done_callback(lambda _: kept.set())
        if not until(kept, timeout):
            raise TimeoutError(f"not known after {timeout:g} s")

    def result(self, timeout: float | None = None) -> T:
        """What it was kept with; waits for it."""
        self.wait(timeout)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]  # None stands for nothing yet

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that it was kept with, if it was one; waits for it."""
        self.wait(timeout)
        return self._error
