"""How many programs a client may have on its server: who is one too many waits here, in the client's own memory."""

from __future__ import annotations

import threading
from collections import deque

from banyan.runtime.client.program_futures import ProgramFutures


class Admission:
    """Of one connection. most: programs at a time; 0: as many as there are."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._open: dict[int, ProgramFutures] = {}  # by number: those that the server has, as far as we know
        self._held: deque[ProgramFutures] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, inbox: ProgramFutures) -> bool:
        """Whether the server has room for one more program. Else `inbox.admitted` is called when it has."""
        with self._lock:
            if self._held or not self._has_room():
                self._held.append(inbox)
                return False
            self._open[inbox.number] = inbox
            return True

    def leave(self, number: int) -> None:
        """A program is over, if it was here: others have its room. Idempotent."""
        admitted: list[ProgramFutures] = []
        with self._lock:
            if self._open.pop(number, None) is None:
                return
            while self._held and self._has_room():
                admitted.append(self._held.popleft())
                self._open[admitted[-1].number] = admitted[-1]
        for inbox in admitted:
            inbox.admitted()

    def close(self) -> None:
        """The connection is gone."""
        with self._lock:
            self._open.clear()
            self._held.clear()

    def _has_room(self) -> bool:
        """Where none of those that are there will end by itself, nobody waits for that: the server says what there is
        too much of."""
        if not self._most or len(self._open) < self._most:
            return True
        return not any(inbox.will_end for inbox in self._open.values())
