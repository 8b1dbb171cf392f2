"""Timer threads: one for deadlines and delayed answers, one that flushes records of programs."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

_logger = logging.getLogger("banyan")

FLUSH_AFTER = 0.001
"""Seconds from the first unsent gen of a program to the flush by the thread."""


class Alarm:
    """One scheduled call."""

    __slots__ = ("_clock", "action")

    def __init__(self, clock: Clock, action: Callable[[], object]) -> None:
        self._clock = clock
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """Cancel the call. Takes no lock, so a finalizer may use it."""
        self.action = None
        self._clock.n_cancelled += 1


class Clock:
    """A thread that calls functions at given times and sleeps in between. The first `call` starts the thread."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Alarm]] = []
        self._numbers, self._changed = count(), threading.Condition()
        self._thread: threading.Thread | None = None
        self.n_cancelled = 0

    def call(self, when: float, action: Callable[[], object]) -> Alarm:
        """Call `action` at the time `when` of `time.monotonic()`. `action` must neither raise nor block. Calls for the
        same time happen in the order in which they were made."""
        alarm = Alarm(self, action)
        with self._changed:
            if self.n_cancelled > 100 + len(self._due) // 2:  # most alarms are cancelled long before they are due
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
                    # without `min`, the wait for an endless timeout raises and ends the thread
                    wait = min(self._due[0][0] - time.monotonic(), threading.TIMEOUT_MAX) if self._due else None
                    self._changed.wait(wait)
                alarm = heappop(self._due)[2]
                action = alarm.action
            if action is not None:
                try:
                    action()
                except BaseException:  # without this thread, nothing in the process would time out any more
                    _logger.exception("a function that the clock called raised")
            del alarm, action  # these variables would keep objects alive until the next alarm, which may be far off


class LateRecord(Protocol):
    """What a Flusher needs of a ProgramRecord: `flush_late`, which sends the recorded ops."""

    def flush_late(self) -> None: ...


class Flusher:
    """A thread that calls `flush_late` of each added record, FLUSH_AFTER to 2 * FLUSH_AFTER seconds after `add`. While
    records wait, the thread sleeps FLUSH_AFTER seconds at a time. After each sleep, it flushes the records that were
    added before the sleep. An alarm for each record instead would be a tenth of a program's cost.

    The flusher has only weak references to the records. The first `add` starts the thread.
    """

    def __init__(self) -> None:
        self._records: deque[weakref.ref[LateRecord]] = deque()
        self._starting, self._added = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_idle = True

    def add(self, record: LateRecord) -> None:
        self._records.append(weakref.ref(record))
        if self._is_idle:
            self._wake()

    def _wake(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="banyan-flush", daemon=True)
                self._thread.start()
        self._added.set()

    def _run(self) -> None:
        while True:
            self._added.clear()
            self._is_idle = True  # set before it looks for records: an `add` after that wakes it
            if not self._records:
                self._added.wait()
            self._is_idle = False
            while n_records := len(self._records):
                time.sleep(FLUSH_AFTER)
                for _ in range(n_records):
                    if (record := self._records.popleft()()) is not None:
                        record.flush_late()
                    del record  # this variable would keep it alive until the next record comes


def clock() -> Clock:
    """The clock of this process."""
    return _clock


def flusher() -> Flusher:
    """The flusher of this process. It has its own thread, not the clock's: a flush calls the backend's `submit`, which
    may run user code, and this code would delay the functions that the clock has to call."""
    return _flusher


def _reset() -> None:
    """Create the clock and the flusher. A forked child calls this too, because it has no threads of its parent."""
    global _clock, _flusher
    _clock, _flusher = Clock(), Flusher()


_clock: Clock
_flusher: Flusher
_reset()
os.register_at_fork(after_in_child=_reset)
