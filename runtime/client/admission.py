"""Limits how many programs a client has on its server at a time. Programs above the limit wait in the client."""

from __future__ import annotations

import threading
from collections import OrderedDict

from banyan.runtime.client.program_futures import ProgramFutures


class Admission:
    """The running and waiting programs of one connection. limit: programs on the server at a time; 0: no limit."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._running: dict[int, ProgramFutures] = {}
        self._waiting: OrderedDict[int, ProgramFutures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    def admit(self, program: ProgramFutures) -> bool:
        """Whether the program may be sent now. If not, its `admitted` is called once it may."""
        with self._lock:
            if self._waiting or not self._has_room():
                self._waiting[program.number] = program
                return False
            self._running[program.number] = program
            return True

    def leave(self, number: int) -> None:
        """A program has ended. Admit waiting ones in its place. Idempotent."""
        admitted: list[ProgramFutures] = []
        with self._lock:
            self._waiting.pop(number, None)
            if self._running.pop(number, None) is None:
                return
            while self._waiting and self._has_room():
                _, program = self._waiting.popitem(last=False)
                self._running[program.number] = program
                admitted.append(program)
        for program in admitted:
            program.admitted()

    def close(self) -> None:
        """The connection is lost."""
        with self._lock:
            self._running.clear()
            self._waiting.clear()

    def _has_room(self) -> bool:
        """If no running program will end by itself, waiting is useless: send the program and let the server refuse."""
        if not self._limit or len(self._running) < self._limit:
            return True
        return not any(program.will_end for program in self._running.values())
