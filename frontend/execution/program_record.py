"""The client's record of one running program: the ops that its states append, until they are sent.

A flush sends all recorded ops as one message. It happens when the user's code reads a value or a stream, when the body
ends, and FLUSH_AFTER (clock.py) seconds after the first unsent gen. So a straight-line program is usually one message,
and a body that is busy with other work does not delay its gens.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextvars import ContextVar
from itertools import count
from typing import Any

from banyan.backends.base import Backend, OpenProgram, ProgramDefaults, is_recorder
from banyan.execution import run_limits
from banyan.execution.clock import FLUSH_AFTER, Alarm, flusher
from banyan.execution.events import Events
from banyan.execution.feed import ErrorFlag, Feed
from banyan.execution.run_trace import RunTrace, Sent
from banyan.lang.sampling import Options, mix
from banyan.runtime.errors import BanyanError, Cancelled, ProgramError, RuntimeLost, copy_of
from banyan.runtime.future import ValueFuture, when_all_done
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate

_logger = logging.getLogger("banyan")

CALLER: ContextVar[weakref.ref[ProgramRecord] | None] = ContextVar("banyan_caller", default=None)
"""The program whose body, or tool, runs here. The runs that it starts are stopped with it and spend its budgets."""
SEEDS: ContextVar[Seeds | None] = ContextVar("banyan_seeds", default=None)
"""The seeds of the runs that the code here calls; None: they have none."""
_call_numbers = count()


class Seeds:
    """The seeds of the runs and batches that one thread of a program calls on its backend: the body's, or that of a
    tool. On other threads, the order of the calls differs from run to run, so these get no seeds."""

    def __init__(self, backend: Backend, seed: int | None, *path: int) -> None:
        """For calls on this thread, derive seeds from `seed` and `path`. The first number of a path is negative: those
        of the program's own gens and forks are not."""
        self._backend, self._seed, self._path = backend, seed, path
        self._thread, self._n = threading.get_ident(), count()

    def next(self, backend: Backend) -> int | None:
        """The seed of the next run or batch, which is on `backend`; None: it gets none."""
        if backend is not self._backend or threading.get_ident() != self._thread:
            return None
        return mix(self._seed, *self._path, next(self._n))


def inherited_seed(backend: Backend) -> int | None:
    """The seed of a run or batch on `backend` that is given none: derived from the seed of the program that calls it;
    None: there is no such program, it has no seed, or the call is none of those that `Seeds` numbers."""
    seeds = SEEDS.get()
    return None if seeds is None or is_recorder(backend) else seeds.next(backend)


class StateHandle:
    """The number of a state on the server. When nothing refers to the handle any more, the server may drop the state.

    Everything that still needs the state holds its handle: the State object, the lazy values of the state until they
    are known, and the handles of its forks. last_ref: the number of the state's newest value, -1 if there is none.
    """

    __slots__ = ("_dropped", "last_ref", "number", "parent")

    def __init__(self, number: int, dropped: list[tuple[int, int]], parent: StateHandle | None = None) -> None:
        """dropped: a list to which (number, last_ref) is appended when the handle is freed."""
        self.number, self.parent, self._dropped = number, parent, dropped
        self.last_ref = -1

    def __del__(self) -> None:
        dropped = self.number, self.last_ref
        self._dropped.append(dropped)  # and nothing more, because a finalizer may run while this thread holds our locks


class ProgramRecord:
    """One running program, shared by all its states. Thread-safe."""

    def __init__(self, name: str, backend: Backend, options: Options, batch: run_limits.Limits | None = None) -> None:
        self.name, self.backend, self.options, self._process = name, backend, options, os.getpid()
        self.sampling = options.over(backend.welcome.sampling)
        self.program: OpenProgram
        try:
            self.program = backend.program(name)
        except BanyanError as e:
            self.program = FailedProgram(e)
        self.n_refs = self._n_marks = 0
        self._state_numbers = count()
        self.error_flag = ErrorFlag()
        """Set once the user has seen the program's error."""
        self.has_raised = False
        """Whether the run raised an error whose attribute `state` is the run's state; see `with_state`."""
        self.has_reader = False
        """Whether code outside the body has begun to read the state of a run that streams."""
        self.ended: Feed[None] = Feed(self.error_flag)
        """Closed when the body ends, with the error that it raised."""
        self._close_at_end: list[Feed[Any]] = []
        self.ret_value: Any = None
        self.trace = RunTrace()
        self._lock, self._send_lock = threading.Lock(), threading.RLock()
        self._unsent: deque[wire.Op | tuple[int, list[wire.Part]]] = deque()
        """Ops, and text as (state, parts). Appending takes no lock."""
        self._dropped: list[tuple[int, int]] = []
        self._has_unsent_gen = False
        self.failure: Exception | None = None
        """The error that stopped the program: its backend failed, a limit was exceeded, or the user cancelled it."""
        self._stop_callbacks: list[Callable[[], None]] = []
        self.index: int | None = None
        """The index of its batch item; None outside a batch."""
        self.index_line = ""
        """The line of user code that first read the index, "file.py:12"; "": none did."""
        self.events: Events | None = None
        """Set if the run was started by `stream`."""
        self.counters: list[Callable[[ValueFuture[wire.Value]], None]] = []
        """Functions to call with the future of each gen and select when it is done. Token budgets and a batch's
        progress bar add them."""
        self._called: dict[int, weakref.ref[ProgramRecord]] = {}  # the runs that this one has started
        self.is_stopped = False
        """Whether the whole program was stopped or cancelled before all its values were known."""
        reference = None if is_recorder(backend) else CALLER.get()
        caller = None if reference is None else reference()
        self.budgets: Sequence[run_limits.TokenBudget] = () if caller is None else caller.budgets
        """The token budgets on which this run draws: its own, its batch's, and those of the runs that called it."""
        self.ends: Sequence[run_limits.RunEnd] = () if caller is None else caller.ends
        """When this run must end: by its own timeout, its batch's, and those of the runs that called it."""
        queue = caller if caller is not None and caller.backend is backend else None  # an order is that of one server
        self.priority: int = (
            options.priority if options.priority is not None else 0 if queue is None else queue.priority
        )
        self.due: float | None = None if queue is None else queue.due
        """When the gens of this run should be done: by its own deadline, its batch's, and those of the runs that called
        it. None: no deadline."""
        self.seed: int | None = None
        """The seed of the run, from which those of its gens and of the runs that it calls are derived."""
        self._alarm: Alarm | None = None
        self._alarm = run_limits.begin(self, options, batch)
        if caller is not None:
            caller._add_called(self)

    @property
    def error(self) -> BaseException | None:
        """The error that the body raised; None: no error yet."""
        return self.ended.error

    @property
    def futures(self) -> list[ValueFuture[wire.Value]]:
        """The futures of all values, in the order in which they were recorded."""
        return [self.program.future(ref) for ref in range(self.n_refs)]

    def names_of(self, refs: Container[int]) -> set[str]:
        """The variables of the gens and selects whose values have these numbers."""
        ops = (*self.trace.ops(), *self._unsent)
        return {op.name for op in ops if isinstance(op, wire.Gen | wire.Select) and op.ref in refs}

    def new_handle(self, parent: StateHandle | None = None) -> StateHandle:
        return StateHandle(next(self._state_numbers), self._dropped, parent)

    def new_refs(self, n: int = 1) -> int:
        """Reserve `n` consecutive value numbers and return the first of them."""
        with self._lock:
            self.n_refs += n
            return self.n_refs - n

    def new_marks(self, n: int = 1) -> int:
        """Reserve `n` consecutive numbers for marks and return the first of them. A mark (wire.Mark) is a position in
        a state's text, from which the text can be read later."""
        with self._lock:
            self._n_marks += n
            return self._n_marks - n

    def watch(self, future: ValueFuture[wire.Value]) -> None:
        """Count the tokens of a gen or select when its `future` is done."""
        for count_tokens in self.counters:
            future.add_done_callback(count_tokens)

    # ---- recording and sending ---------------------------------------------------------------------------------------

    def add_text(self, state: int, parts: list[wire.Part]) -> None:
        """Append text to a state. Adjacent texts of one state are sent as one op. The caller must not change `parts`
        afterwards: the record keeps the list itself."""
        if parts:
            self._unsent.append((state, parts))

    def add(self, op: wire.Op) -> None:
        self._unsent.append(op)
        if not self._has_unsent_gen and isinstance(op, (wire.Gen, wire.Select)):  # a tuple: this runs for each op
            self._has_unsent_gen = True
            flusher().add(self)

    def use(self, use: wire.Use, template: ProgramTemplate) -> None:
        """Record a use of a template. If the backend keeps no templates (`use.template` is -1), records the template's
        plain ops instead."""
        if use.template >= 0:
            self.trace.templates[use.template] = template
            self.add(use)
        else:
            for op in template.expand(use):
                self.add(op)

    def _take(self) -> list[wire.Op]:
        """Remove and return the unsent ops."""
        self._has_unsent_gen = False  # before taking: a gen that is added meanwhile is taken too, or starts a new timer
        entries: list[wire.Op | tuple[int, list[wire.Part]]] = []
        last: Any = None
        while self._unsent:
            entry = self._unsent.popleft()
            if isinstance(entry, tuple) and isinstance(last, tuple) and last[0] == entry[0]:
                last[1].extend(entry[1])
            else:
                entries.append(last := entry)
        ops = [wire.Append(entry[0], tuple(entry[1])) if isinstance(entry, tuple) else entry for entry in entries]
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        if ops or any(ref >= 0 and not self.program.future(ref).done() for _, ref in dropped):
            ops += [wire.Drop(number) for number, _ in dropped]
        else:  # nothing runs in these states: send their drops with the next message
            self._dropped += dropped
        return ops

    def flush(self, why: str = "") -> None:
        """Send all recorded ops as one message, for the user's code. why: what caused the flush, for the trace.

        If the body raised, or the program was stopped, by this call or earlier, raises that error. RuntimeLost: this
        process is a fork of the one that runs the program.
        """
        self.send(why)
        self.check_body()
        self.check()

    def send(self, why: str = "") -> None:
        """The same as `flush`, in the background: the errors of the program are kept for its readers."""
        RuntimeLost.unless_in(self._process, f"program {self.name}")
        if self.error is not None:
            return
        with self._send_lock:  # held while submitting: messages must leave in the order of their ops
            ops = self._take()
            if ops and self.failure is None:
                self.trace.sent.append(Sent(time.monotonic(), ops, why))
                try:
                    self.program.submit(ops)
                except Exception as e:  # the ops are lost, so whoever waits for their values must get the error
                    e.add_note(f"while program {self.name} was sent to its backend")
                    self.stop(e)

    def flush_late(self) -> None:
        """Flush if there is an unsent gen. Called by the flusher."""
        if self._has_unsent_gen:
            with contextlib.suppress(BaseException):
                self.send(f"{FLUSH_AFTER * 1000:g} ms passed after a gen")

    # ---- stopping and ending -----------------------------------------------------------------------------------------

    def check_body(self) -> None:
        """Raise the error that the body raised, if it raised one."""
        if self.error is not None:
            self.error_flag.is_seen = True
            raise self.error

    def check(self) -> None:
        """Raise the error that stopped the program, if it was stopped. A ProgramError names the program."""
        self.error_flag.is_seen |= self.failure is not None
        if isinstance(self.failure, BanyanError):
            error = copy_of(self.failure)
            if isinstance(error, ProgramError):
                error.program = error.program or self.name
            raise error from self.failure.__cause__
        if self.failure is not None:
            raise self.failure

    def stop(self, error: Exception) -> None:
        """Stop the program on the server; unfinished values fail with `error`. Only the first call has an effect."""
        is_settled = self.is_settled
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
            self.is_stopped |= not is_settled
        self.program.cancel()
        self._call_stop_callbacks()
        for record in self._called_records():
            if not record.is_settled:  # otherwise its values stay readable
                record.stop(error)

    def cancel(self) -> None:
        """Cancel the program on the server and, unless the body has returned, the programs that it has called. Unlike
        `stop`, this sets no error for the body, which ends where it next reads a value. Takes no lock, so a finalizer
        may call it."""
        self.is_stopped = True
        self.program.cancel()
        if not self._has_returned:
            for record in self._called_records():
                record.cancel()

    @property
    def _has_returned(self) -> bool:
        return self.ended.is_closed and self.error is None

    def _called_records(self) -> list[ProgramRecord]:
        return [record for reference in list(self._called.values()) if (record := reference()) is not None]

    def _add_called(self, record: ProgramRecord) -> None:
        remove, key = self._called.pop, next(_call_numbers)
        # A dict instead of a WeakSet, whose methods a finalizer could not call at any time.
        self._called[key] = weakref.ref(record, lambda _: remove(key, None))
        if self.failure is not None:  # read after the record is added: `stop` sets it before it reads `_called`
            record.stop(self.failure)
        elif self.is_stopped and not self._has_returned:
            record.stop(Cancelled(f"program {self.name}, which called this one, was cancelled"))

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the program is stopped, on the thread that stops it; now if it is stopped already."""
        self._stop_callbacks.append(callback)
        if self.failure is not None:
            self._call_stop_callbacks()

    def _call_stop_callbacks(self) -> None:
        with contextlib.suppress(IndexError):  # several threads may be here; each callback runs once
            while True:
                self._stop_callbacks.pop()()

    def close_at_end(self, feed: Feed[Any]) -> None:
        """Close `feed` when the body ends; now if it has ended. If the body raised an error, readers of the feed get
        this error at the end."""
        feed.error_flag = self.error_flag
        self._close_at_end.append(feed)
        if self.ended.is_closed:
            feed.close(self.ended.error)

    def end(self, error: BaseException | None = None) -> None:
        """Note that the body has ended. If it raised `error`, stop the program on the server."""
        if error is not None and not isinstance(error, Exception):  # Ctrl-C, or the task was cancelled
            stopped = Cancelled(f"the run was stopped by {type(error).__name__}", program=self.name)
            stopped.__cause__, error = error, stopped
        self.trace.ended = time.monotonic()
        self.ended.close(error)
        for feed in self._close_at_end:
            feed.close(self.ended.error)
        self._close_at_end.clear()
        if error is not None:
            self.cancel()

    def spent(self) -> wire.TokenUsage:
        """The tokens of all finished gens, summed."""
        known = [future.result().usage for future in self.futures if future.done() and future.exception() is None]
        return wire.TokenUsage(
            *(sum(getattr(usage, name) for usage in known) for name in wire.TokenUsage.__struct_fields__)
        )

    @property
    def is_settled(self) -> bool:
        """Whether the body has ended and all values are done."""
        if not self.ended.is_closed or self._unsent:
            return False
        return self.error is not None or all(future.done() for future in self.futures)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all values of the program are known or have failed; at once if they are already, or if
        the body raised. Must be called after the body has ended."""
        when_all_done([] if self.error is not None else self.futures, callback)

    def _report_lost_stream(self) -> None:
        """Log a warning if a streaming run was stopped only because its caller did not keep the state that `run`
        returned. That is so if nobody read the state, no error stopped the run, and values are unfinished."""
        if not self.options.stream or self.has_reader or self.error is not None or self.failure is not None:
            return
        # The server may have learned already that the state was dropped.
        if n := sum(not one.done() or isinstance(one.exception(), Cancelled) for one in self.futures):
            _logger.warning(
                "program %s was stopped with %d values unfinished, because nothing holds its state any more; keep what "
                "run(stream=True) returns, and read it",
                *(self.name, n),
            )

    def __del__(self) -> None:
        # Nobody can read its values any more. (If `__init__` failed, some attributes are missing.)
        if os is None:  # the interpreter ends, and has cleared the names of this module
            return
        ends = sys.is_finalizing()  # then the names of other modules may be gone, and nothing is left to cancel
        if (alarm := getattr(self, "_alarm", None)) is not None and not ends:
            alarm.cancel()
        if (program := getattr(self, "program", None)) is not None and self._process == os.getpid():
            error = None if self.error_flag.is_seen else self.error or self.failure or program.first_error
            self._report_lost_stream()
            if not ends:
                program.cancel()
            was_stopped = isinstance(error, Cancelled) or getattr(error, "message", "") == RuntimeLost.AT_EXIT
            if error is not None and not was_stopped:
                _logger.error("program %s failed unnoticed: %s: %s", self.name, type(error).__name__, error)


def abandon(record: weakref.ref[ProgramRecord], program: OpenProgram) -> None:
    """Cancel a run that nobody can read any more. Called by the finalizer of the object that reads the run.

    The finalizer has only a weak reference to the record: the error of a body may refer to that object, which a strong
    reference would keep alive for ever. program: the run's program, which is cancelled if the record is gone."""
    found = record()
    (program if found is None else found).cancel()


class FailedProgram(ProgramDefaults):
    """Takes the place of a program that the backend refused to open. All its values fail with the backend's error."""

    def __init__(self, error: BanyanError) -> None:
        self._error = self.first_error = error

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        raise copy_of(self._error)

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        future: ValueFuture[wire.Value] = ValueFuture()
        future.set_exception(copy_of(self._error))
        return future
