"""Many runs of one program at once: a few threads for the bodies, a bound on how many programs are on their way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from banyan.execution.program_run import ProgramRun
from banyan.execution.run_limits import GRACE, BatchLimits
from banyan.lang.state import State
from banyan.runtime.errors import BatchError, DeadlineExceeded
from banyan.runtime.waiting import naps

if TYPE_CHECKING:
    from banyan.execution.progress import Bar

MAX_IN_FLIGHT = 256
"""Programs that were begun and are not finished. Bodies that never look at a value end at once, so that threads alone
would be no bound; and the server needs many at a time to share what they have in common."""

PATIENCE = 0.001
"""Seconds without a new run after which more threads are set to work."""

OnError = Literal["raise", "return"]


class BatchRun:
    """`n` runs; start(i, limits) makes run i."""

    def __init__(
        self,
        n: int,
        start: Callable[[int, BatchLimits], ProgramRun[State]],
        n_threads: int,
        *,
        concurrency: int | None = None,
        limits: tuple[Any, ...] = (None, None),
        title: str | None = None,
    ) -> None:
        """limits: those of BatchLimits. title: what a progress bar on stderr says; None: there is
        none."""
        self._start, self._title, self._given = start, title, limits
        self._indices = iter(range(n))
        self._taking = threading.Lock()
        self._n = n
        self._finished: SimpleQueue[tuple[int, State | BaseException]] = SimpleQueue()
        self._slots = threading.Semaphore(MAX_IN_FLIGHT if concurrency is None else concurrency)
        self._running: dict[int, ProgramRun[State]] = {}
        self._is_stopped = False
        self._bar: Bar | None = None
        self._n_begun = 0
        self._n_threads = n_threads

    def all(self, on_error: OnError) -> list[State]:
        """All states, finished, in order."""
        states = list(self.results("return", ordered=True))
        if on_error == "raise":
            check({i: error for i, state in enumerate(states) if (error := state.error()) is not None}, states)
        return states

    def results(self, on_error: OnError, ordered: bool) -> Iterator[State]:
        """The states, each when it is finished, and if `ordered` all before it are. One who stops to listen stops what
        is still running."""
        with ExitStack() as stack:
            stack.callback(self._stop)
            if self._title is not None:
                from banyan.execution.progress import bar  # here: it loads rich

                self._bar = stack.enter_context(bar(self._title, self._n))
            self._limits = BatchLimits(*self._given)
            context = copy_context()
            threading.Thread(target=context.run, args=(self._staff,), name="banyan-batch", daemon=True).start()
            finished: dict[int, State] = {}
            n_given = 0
            for i, state in self._as_finished():
                if self._bar is not None:
                    self._bar.end(state._record, failed=state._record.has_failed)
                finished[i] = state
                while (i := n_given if ordered else i) in finished:
                    state = finished.pop(i)
                    if on_error == "raise" and (error := state.error()) is not None:
                        raise error
                    n_given += 1
                    yield state

    def _as_finished(self) -> Iterator[tuple[int, State]]:
        """(index, state) of each run, when it is finished or the batch's time is up."""
        seen: set[int] = set()
        while len(seen) < self._n:
            left = self._limits.left
            for nap in naps(None if left is None or self._is_stopped else left + GRACE):
                with suppress(Empty):
                    i, state = self._finished.get(timeout=nap)
                    break
            else:
                self._expire()
                continue
            if isinstance(state, BaseException):  # no run can begin
                raise state
            if i not in seen:  # one that was given up may finish all the same
                seen.add(i)
                yield i, state

    def _expire(self) -> None:
        """The time is up. What runs was stopped by its own limits; but a body may be busy with something else, and
        nothing can end that: its run ends without it."""
        late = DeadlineExceeded.of("batch", self._limits.timeout or 0.0)
        with self._taking:
            left, self._is_stopped = list(self._indices), True
        for i, run in list(self._running.items()):
            run.record.end(late)
            self._finished.put((i, run.state))
        for i in left:
            run = self._start(i, self._limits)
            run.record.end(late)
            self._finished.put((i, run.state))

    # ---- on threads of its own -------------------------------------------------------------------------------------

    def _staff(self) -> None:
        """Set threads to work: one, and as long as no run begins for a moment, twice as many.

        Bodies that never look at a value need one thread, and more would only be in its way.
        """
        n_working, n_wanted, n_begun = 0, 1, -1
        while n_begun < self._n and not self._is_stopped:
            for k in range(n_working, min(n_wanted, self._n_threads - 1)):
                # Each in a context of its own, as the caller left it.
                context, name = copy_context(), f"banyan-batch-{k}"
                threading.Thread(target=context.run, args=(self._work,), name=name, daemon=True).start()
                n_working += 1
            if n_working < n_wanted:  # the last of them is this one, which has nothing else to do from here on
                self._work()
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
        try:
            run = self._running[i] = self._start(i, self._limits)
        except BaseException as e:
            self._slots.release()
            self._finished.put((i, e))
            return
        if self._bar is not None:
            self._bar.begin(run.record)
        if self._is_stopped:
            run.record.program.cancel()
        with suppress(BaseException):  # the record has it, and `state.error()` tells
            run.play()

        def settled() -> None:
            del self._running[i]
            self._slots.release()
            self._finished.put((i, run.state))

        run.record.when_settled(settled)

    def _stop(self) -> None:
        self._is_stopped = True
        for run in list(self._running.values()):
            run.record.program.cancel()


def check(errors: dict[int, BaseException], results: Sequence[Any]) -> None:
    """Raise BatchError, if there are errors (by the items' indices)."""
    if errors:
        i, first = next(iter(errors.items()))
        message = f"{len(errors)} of {len(results)} items failed; the first is item {i}: {first}"
        raise BatchError(message, errors=errors, results=results) from first
