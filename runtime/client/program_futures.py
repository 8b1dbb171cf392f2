"""What one program sent and still expects: the futures of its values, as messages resolve them.

Any thread may submit and ask for futures; messages arrive on the client's I/O thread, and only there do futures
resolve. The lock is held for dict work only, never while a future runs its callbacks.

Messages that are lost on the way are asked for again, by whoever notices: the other side when a later one arrives, or
this one when nothing comes and the two compare what they sent and saw (`report` and `compare`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from banyan.runtime.errors import BadMessage, BadProgram, BanyanError, Cancelled, RuntimeLost, from_code
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate, ValueSource
from banyan.runtime.protocol.resend_window import ResendWindow

OFTEN = 8
"""So many heartbeats in a row a program that hears nothing compares with the server; then at every OFTEN-th alone."""

_SOON = 1e-6  # seconds to a deadline that has passed: 0 would be none

MakeError = Callable[[str, str], BanyanError]
"""(gen, line) -> a fresh error. Each future gets its own: one that two threads raise would mix their tracebacks."""


class ClientConnection(Protocol):
    """What an inbox needs of its client."""

    lost: str | None

    @property
    def max_message(self) -> int: ...

    def send(self, data: bytes) -> None:
        """Queue a message for the server; messages leave in the order of calls."""

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` on the I/O thread."""

    def check(self) -> None:
        """RuntimeLost if it cannot be used."""

    def abandon(self, number: int) -> None:
        """The user's handle on a program is gone."""

    def admit(self, inbox: ProgramFutures) -> bool:
        """Whether the program may be sent. If not, `admitted` is called, once it may."""

    def template(self, number: int) -> ProgramTemplate:
        """One that was defined."""

    def has_template(self, number: int) -> bool:
        """Whether it is so still."""

    def settle(self, number: int) -> None:
        """On the I/O thread: forget the program, if nothing more is to be said of it."""


class ProgramFutures:
    """One program's futures."""

    def __init__(self, line: ClientConnection, number: int, name: str) -> None:
        self._line, self.number, self.name = line, number, name
        self._lock = threading.Lock()
        self._futures: dict[int, ValueFuture[wire.Value]] = {}
        self._places: dict[int, tuple[str, str]] = {}  # ref -> (gen's name, source line), for errors
        self._expected: set[int] = set()
        self._heard: dict[int, list[wire.Delta]] = {}  # that came before somebody listened
        self._listeners: dict[int, Callable[[wire.Delta], None]] = {}
        self._callers: dict[int, Callable[[wire.Called], None]] = {}
        self._failure: MakeError | None = None
        self.first_error: BaseException | None = None
        """What the first of its values failed with that was not merely cancelled."""
        self._is_closed = self._is_cancelled = False
        self.limits: wire.ProgramLimits | None = None
        """For the first message to carry."""
        self._sent: ResendWindow[bytes] = ResendWindow()
        self._used: list[tuple[int, int, ProgramTemplate]] = []
        """(seq of a message, number of a template that it uses, the template)"""
        self._n_seen = 0  # messages of the server
        self._n_told = 0  # of those, how many it knows to have come
        self._asked = -1  # what was asked for again last
        self._n_quiet = 0  # heartbeats without news
        self._history: list[tuple[tuple[wire.Op, ...], bool]] = []
        """All that a durable program sent, for a server that knows nothing of it."""
        self._consulted: set[tuple[int, int]] = set()  # its refs and rounds for which results are under way, or sent
        self._began = 0.0
        self._is_admitted = False
        self._waiting: list[bytes] = []
        """What cannot be sent before it is admitted."""

    @property
    def is_durable(self) -> bool:
        """Whether it waits for a server that is gone."""
        return self.limits is not None and bool(self.limits.durable)

    @property
    def is_over(self) -> bool:
        """No future will resolve any more but by `fail_all`."""
        return self._failure is not None or (self._is_closed and not self._expected)

    @property
    def is_settled(self) -> bool:
        """It is over, and both sides know that."""
        return self.is_over and self._sent.is_empty and self._n_told == self._n_seen

    # ---- from any thread -------------------------------------------------------------------------------------------

    def submit(self, ops: tuple[wire.Op, ...], last: bool) -> None:
        if not self.is_durable:
            self._line.check()
        with self._lock:
            if self._is_closed and not self._is_cancelled:
                raise BadProgram("the program is closed: it takes no more ops", program=self.name)
            if self._failure is not None or self._is_cancelled:
                return  # its futures say why
            data = self._encode(ops, last)
            if len(data) > self._line.max_message:
                raise BadMessage(
                    f"this piece of program {self.name!r} takes {len(data)} bytes, and the server takes "
                    f"{self._line.max_message} at once; send less text, or start it with a larger max_message"
                )
            for ref, name, line in self._made(ops):
                self._places[ref] = (name, line)
                self._expected.add(ref)
            used = [op.template for op in ops if isinstance(op, wire.Use)]
            self._used += [(self._sent.n, number, self._line.template(number)) for number in used]
            self._is_closed = last
            self._record(ops, last)
            self._send(data)
        if last:
            self._line.call(partial(self._line.settle, self.number))

    def _made(self, ops: Iterable[wire.Op]) -> Iterator[ValueSource]:
        """The values that `ops` make."""
        for op in ops:
            match op:
                case wire.Gen() | wire.Select():
                    yield ValueSource(op.ref, op.name, op.line)
                case wire.Read():
                    yield ValueSource(op.ref)
                case wire.Use():
                    for ref, name, line in self._line.template(op.template).places:
                        yield ValueSource(op.ref + ref, name, line)

    def _encode(self, ops: tuple[wire.Op, ...], last: bool) -> bytes:
        n = self._sent.n
        limits = None if n else self.limits
        if limits is not None and self._began:  # it is sent a second time
            spent = time.monotonic() - self._began
            left = max(0.0, limits.left - spent) if limits.timeout else 0.0
            deadline = max(_SOON, limits.deadline - spent) if limits.deadline else 0.0
            limits = replace(limits, left=left, deadline=deadline)
        return wire.encode(wire.Submit(self.number, n, ops, last, self.name, limits))

    def _record(self, ops: tuple[wire.Op, ...], last: bool) -> None:
        if self.is_durable:
            self._history.append((ops, last))
            self._began = self._began or time.monotonic()

    def _send(self, data: bytes) -> None:
        """Inside the lock: messages leave in the order of seq."""
        self._sent.put(data)
        self._n_quiet = 0
        if not self._is_admitted and not self._waiting:
            self._is_admitted = self._line.admit(self)
        if self._is_admitted:
            self._line.send(data)
        else:
            self._waiting.append(data)

    def close(self) -> None:
        """Send the last message, if it was not sent yet."""
        with self._lock:
            if self._is_closed or (self._line.lost is not None and not self.is_durable):
                return
            self._is_closed = True
            if self._sent.n:
                self._record((), last=True)
                self._send(self._encode((), last=True))
        self._line.call(partial(self._line.settle, self.number))

    def cancel(self) -> None:
        with self._lock:
            if self.is_over or (self._line.lost is not None and not self.is_durable):
                return
            self._is_closed = self._is_cancelled = True
            if self._sent.n:
                self._send(wire.encode(wire.Cancel(program=self.number, seq=self._sent.n)))
        self._line.call(self._cancelled)

    def _cancelled(self) -> None:
        # At once: to wait for the server's word would make a server that is slow, or stuck, hold up who cancels.
        self.end()
        self._line.settle(self.number)

    def end(self) -> None:
        """On the I/O thread: fail what is asked of the program and will not come, as it is over."""
        if self._is_cancelled:  # a message may come between `cancel` and `_cancelled`: it must not say anything else
            self.fail_all(
                lambda gen, line: Cancelled("the program was cancelled", program=self.name, gen=gen, line=line)
            )
        else:
            self.fail_all(lambda gen, line: BadProgram("the program ended without being asked for this value"))

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        with self._lock:
            future = self._futures.get(ref)
            if future is None:
                future = self._futures[ref] = ValueFuture()
                if self._failure is not None:
                    future.set_exception(self._failure(*self._places.get(ref, ("", ""))))
            return future

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        with self._lock:
            if self._failure is None:
                self._callers[ref] = callback

    def hear(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        self._line.call(partial(self.listen, ref, callback))

    def abandon(self) -> None:
        """The user's handle is gone. Safe in a finalizer."""
        self._line.call(lambda: self._line.abandon(self.number))

    # ---- on the I/O thread ------------------------------------------------------------------------------------------

    @property
    def will_end(self) -> bool:
        """Whether it ends without anybody's doing."""
        return self._is_closed and not self.is_over

    def admitted(self) -> None:
        """There is room for it now."""
        with self._lock:
            self._is_admitted = True
            for data in self._waiting:
                self._line.send(data)
            self._waiting.clear()

    def resume(self, line: ClientConnection) -> None:
        """The server that knew the program is gone. Tell the one at `line` all of it."""
        with self._lock:
            self._line, self._sent = line, ResendWindow()
            self._n_seen = self._n_told = self._n_quiet = 0
            self._asked = -1
            self._is_admitted = False
            self._waiting.clear()
            for _, number, template in self._used:
                line.send(wire.encode(wire.Define(number, template.ops)))
            for ops, last in self._history:
                self._send(self._encode(ops, last))

    def take(self, message: wire.Value | wire.Failed | wire.Delta | wire.Called) -> None:
        if message.seq != self._n_seen:
            if message.seq > self._n_seen and not self.is_over:
                self._ask_again()
            return
        self._n_seen += 1
        match message:
            case wire.Delta():
                self._deliver(message)
            case wire.Called(ref=ref):
                self._call(ref, message)
            case wire.Value(ref=ref):
                self._resolve(ref, message)
            case wire.Failed(ref=None):
                self._sent.came(self._sent.n)  # the server has forgotten the program, and wants no more of it
                self.fail_all(partial(self._error, message))
            case wire.Failed(ref=int(ref)):
                self._resolve(ref, self._error(message, *self._places.get(ref, ("", ""))))

    def _error(self, failed: wire.Failed, gen: str, line: str) -> BanyanError:
        where = {"program": self.name, "gen": gen, "line": line, "prompt_tail": failed.prompt_tail}
        return from_code(failed.code, failed.message, **where)

    def _resolve(self, ref: int, outcome: wire.Value | BaseException) -> None:
        with self._lock:
            self._expected.discard(ref)
            self._listeners.pop(ref, None)
            self._callers.pop(ref, None)
            future = self._futures.get(ref)
            if future is None:
                future = self._futures[ref] = ValueFuture()
        if future.done():
            return
        if isinstance(outcome, BaseException):
            self._note(outcome)
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def fail_all(self, make: MakeError) -> None:
        """Fail what is pending, and what will ever be asked for; only the first failure counts."""
        with self._lock:
            if self._failure is None:
                self._failure = make
            self._expected.clear()
            self._callers.clear()
            pending = [(ref, f) for ref, f in self._futures.items() if not f.done()]
        for ref, future in pending:
            error = self._failure(*self._places.get(ref, ("", "")))
            self._note(error)
            future.set_exception(error)

    def _note(self, error: BaseException) -> None:
        if self.first_error is None and not isinstance(error, Cancelled):
            self.first_error = error

    def listen(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        self._listeners[ref] = callback
        for delta in self._heard.pop(ref, ()):
            self._deliver(delta)

    def _deliver(self, delta: wire.Delta) -> None:
        listener = self._listeners.get(delta.ref)
        if listener is None:
            self._heard.setdefault(delta.ref, []).append(delta)
            return
        try:
            listener(delta)
        except Exception as e:  # the user's code: its error belongs to the one who waits for this value
            del self._listeners[delta.ref]
            self._resolve(delta.ref, e)

    # ---- messages that were lost -----------------------------------------------------------------------------------

    def _ask_again(self, is_urgent: bool = False) -> None:
        """Ask for the messages from the next one on; once for each gap, unless that seems to be lost as well."""
        if self._asked < self._n_seen or is_urgent:
            self._asked, self._n_quiet = self._n_seen, 0
            self._line.send(wire.encode(wire.Resend(program=self.number, seq=self._n_seen)))

    def send_again(self, seq: int) -> None:
        """The server lacks what was sent from `seq` on; templates that are used in it may be lost as well."""
        self._n_quiet = 0
        with self._lock:
            messages = self._sent.since(seq)
            used = {number: template for at, number, template in self._used if at >= seq}
        for number, template in used.items():
            self._line.send(wire.encode(wire.Define(number, template.ops)))
        for data in messages or ():
            self._line.send(data)
        for number in used:
            if not self._line.has_template(number):  # it was forgotten meanwhile
                self._line.send(wire.encode(wire.Undefine(number)))
        if messages is None:
            lost = f"a message of program {self.name!r} to the server was lost, and is kept no longer to be sent again"
            self.fail_all(lambda gen, line: RuntimeLost(lost))
            self._sent.came(self._sent.n)

    def report(self) -> tuple[int, int, int] | None:
        """(number, sent, seen), when it is time to compare: after news, and while none comes, more and more rarely."""
        if not self._is_admitted:
            return None
        if self._n_told == self._n_seen:
            if self._sent.is_empty and not self._expected:
                return None
            self._n_quiet += 1
            if self._n_quiet > OFTEN and self._n_quiet % OFTEN:
                return None
        else:
            self._n_quiet = 0
        self._n_told = self._n_seen
        return self.number, self._sent.n, self._n_seen

    def compare(self, sent: int, seen: int) -> None:
        """What the server says of the program: how many messages it sent, and how many it saw."""
        with self._lock:
            self._sent.came(seen)
            if not self.is_durable:
                self._used = [one for one in self._used if one[0] >= seen]
        if sent > self._n_seen and not self.is_over:
            self._ask_again(is_urgent=True)

    def _call(self, ref: int, called: wire.Called) -> None:
        if (caller := self._callers.get(ref)) is None:
            return  # its gen was stopped meanwhile
        if self.is_durable:
            if (ref, called.round) in self._consulted:
                return  # its results are under way, or the server has them: another server asked before
            self._consulted.add((ref, called.round))
        try:
            caller(called)
        except Exception as e:  # nobody may wait for results that will not come
            self._resolve(ref, e)
