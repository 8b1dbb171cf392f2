"""Decides how many replicas a fleet should have, by its load. Pure: the clock is an argument.

    scaler = LoadScaler(least=1, most=4)
    scaler.started(seconds=20.0)                     # what the last start took
    change = scaler.decide(now, FleetLoad(n_ready, n_coming, queued_seconds, n_done, n_missed))

The unit of time is the duration of a replica's start, as in the ski-rental problem. A replica is added after programs
have waited for one such duration. A replica is removed after the fleet could have done without it for RUN such
durations. So an engine spends at most 1 / (1 + RUN) of its life starting, whatever the load does.

A removal may be a mistake, since a short queue does not tell how busy the replicas are. If a replica has to be added
again soon, the time before the next removal doubles, up to a factor of MOST.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

RUN = 10.0
"""A replica is removed after it was useless for this many times the duration of a start."""
SPARE = 0.1
"""A replica counts as useless if, without it, the queue of each other replica would take at most this share of the
duration of a start."""
MISSES = 0.1
"""The share of requests and programs that may miss their service level before programs count as waiting."""
MOST = 16.0
"""The largest factor by which undone removals lengthen the time before the next removal."""
FASTEST = 4.0
"""An engine is added after at least 1 / FASTEST of the seconds of a start, however long the queue is."""
LEAST_START = 2.0
"""The duration of a start counts as at least this many seconds: over shorter times, the length of a queue is noise."""


class FleetLoad(NamedTuple):
    """The load of a fleet.

    n_ready: replicas that take programs. n_coming: replicas that are starting. queued_seconds: seconds of work that is
    queued or under way, summed over all replicas. n_done: how many requests and programs with a service level have
    ended since the server started. n_missed: how many of these missed their service level.
    """

    n_ready: int
    n_coming: int
    queued_seconds: float
    n_done: int = 0
    n_missed: int = 0


class LoadScaler:
    """Decides when to add and to remove a replica. least, most: the minimum and maximum number of replicas."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.start_seconds = LEAST_START
        self._ended: deque[tuple[float, int, int]] = deque()  # (time, n_done, n_missed) of earlier calls
        self._waited = self._unused = 0.0  # seconds
        self._patience = 1.0  # factor on the time before a removal; grows when removals are undone
        # when the last replica was removed, and whether that was undone soon
        self._removed, self._is_missed = -1e9, False

    def started(self, seconds: float) -> None:
        """Record that a replica has started, which took `seconds`."""
        self.start_seconds = max(LEAST_START, seconds)

    def decide(self, now: float, load: FleetLoad) -> int:
        """Returns 1 to add a replica, -1 to remove one, 0 for neither. Must be called about once a second. now: seconds
        on any clock."""
        seconds, n = now - self._ended[-1][0] if self._ended else 0.0, load.n_ready
        self._ended.append((now, load.n_done, load.n_missed))
        while now - self._ended[0][0] > self.start_seconds and len(self._ended) > 2:
            self._ended.popleft()
        if n == 0:
            return 0
        _, n_done, n_missed = self._ended[0]  # the counts of one start's duration ago
        misses = load.n_missed - n_missed > MISSES * (load.n_done - n_done)
        late = load.queued_seconds / n / self.start_seconds  # the queue of a replica, in starts
        if late > 1 or misses:
            self._waited += seconds * min(FASTEST, max(1.0, late))
        else:
            self._waited = max(0.0, self._waited - seconds)
        fits = n > 1 and load.queued_seconds / (n - 1) < SPARE * self.start_seconds
        self._unused = self._unused + seconds if fits and not misses else 0.0
        if n + load.n_coming < self.least:
            return 1
        if load.n_coming:  # wait for the effect of that replica
            return 0
        if self._waited >= self.start_seconds and n < self.most:
            self._waited = self._unused = 0.0
            if now - self._removed < 2 * self._patience * RUN * self.start_seconds:
                self._patience, self._is_missed = min(MOST, 2 * self._patience), True
            return 1
        if self._unused >= self._patience * RUN * self.start_seconds and n > self.least:
            if not self._is_missed:
                self._patience = max(1.0, self._patience / 2)
            self._waited = self._unused = 0.0
            self._removed, self._is_missed = now, False
            return -1
        return 0
