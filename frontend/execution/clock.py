"""One thread per process that does things at their time: deadlines, and answers that are to come late."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count


class Alarm:
    """One call to come. `cancel` takes it back."""

    __slots__ = ("_clock", "action")

    def __init__(self, clock: Clock, action: Callable[[], object]) -> None:
        self._clock = clock
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """Idempotent; safe in a finalizer."""
        self.action = None
        self._clock.n_cancelled += 1


class Clock:
    """Asleep while nothing is due."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Alarm]] = []
        self._numbers, self._changed = count(), threading.Condition()
        self._thread: threading.Thread | None = None
        self.n_cancelled = 0

    def call(self, when: float, action: Callable[[], object]) -> Alarm:
        """Call `action`, which must not raise or wait, at `when` of `time.monotonic`. Those of one time keep order."""
        alarm = Alarm(self, action)
        with self._changed:
            if self.n_cancelled > 100 + len(self._due) // 2:  # most are taken back long before their time
                self._due = [entry for entry in self._due if entry[2].action is not None]
                heapify(self._due)
                self.n_cancelled = 0
            heappush(self._due, (when, next(self._numbers), alarm))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="banyan-clock", daemon=True)
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
            del alarm, action  # they hold what they act on: the next one may be long in coming


def clock() -> Clock:
    """That of this process."""
    return _clock


def _renew() -> None:
    global _clock
    _clock = Clock()


_clock = Clock()
os.register_at_fork(after_in_child=_renew)  # threads do not follow into a forked child
