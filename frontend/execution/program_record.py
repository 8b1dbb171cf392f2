"""The record of one running program: what its states append, as ops that wait here until somebody needs a value.

Appends only record. A flush sends all that is recorded as one message; it happens when a value is observed, when the
body ends, when somebody starts to read a stream, or when the body has gone off to do something else (ticker.py). So a
straight-line program is one message, however many gens it holds and however slowly it runs, and a body that is busy
elsewhere does not keep its gens waiting.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from banyan.backends.base import Backend, OpenProgram, ProgramDefaults
from banyan.execution import run_limits
from banyan.execution.auto_flush import ticker
from banyan.execution.feed import Feed, Notice
from banyan.execution.run_trace import RunTrace
from banyan.lang.expr import ImageExpr, Leaf, RawExpr, RoleBegin, RoleEnd
from banyan.lang.lazy_value import LazyValue, copy_of
from banyan.lang.sampling import Options
from banyan.runtime.errors import BanyanError, Cancelled
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate
from banyan.templates.argument_slot import Slot

if TYPE_CHECKING:
    from banyan.execution.events import Events

_log = logging.getLogger("banyan")


_begin = cache(wire.Begin)
_END = wire.End()


def part(leaf: Leaf) -> wire.Part:
    """What is sent for a leaf that is no gen."""
    if isinstance(leaf, RoleBegin):
        return _begin(leaf.role)
    if isinstance(leaf, RoleEnd):
        return _END
    match leaf:
        case LazyValue(number=number):
            return wire.Ref(number)
        case RawExpr(text=text):
            return wire.Raw(text)
        case ImageExpr(data=data, kind=kind):
            return wire.Image(data, kind)
        case Slot(i=i):
            return wire.Arg(i)
    raise TypeError(f"{leaf!r} cannot be sent as text")


class StateHandle:
    """A state as the server numbers it. When nothing can use it any more, the server is told to drop it.

    Whoever may still need the state to run holds its lane: the State itself, its values until they are known, and the
    lanes forked from it. last: the newest value that is made in it, -1 if there is none.
    """

    __slots__ = ("_notes", "last", "number", "parent")

    def __init__(self, number: int, notes: list[tuple[int, int]], parent: StateHandle | None = None) -> None:
        self.number, self.parent, self._notes = number, parent, notes
        self.last = -1

    def __del__(self) -> None:
        note = self.number, self.last
        self._notes.append(note)  # no more than that: a finalizer may run anywhere, inside our own locks too


class ProgramRecord:
    """One running program, shared by all its states. Safe to use from any thread."""

    def __init__(
        self, name: str, backend: Backend, options: Options, batch: run_limits.BatchLimits | None = None
    ) -> None:
        self.name, self.backend, self.options = name, backend, options
        self.sampling = options.over(_DEFAULTS)
        try:
            self.program: OpenProgram = backend.program(name)
        except BanyanError as e:
            self.program = Unreachable(e)  # told to whoever reads, like all that goes wrong on the way
        self.n_refs = self._n_marks = 0
        self._numbers = count()
        self.notice = Notice()
        """Given, once somebody has heard of what went wrong."""
        self.ended: Feed[None] = Feed(self.notice)
        """Closed when the body has ended, with the error it ended with."""
        self._followed: list[Feed[Any]] = []
        self.ret_value: Any = None
        self.trace = RunTrace()
        self._lock, self._sending = threading.Lock(), threading.RLock()
        self._log: deque[wire.Op | tuple[int, Sequence[wire.Part]]] = deque()
        """What is not sent yet: ops, and texts with the state that each was appended to. Appending takes no lock."""
        self._dropped: list[tuple[int, int]] = []
        self.is_due = False
        """Whether a gen was recorded that is not sent yet."""
        self.failure: Exception | None = None
        """What stopped it: a backend that took its ops no more, its time or its tokens that ran out, or its user."""
        self._on_stop: list[Callable[[], None]] = []
        self.index: int | None = None
        """Of its item, in a batch."""
        self.events: Events | None = None
        """For those who look on; None: nobody does."""
        self.limits = run_limits.begin(self, options, batch)

    @property
    def error(self) -> BaseException | None:
        """What the body raised."""
        return self.ended.error

    @property
    def n_waiting(self) -> int:
        """How many appends are not sent yet."""
        return len(self._log)

    @property
    def has_failed(self) -> bool:
        """Whether its body raised, it was stopped, or a value that is known by now failed."""
        futures = (self.program.future(number) for number in range(self.n_refs))
        failures = (future.exception() for future in futures if future.done())
        return self.error is not None or self.failure is not None or any(e is not None for e in failures)

    def new_lane(self, parent: StateHandle | None = None) -> StateHandle:
        return StateHandle(next(self._numbers), self._dropped, parent)

    def new_ref(self) -> int:
        return self.new_refs(1)

    def new_refs(self, n: int) -> int:
        """The first of `n` numbers, one behind the other."""
        with self._lock:
            self.n_refs += n
            return self.n_refs - n

    def new_marks(self, n: int) -> int:
        """The same for marks."""
        with self._lock:
            self._n_marks += n
            return self._n_marks - n

    def text(self, lane: StateHandle, parts: Sequence[wire.Part]) -> None:
        """Append text to a state. What stands side by side travels as one op."""
        if parts:
            self._log.append((lane.number, parts))

    def add(self, op: wire.Op) -> None:
        self._log.append(op)
        if not self.is_due and isinstance(op, _DRAWS):
            self.is_due = True
            ticker().remind(self)

    def use(self, use: wire.Use, template: ProgramTemplate) -> None:
        """Record all ops of a template: as one where the backend has it, as they are where `use.template` is -1."""
        if use.template >= 0:
            self.trace.templates[use.template] = template
            self.add(use)
        else:
            for op in template.expand(use):
                self.add(op)

    def _take(self) -> list[wire.Op]:
        """All that was recorded since the last time, as ops."""
        self.is_due = False  # first: what is recorded from here on may come along, or reminds anew
        ops: list[wire.Op] = []
        state, text = -1, list[wire.Part]()
        while self._log:
            one = self._log.popleft()
            if isinstance(one, tuple) and one[0] == state:
                text += one[1]
                continue
            if text:
                ops.append(wire.Append(state, tuple(text)))
            state, text = -1, []
            if isinstance(one, tuple):
                state, text = one[0], [*one[1]]
            else:
                ops.append(one)
        if text:
            ops.append(wire.Append(state, tuple(text)))
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        if ops or any(last >= 0 and not self.program.future(last).done() for _, last in dropped):
            ops += [wire.Drop(number) for number, _ in dropped]
        else:  # where nothing runs, dropping is worth no message of its own
            self._dropped += dropped
        return ops

    def flush(self, why: str = "") -> None:
        """Send what is recorded, as one message. Raises what keeps the backend from taking it, now and ever after.

        why: what happened, for those who look at the run later.
        """
        if self.error is not None:
            raise self.error
        with self._sending:  # over the submit too: messages leave in the order of their ops
            ops = self._take()
            if ops and self.failure is None:
                self.trace.send(ops, why)
                try:
                    self.program.submit(ops)
                except Exception as e:  # whatever it is: ops are lost, and whoever waits for them must hear of it
                    e.add_note(f"while program {self.name} was sent to its backend")
                    self.stop(e)
        self.check()

    def check(self) -> None:
        """Raise what stopped the program, if something did."""
        self.notice.is_given |= self.failure is not None
        if isinstance(self.failure, BanyanError):
            raise copy_of(self.failure) from self.failure.__cause__
        if self.failure is not None:
            raise self.failure

    def stop(self, error: Exception) -> None:
        """What is not finished fails with `error`, and stops on the server. From any thread; the first call counts."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
        self.program.cancel()
        self._tell()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the program is stopped, on whatever thread does it; at once, if that is so already."""
        self._on_stop.append(callback)
        if self.failure is not None:
            self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(IndexError):  # told by all who find somebody to be told, each one once
            while True:
                self._on_stop.pop()()

    def close_at_end(self, feed: Feed[Any]) -> None:
        """Close `feed` when the body ends, with what it raised."""
        feed.notice = self.notice
        self._followed.append(feed)

    def end(self, error: BaseException | None = None) -> None:
        """The body has ended; with an error, what it started is stopped."""
        if error is not None and not isinstance(error, Exception):  # Ctrl-C or a cancelled task, for this thread alone
            stopped = Cancelled(f"the run was stopped by {type(error).__name__}", program=self.name)
            stopped.__cause__, error = error, stopped
        self.trace.ended = time.monotonic()
        for feed in (self.ended, *self._followed):
            feed.close(error)
        self._followed.clear()
        if error is not None:
            self.program.cancel()

    def spent(self) -> wire.TokenUsage:
        """Tokens of all gens that are known by now."""
        futures = [self.program.future(i) for i in range(self.n_refs)]
        known = [future.result().usage for future in futures if future.done() and future.exception() is None]
        return wire.TokenUsage(
            *(sum(getattr(usage, name) for usage in known) for name in wire.TokenUsage.__struct_fields__)
        )

    @property
    def is_settled(self) -> bool:
        """Whether the body has ended, and nothing of the program is on its way."""
        if not self.ended.is_closed or self._log:
            return False
        return self.error is not None or all(self.program.future(i).done() for i in range(self.n_refs))

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` once nothing of this program is on its way. To be called after its end."""
        left = [] if self.error is not None else [self.program.future(number) for number in range(self.n_refs)]
        todo = [callback]  # a future keeps what it called, and this may hold the run

        def look(_: object = None) -> None:
            while left:
                if not left[-1].done():
                    left[-1].add_done_callback(look)
                    return
                left.pop()
            todo.pop()()

        look()

    def __del__(self) -> None:
        # Nobody can read what it still makes. (An __init__ that failed leaves no program.)
        if (program := getattr(self, "program", None)) is not None:
            error = None if self.notice.is_given else self.error or self.failure or program.first_error
            program.cancel()
            if error is not None and not isinstance(error, Cancelled):
                _log.error("program %s failed, and nobody looked: %s: %s", self.name, type(error).__name__, error)


_DEFAULTS = wire.Sampling()
_DRAWS = (wire.Gen, wire.Select)


class Unreachable(ProgramDefaults):
    """The program of a backend that took none."""

    def __init__(self, error: BanyanError) -> None:
        self._error = self.first_error = error

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        raise copy_of(self._error)

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        future: ValueFuture[wire.Value] = ValueFuture()
        future.set_exception(copy_of(self._error))
        return future
