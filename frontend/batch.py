"""Many runs of one program at once: a few threads for the bodies, a bound on how many programs are on their way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from contextvars import copy_context
from typing import Literal

from banyan.record import Record
from banyan.running import Run
from banyan.runtime.errors import BatchError
from banyan.state import State

MAX_IN_FLIGHT = 256
"""Programs that were begun and are not finished. Bodies that never look at a value end at once, so that threads alone
would be no bound; and the server needs many at a time to share what they have in common."""

PATIENCE = 0.001
"""Seconds without a new run after which more threads are set to work."""


class Batch:
    """`n` runs; start(i) makes run i."""

    def __init__(
        self,
        n: int,
        start: Callable[[int], Run[State]],
        n_threads: int,
        title: str | None = None,
    ) -> None:
        """title: what a progress bar on stderr says; None: there is none."""
        self._start, self._title = start, title
        self._indices = iter(range(n))
        self._taking = threading.Lock()
        self._n = n
        self._results: dict[int, Future[State]] = {i: Future() for i in range(n)}
        self._slots = threading.Semaphore(MAX_IN_FLIGHT)
        self._running: dict[int, Record] = {}
        self._is_stopped = False
        self._n_begun = 0
        self._n_threads = n_threads

    def all(self, on_error: Literal["raise", "return"]) -> list[State]:
        """All states, finished, in order."""
        states = list(self.results("return"))
        if on_error == "raise":
            errors = {i: error for i, state in enumerate(states) if (error := state.error()) is not None}
            if errors:
                i, first = next(iter(errors.items()))
                message = f"{len(errors)} of {len(states)} items failed; the first is item {i}: {first}"
                raise BatchError(message, errors=errors, results=states) from first
        return states

    def results(self, on_error: Literal["raise", "return"]) -> Iterator[State]:
        """The states in order, each when it is finished. One who stops to listen stops what is still running."""
        with ExitStack() as stack:
            stack.callback(self._stop)
            if self._title is not None:
                from banyan.progress import bar  # here: it loads rich

                advance = stack.enter_context(bar(self._title, self._n))
                for result in self._results.values():
                    result.add_done_callback(lambda _: advance())
            context = copy_context()
            threading.Thread(target=context.run, args=(self._staff,), name="banyan-batch", daemon=True).start()
            for i in range(self._n):
                state = self._results[i].result()
                del self._results[i]
                if on_error == "raise" and (error := state.error()) is not None:
                    raise error
                yield state

    def _staff(self) -> None:
        """Set threads to work: one, and as long as no run begins for a moment, twice as many.

        Bodies that never look at a value need one thread, and more would only be in its way.
        """
        n_working, n_wanted, n_begun = 0, 1, -1
        while n_begun < self._n and not self._is_stopped:
            for k in range(n_working, min(n_wanted, self._n_threads)):
                # Each in a context of its own, as the caller left it.
                context, name = copy_context(), f"banyan-batch-{k}"
                threading.Thread(target=context.run, args=(self._work,), name=name, daemon=True).start()
                n_working += 1
            if n_working == self._n_threads:
                return
            n_begun = self._n_begun
            time.sleep(PATIENCE)
            if self._n_begun == n_begun and len(self._running) < MAX_IN_FLIGHT:
                n_wanted = 2 * n_working

    def _work(self) -> None:
        while True:
            self._slots.acquire()
            with self._taking:
                i = None if self._is_stopped else next(self._indices, None)
                self._n_begun += i is not None
            if i is None:
                self._slots.release()  # for the next thread, so that it ends as well
                return
            self._run(i)

    def _run(self, i: int) -> None:
        result = self._results[i]
        try:
            run = self._start(i)
        except BaseException as e:
            self._slots.release()
            result.set_exception(e)
            return
        self._running[i] = record = run.record
        if self._is_stopped:
            record.program.cancel()
        with suppress(BaseException):  # the record has it, and `state.error()` tells
            run.play()

        def settled() -> None:
            del self._running[i]
            self._slots.release()
            result.set_result(run.state)

        record.when_settled(settled)

    def _stop(self) -> None:
        self._is_stopped = True
        for record in list(self._running.values()):
            record.program.cancel()
