"""The work of clients that waits for the server's loop. Clients are served in turn, with equal shares of its time.

Work is done in steps of at most a few milliseconds. This is deficit round robin: in each round a client gets QUANTUM
seconds. If its work takes longer, the excess is taken from its next rounds. Bytes count as time too, because long texts
are encoded on threads that all clients share.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from banyan.runtime.server.telemetry.loop_times import LoopTimes

Client = bytes

SLICE = 0.002
"""Seconds of work after which the loop looks at its sockets again."""
QUANTUM = 0.001
BYTE = 2e-9
"""Seconds that a byte of a message costs its client."""
MESSAGE = 128
"""Bytes that are counted for each waiting message in addition to its length."""


class QueuedWork(NamedTuple):
    """Work of a client.

    kind: what LoopTimes records its time under. steps: an iterator; each `next` does one step of the work."""

    kind: str
    steps: Iterator[None]


class _ClientBacklog:
    """The waiting work of one client.

    credit: the seconds of loop time that the client has left in this round. If its work took longer than that, the
    credit is negative, and the excess is taken from its next rounds."""

    __slots__ = ("credit", "items", "n_bytes")

    def __init__(self) -> None:
        self.items: deque[QueuedWork | bytes] = deque()
        self.n_bytes = 0
        self.credit = 0.0


class WorkQueue:
    """The messages of all clients that are not handled yet, and work that has begun.

    begin: makes the QueuedWork of a message; must not raise. max_bytes: `add` refuses a message of a client
    whose waiting messages have more bytes than this.
    """

    def __init__(self, begin: Callable[[Client, bytes], QueuedWork], times: LoopTimes, max_bytes: int) -> None:
        self._begin, self._times, self._max_bytes = begin, times, max_bytes
        self._clients: dict[Client, _ClientBacklog] = {}
        self._turns: deque[Client] = deque()
        self._until = math.inf

    def __bool__(self) -> bool:
        """Whether any message or work waits."""
        return bool(self._clients)

    def is_late(self) -> bool:
        """Whether the time slice is over, so that work should stop soon and the loop can look at its sockets."""
        return self._times.clock() >= self._until

    def start_slice(self) -> None:
        """Start a time slice of SLICE seconds, after which `is_late` is True."""
        self._until = self._times.clock() + SLICE

    def add(self, client: Client, work: QueuedWork | bytes) -> bool:
        """Add work, or a message, to the end of the client's queue. Returns False, and adds nothing, if too many bytes
        of the client wait already."""
        own = self._clients.get(client)
        if own is None:
            own = self._clients[client] = _ClientBacklog()
            self._turns.append(client)
        if isinstance(work, bytes):
            if own.n_bytes > self._max_bytes:
                return False
            own.n_bytes += len(work) + MESSAGE
        own.items.append(work)
        return True

    def drop_messages(self, client: Client) -> list[bytes]:
        """Forget the waiting messages of a client, and return them. Work that was begun continues."""
        if (own := self._clients.get(client)) is None:
            return []
        dropped = [item for item in own.items if isinstance(item, bytes)]
        own.items = deque(item for item in own.items if not isinstance(item, bytes))
        own.n_bytes = 0
        return dropped

    def run(self) -> None:
        """Do waiting work for SLICE seconds."""
        now = self._times.clock()
        end = now + SLICE
        while self._turns and now < end:
            client = self._turns.popleft()
            own = self._clients[client]
            own.credit = min(own.credit, 0.0) + QUANTUM
            while own.items and own.credit > 0 and now < end:
                item = own.items.popleft()
                self._until = min(end, now + own.credit)
                start = now
                if isinstance(item, bytes):
                    own.n_bytes -= len(item) + MESSAGE
                    own.credit -= len(item) * BYTE
                    item = self._begin(client, item)
                while not (is_done := next(item.steps, item) is item):  # at least one step, however short the time is
                    now = self._times.clock()
                    if now >= self._until:
                        break
                now = self._times.clock()
                own.credit -= now - start
                self._times.note(item.kind, now - start)
                if not is_done:
                    own.items.appendleft(item)
            if own.items:
                self._turns.append(client)
            else:
                del self._clients[client]
