"""The threads on which bodies of programs run that nobody lends one to: a bounded number, made when they are needed."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context

N_THREADS = 64
"""Bodies that run at once at most. One that runs inside another (a program that streams a program) comes on top: its
caller holds a thread and waits for it, and would wait for ever if all threads were held so."""

LINGER = 2.0
"""Seconds that a thread waits for more work before it ends."""


class ThreadPool:
    """Daemon threads. `run` never waits."""

    def __init__(self, n_threads: int = N_THREADS, name: str = "banyan-body") -> None:
        self._n_most, self._name = n_threads, name
        self._is_inside: ContextVar[bool] = ContextVar(f"{name}-inside", default=False)
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._n_threads = self._n_idle = 0

    def run(self, work: Callable[[], None]) -> None:
        """Run `work`, which must not raise, on a thread, in the caller's context."""
        is_inside, context = self._is_inside.get(), copy_context()

        def go() -> None:
            self._is_inside.set(True)
            work()

        with self._changed:
            add = self._work.appendleft if is_inside else self._work.append
            add(lambda: context.run(go))
            if self._n_idle >= len(self._work):
                self._changed.notify()
            elif is_inside or self._n_threads < self._n_most:
                self._add()

    def lend(self, n: int) -> None:
        """`n` more threads at most, in the place of some that are stuck; fewer, once they are not."""
        with self._changed:
            self._n_most += n
            if self._n_idle < len(self._work) and self._n_threads < self._n_most:
                self._add()

    def _add(self) -> None:
        self._n_threads += 1
        threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._n_idle += 1
                is_there = self._changed.wait_for(lambda: self._work, LINGER)
                self._n_idle -= 1
                if not is_there:
                    self._n_threads -= 1
                    return
                work = self._work.popleft()
            work()
            del work  # it holds the program: the next one may be long in coming


def bodies() -> ThreadPool:
    """The one pool of this process."""
    return _bodies


def _renew() -> None:
    global _bodies
    _bodies = ThreadPool()


_bodies = ThreadPool()
os.register_at_fork(after_in_child=_renew)  # threads do not follow into a forked child
