"""A pool of daemon threads for bodies and tools, with a limit. Threads start when needed and end when idle."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context

N_THREADS = 64
"""The largest number of bodies that run at the same time. A body that is started by another body of the pool (one
program streams another) gets a thread beyond this limit: the caller keeps its own thread while it waits, so without the
extra thread a full pool would deadlock."""

LINGER = 2.0
"""Seconds that an idle thread waits for work before it ends."""


class ThreadPool:
    """Runs functions on daemon threads. `run` never blocks."""

    def __init__(self, n_threads: int = N_THREADS, name: str = "banyan-body") -> None:
        self._limit, self._name = n_threads, name
        self._is_inside: ContextVar[bool] = ContextVar(f"{name}-inside", default=False)
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # a forked child has no threads of its parent

    def _reset(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._max_threads, self._n_threads, self._n_idle = self._limit, 0, 0

    def run(self, work: Callable[[], None]) -> None:
        """Run `work`, which must not raise, on a thread of the pool, in the caller's context."""
        is_inside, context = self._is_inside.get(), copy_context()
        context.run(self._is_inside.set, True)
        with self._changed:
            add = self._queue.appendleft if is_inside else self._queue.append
            add(lambda: context.run(work))
            if self._n_idle >= len(self._queue):
                self._changed.notify()
            elif is_inside or self._n_threads < self._max_threads:
                self._start_thread()

    def lend(self, n: int) -> None:
        """Change the limit of threads by `n`. Used to raise it while threads are stuck in tools that timed out."""
        with self._changed:
            self._max_threads += n
            if self._n_idle < len(self._queue) and self._n_threads < self._max_threads:
                self._start_thread()

    def _start_thread(self) -> None:
        self._n_threads += 1
        threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._n_idle += 1
                has_work = self._changed.wait_for(lambda: self._queue, LINGER)
                self._n_idle -= 1
                if not has_work:
                    self._n_threads -= 1
                    return
                work = self._queue.popleft()
            work()
            del work  # this variable would keep its program alive until the next work comes


class SerialQueue:
    """Runs functions on threads of a pool, one after another, in the context in which the queue was made."""

    def __init__(self, threads: ThreadPool) -> None:
        self._threads, self._context = threads, copy_context()
        self._lock = threading.Lock()
        self._queue: deque[Callable[[], None]] = deque()
        self.is_running = False
        """Whether a function runs or waits."""

    def run(self, work: Callable[[], None]) -> None:
        """Run `work`, which must not raise, after the functions of earlier calls."""
        with self._lock:
            self._queue.append(work)
            if self.is_running:
                return
            self.is_running = True
        self._context.copy().run(self._threads.run, self._run_all)

    def _run_all(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self.is_running = False
                    return
                work = self._queue.popleft()
            work()


def body_threads() -> ThreadPool:
    """The pool of this process that runs bodies."""
    return _body_threads


def item_threads() -> ThreadPool:
    """The pool of this process that reads the items of async batches, one thread each. It has no limit, because an
    iterable may keep its thread for ever, also when its batch has ended."""
    return _item_threads


_body_threads = ThreadPool()
_item_threads = ThreadPool(n_threads=sys.maxsize, name="banyan-items")
