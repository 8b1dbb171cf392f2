"""The calls that the server's loop makes at a later time."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Timer:
    """One scheduled call."""

    __slots__ = ("action", "timers")

    def __init__(self, timers: Timers, action: Callable[[], None]) -> None:
        self.timers = timers
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Do not make the call. Idempotent."""
        if self.action is not None:
            self.action = None
            self.timers.cancelled()


class Timers:
    """Scheduled calls. An event loop calls `run`, which makes the calls that are due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._heap: list[tuple[float, int, Timer]] = []
        self._old: list[tuple[float, int, Timer]] = []  # the rest of a heap from which `run` removes cancelled calls
        self._numbers = count()  # keeps calls of the same time in order
        self._n_cancelled = 0

    def call(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Call `action` after `seconds`."""
        timer = Timer(self, action)
        heappush(self._heap, (self.now() + seconds, next(self._numbers), timer))
        return timer

    def cancelled(self) -> None:
        """Count a cancelled timer. Most timers are cancelled long before they are due, so `run` cleans the heap from
        time to time."""
        self._n_cancelled += 1
        if self._n_cancelled > 100 + len(self._heap) // 2 and not self._old:
            self._heap, self._old = self._old, self._heap
            self._n_cancelled = 0

    def wait(self, timeout: float) -> float:
        """Seconds until the next call is due, at most `timeout`."""
        if self._old:
            return 0.0
        return max(0.0, min(timeout, self._heap[0][0] - self.now())) if self._heap else timeout

    def run(self, is_late: Callable[[], bool] = lambda: False) -> None:
        """Make the calls that are due, until `is_late` returns True."""
        while self._old:
            entry = self._old.pop()
            if entry[2].action is not None:
                heappush(self._heap, entry)
            if is_late():
                return
        while self._heap and self._heap[0][0] <= self.now() and not is_late():
            timer = heappop(self._heap)[2]
            if timer.action is None:
                self._n_cancelled -= 1
            else:
                action, timer.action = timer.action, None
                try:
                    action()
                except Exception:  # a bug of ours must not end the loop
                    traceback.print_exc()
