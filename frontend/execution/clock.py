"""Timer threads: one for deadlines and delayed answers, one that flushes programs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count


class Alarm:
    """One scheduled call."""

    __slots__ = ("_clock", "action")

    def __init__(self, clock: Clock, action: Callable[[], object]) -> None:
        self._clock = clock
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """Drop the call. Idempotent; safe in a finalizer."""
        self.action = None
        self._clock.n_cancelled += 1


class Clock:
    """A thread that calls functions at given times and sleeps in between. It starts with the first call."""

    def __init__(self, name: str = "banyan-clock") -> None:
        self._name = name
        self._due: list[tuple[float, int, Alarm]] = []
        self._numbers, self._changed = count(), threading.Condition()
        self._thread: threading.Thread | None = None
        self.n_cancelled = 0

    def call(self, when: float, action: Callable[[], object]) -> Alarm:
        """Call `action`, which neither raises nor blocks, at `when` of `time.monotonic()`; equal times in order."""
        alarm = Alarm(self, action)
        with self._changed:
            if self.n_cancelled > 100 + len(self._due) // 2:  # most alarms are cancelled long before they are due
                self._due = [entry for entry in self._due if entry[2].action is not None]
                heapify(self._due)
                self.n_cancelled = 0
            heappush(self._due, (when, next(self._numbers), alarm))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            if self._due[0][2] is alarm:
                self._changed.notify()
        return alarm

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                alarm = heappop(self._due)[2]
                action = alarm.action
            if action is not None:
                action()
            del alarm, action  # the next alarm may be far off, and these keep their objects alive


def clock() -> Clock:
    """The clock of this process."""
    return _clock


def flush_clock() -> Clock:
    """The clock that flushes programs. It is separate because a backend may run user code in `submit`."""
    return _flush_clock


def _reset() -> None:
    """Threads do not survive a fork; the child starts its own."""
    global _clock, _flush_clock
    _clock, _flush_clock = Clock(), Clock("banyan-flush")


_clock: Clock
_flush_clock: Clock
_reset()
os.register_at_fork(after_in_child=_reset)
