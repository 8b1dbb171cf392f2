"""Runs many items of one program, with a few threads for the bodies and a bound on unfinished programs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from banyan.execution.async_body import refuse_to_block
from banyan.execution.program_run import ProgramRun, unread_error
from banyan.execution.run_limits import GRACE, Limits
from banyan.execution.source_line import raising_line
from banyan.lang.state import State
from banyan.lang.state_base import with_state
from banyan.runtime.errors import BanyanError, BatchError, DeadlineExceeded, RuntimeLost
from banyan.runtime.waiting import naps

if TYPE_CHECKING:
    from banyan.execution.progress import Bar

MAX_IN_FLIGHT = 256
"""The default bound on programs that have started and not finished. The number of threads does not bound them, because
a body that reads no value ends before its gens do. The bound is large because the server needs many programs at a time
to share their prefixes."""

MAX_AHEAD = 4096
"""The bound on states of an iterator that have finished and were not taken yet, if its items have no length. The items
may never end, so they are not read further until the loop takes a state."""

PATIENCE = 0.001
"""Seconds without a new run after which the number of worker threads doubles."""

OnError = Literal["raise", "return"]


class BatchPlan(NamedTuple):
    """What a batch runs. items: read one by one as the runs start, if it is not a list. start(item, limits): creates
    the run of an item. concurrency: maximum number of programs at once; None: MAX_IN_FLIGHT. limits: starts the
    limits of the batch. bar(n): gives the progress bar of n runs, if there is one, to the block in which the batch
    runs."""

    items: Iterable[Any]
    start: Callable[[Any, Limits], ProgramRun[Any]]
    concurrency: int | None
    limits: Callable[[], Limits]
    bar: Callable[[int | None], AbstractContextManager[Bar | None]]

    @property
    def n(self) -> int | None:
        """The number of items; None: it is not known before they are read."""
        return len(self.items) if isinstance(self.items, list) else None

    @property
    def n_running(self) -> int:
        """The largest number of programs that run at once."""
        return MAX_IN_FLIGHT if self.concurrency is None else self.concurrency

    @property
    def n_kept(self) -> int:
        """The largest number of items that run, or have finished and were not taken."""
        return self.n_running + (MAX_AHEAD if self.n is None else self.n)


class ItemReader:
    """Reads the items of a batch, one at a time. Thread-safe. n: the number of items; None: not known yet. error: what
    ended the items early."""

    def __init__(self, plan: BatchPlan) -> None:
        self._items, self.n, self.n_read = iter(plan.items), plan.n, 0
        self._context = copy_context()  # one for all items: a generator finds the variables that it has set
        self.error: BaseException | None = None
        self._reading, self._lock = threading.Lock(), threading.Lock()  # `next` may wait long, also after the `end`

    def read(self) -> tuple[int, Any] | None:
        """Returns (number, item) of the next item; None: there is none."""
        found: list[tuple[int, Any]] = []
        self.read_to(found)
        return found[0] if found else None

    def read_to(self, found: list[tuple[int, Any]]) -> None:
        """Append (number, item) of the next item, if there is one. At the `end`, which may come while this waits, each
        item that `n` counts is in its list."""
        with self._reading:
            if self.n_read == self.n:
                return
            try:
                item = self._context.run(next, self._items)
            except StopIteration:
                self.end()
                return
            except BaseException as e:  # SystemExit too: it is the caller's, and not meant for a worker
                self.end(e)
                return
            with self._lock:
                if self.n_read != self.n:
                    found.append((self.n_read, item))
                    self.n_read += 1

    def wait(self) -> None:
        """Wait until the item that is being read now has come."""
        with self._reading:
            pass

    def end(self, error: BaseException | None = None) -> None:
        """Read no further item, if their number is not known yet."""
        with self._lock:
            if self.n is None:
                self.n, self.error = self.n_read, error


def bar(title: str | None, n: int | None) -> AbstractContextManager[Bar | None]:
    """Shows a progress bar on stderr while the block runs. title: its title; None: no bar. n: the number of runs, if it
    is known."""
    if title is None:
        return nullcontext()
    from banyan.execution import progress  # lazily: it imports rich

    return progress.bar(title, n)


class BatchRun:
    """The runs of a batch, with their bodies on `n_threads` threads."""

    def __init__(self, plan: BatchPlan, n_threads: int) -> None:
        self._plan, self._n_threads = plan, min(n_threads, plan.n_running)
        self._lock = threading.Lock()
        self._reader = ItemReader(plan)
        self._finished: SimpleQueue[tuple[int, State | BaseException] | None] = SimpleQueue()  # None: no further item
        self._slots, self._kept = threading.Semaphore(plan.n_running), threading.Semaphore(plan.n_kept)
        self._running: dict[int, ProgramRun[State]] = {}
        self._is_stopped, self._process = False, os.getpid()
        self._bar: Bar | None = None

    def all(self, on_error: OnError) -> list[State]:
        """Run all items. Returns their states, in order. BatchError: an item failed and on_error is "raise"."""
        states = list(self.results("return", ordered=True))
        if on_error == "raise":
            failed = {i: error for i, state in enumerate(states) if (error := state.error()) is not None}
            check({i: with_state(error, states[i]) for i, error in failed.items()}, len(states), states)
        return states

    def results(self, on_error: OnError, ordered: bool) -> Iterator[State]:
        """Yields finished states; if `ordered`, in the order of items. Closing the iterator stops the other runs.
        BadProgram: this would block the event loop of an `async def` program."""
        if self._plan.n != 0:
            refuse_to_block("the end of the batch", method="run_batch_async")
        with closing(self), self._plan.bar(self._plan.n) as self._bar:
            self._limits = self._plan.limits()
            self._start_thread(self._start_workers, "banyan-batch")
            finished: dict[int, State] = {}
            n_yielded = 0
            for i, state in self._as_finished():
                if self._bar is not None:
                    self._bar.end(failed=unread_error(state) is not None)
                finished[i] = state
                while (i := n_yielded if ordered else i) in finished:
                    state = finished.pop(i)
                    if on_error == "raise" and (error := state.error()) is not None:
                        raise with_state(error, state)
                    n_yielded += 1
                    yield state
                    self._kept.release()

    def _as_finished(self) -> Iterator[tuple[int, State]]:
        """Yields (index, state) of each run when the run finishes or the whole batch times out."""
        n_seen = 0
        while n_seen != self._reader.n:
            RuntimeLost.unless_in(self._process, "the batch")
            end = None if self._is_stopped else self._limits.end
            for nap in naps(None if end is None else max(0.0, end.at - time.monotonic()) + GRACE):
                with suppress(Empty):
                    found = self._finished.get(timeout=nap)
                    break
            else:
                assert end is not None  # without an end, the naps continue
                self._time_out(DeadlineExceeded.of("batch", end.timeout))
                continue
            if found is None:
                continue
            i, state = found
            if isinstance(state, BaseException):  # a run could not start
                raise state
            n_seen += 1
            yield i, state
        if self._reader.error is not None:
            raise self._reader.error

    def _time_out(self, error: DeadlineExceeded) -> None:
        """End all runs that are unfinished or not started, with `error`. Each run also has its own timeout, but
        this timeout stops only gens: the batch would wait for a body that is busy with other code. Items without a
        length are not read further, because they may never end."""
        self._is_stopped = True
        if self._plan.n is None:
            self._reader.end(error)
        unstarted = iter(self._reader.read, None) if self._plan.n is not None else ()
        with self._lock:
            runs, self._running = [*self._running.items()], {}
        runs += [(i, self._plan.start(item, self._limits)) for i, item in unstarted]
        for i, run in runs:
            run.record.end(error)
            self._finished.put((i, run.state))

    def close(self) -> None:
        """Stop all runs. Does nothing in a fork of the process that runs them."""
        self._is_stopped = True
        if self._process != os.getpid():
            return
        for run in list(self._running.values()):
            run.record.cancel()
        self._kept.release()  # a worker that waits for it ends, and releases it for the next one

    # ---- worker threads ----------------------------------------------------------------------------------------------

    def _start_thread(self, target: Callable[[], None], name: str) -> None:
        """Start a thread, which runs in a copy of the caller's context."""
        threading.Thread(target=copy_context().run, args=(target,), name=name, daemon=True).start()

    def _start_workers(self) -> None:
        """Start one worker, which is enough for bodies that never wait. Double the number of workers whenever no run
        has started for PATIENCE seconds."""
        n_workers, n_wanted = 0, 1
        while self._reader.n_read != self._reader.n and not self._is_stopped:
            while n_workers < min(n_wanted, self._n_threads - 1):
                self._start_thread(self._work, f"banyan-batch-{n_workers}")
                n_workers += 1
            if n_workers < n_wanted:  # this thread becomes the last worker
                self._work()
                return
            n_started = self._reader.n_read
            time.sleep(PATIENCE)
            self._reader.wait()  # items that come late come no sooner for more workers
            if self._reader.n_read == n_started and len(self._running) < self._plan.n_running:
                n_wanted = 2 * n_workers

    def _work(self) -> None:
        while True:
            self._slots.acquire()
            self._kept.acquire()
            is_fork = self._process != os.getpid()  # a body forked, and its child did not exit
            found = None if self._is_stopped or is_fork else self._reader.read()
            if found is None:
                self._slots.release()  # so that the next worker ends as well
                self._kept.release()
                self._finished.put(None)
                return
            self._run(*found)

    def _run(self, i: int, item: Any) -> None:
        try:
            run = self._plan.start(item, self._limits)
            with self._lock:
                self._running[i] = run
        except BaseException as e:
            self._slots.release()
            self._finished.put((i, e))
            return
        if self._bar is not None:
            self._bar.begin(run.record)
        if self._is_stopped:
            run.record.cancel()
        with suppress(BaseException):  # the record keeps it, and `state.error()` returns it
            run.play()

        def settled() -> None:
            with self._lock:
                is_new = self._running.pop(i, None) is not None  # else its state was put when it timed out
            self._slots.release()
            if is_new:
                self._finished.put((i, run.state))

        run.record.when_settled(settled)


def described(error: BaseException) -> str:
    """The message of an error. One that is not Banyan's has its class too, and the line of the body that raised it."""
    if isinstance(error, BanyanError):
        return str(error)
    line = raising_line(error)
    return f"{type(error).__name__}: {error}{f' [{line}]' if line else ''}"


def check(errors: dict[int, BaseException], n: int, results: Sequence[Any], advice: str = "") -> None:
    """Raise BatchError if there are errors. errors: index of the item -> its error. n: the number of items. results:
    their states or records, in order. advice: a part of the message."""
    if errors:
        i, first = next(iter(errors.items()))
        message = f"{len(errors)} of {n} items failed; {advice}the first is item {i}: {described(first)}"
        raise BatchError(message, errors=errors, results=results) from first
