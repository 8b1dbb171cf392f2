"""Runs long work, such as the encoding of prompts, on threads that all clients share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor


class FairThreads:
    """Threads that serve clients in turn, one piece of work each, so that one client's queue does not delay
    another's."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = {}  # the client whose turn is next is first
        self._n_running = 0

    def submit(self, client: Hashable, work: Callable[[], None]) -> None:
        """Run `work`, which must not raise, when the client has its turn."""
        with self._lock:
            self._waiting.setdefault(client, deque()).append(work)
        self._threads.submit(self._run_next)

    def _run_next(self) -> None:
        with self._lock:
            client = next(iter(self._waiting))
            pieces = self._waiting.pop(client)
            work = pieces.popleft()
            if pieces:
                self._waiting[client] = pieces  # after the clients that wait already
            self._n_running += 1
        work()
        with self._lock:
            self._n_running -= 1

    @property
    def is_busy(self) -> bool:
        """Whether there is unfinished work."""
        return bool(self._waiting or self._n_running)
