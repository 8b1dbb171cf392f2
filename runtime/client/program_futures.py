"""The client's state of one program: what it sent, and the futures of its values, which the client's I/O thread
resolves. The lock is never held while callbacks of a future run."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from banyan.runtime.client import splitting
from banyan.runtime.errors import BadProgram, BanyanError, Cancelled, RuntimeLost, describe_surrogate, from_code
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_NAME
from banyan.runtime.protocol.op_template import ProgramTemplate, ValueSource

_PASSED = 1e-6  # seconds; sent for a deadline that has passed, since 0 would mean no deadline

MakeError = Callable[[str, str], BanyanError]
"""(gen name, source line) -> a new error. Each future gets its own error, because threads that raise the same error
share its traceback."""


class ClientConnection(Protocol):
    """The methods of Client (see there) that ProgramFutures calls."""

    lost: str | None
    templates: dict[int, ProgramTemplate]
    welcome: wire.Welcome

    def send(self, data: bytes) -> None: ...
    def call(self, action: Callable[[], None]) -> None: ...
    def check(self) -> None: ...
    def admit(self, program: ProgramFutures) -> bool: ...
    def define_as(self, number: int, template: ProgramTemplate) -> None: ...
    def undefine(self, number: int) -> None: ...
    def forget_if_over(self, number: int) -> None: ...


class ProgramHandle:
    """The public handle of one program. The program's futures outlive the handle. Garbage collection of the handle
    closes the program."""

    def __init__(self, futures: ProgramFutures) -> None:
        self.number, self.name, self._futures = futures.number, futures.name, futures
        # The finalizer may run while our own locks are held, so it only queues a call for the I/O thread. It does not
        # keep the futures alive, because the traceback of an error in them may refer to the handle.
        self._finalizer = weakref.finalize(self, _abandon, weakref.ref(futures))
        self._finalizer.atexit = False

    @property
    def first_error(self) -> BaseException | None:
        """The first error of a value of the program, except Cancelled."""
        return self._futures.first_error

    @property
    def is_over(self) -> bool:
        """Whether the program has ended: it failed, or it is closed and all its values have arrived."""
        return self._futures.is_over

    def limit(self, limits: wire.ProgramLimits) -> None:
        """Set the limits of the program. Call it before the first `submit`. Raises BadProgram if `limits.durable` is
        too long."""
        if len(limits.durable) > MAX_NAME:
            raise BadProgram(f"durable is a name of {len(limits.durable)} characters; at most {MAX_NAME} are allowed")
        self._futures.limits = limits

    def generate_ahead(self, n_tokens: int) -> None:
        """Does nothing here; backends for paid APIs generate `n_tokens` tokens beyond a stop."""

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        """Send `ops`. The server takes the ops of a program in the order in which they were sent. last: the program
        sends no more ops. Raises RuntimeLost if the server is gone and the program is not durable, BadProgram if the
        program is closed, and BadMessage if one op is larger than the server's message limit."""
        self._futures.submit(tuple(ops), last)

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        """The future of value `ref`. The op that makes the value may be submitted later."""
        return self._futures.future(ref)

    def forget(self, ref: int) -> None:
        """Delete value `ref`, which has arrived. Do not call `future` for this value again."""
        self._futures.forget(ref)

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        """Call `callback`, which must not block, on the I/O thread with each piece of text of the streaming gen `ref`,
        starting with the first. An exception in it fails the future of `ref`."""
        self._futures.on_delta(ref, callback)

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        """Call `callback`, which must not block, on the I/O thread with each Called message of the gen or select `ref`.
        Must be set before the op is submitted. An exception in it fails the future of `ref`."""
        self._futures.on_call(ref, callback)

    def cancel(self) -> None:
        """Stop the program on the server. All futures that are not done fail with Cancelled, without waiting for the
        server. Idempotent."""
        self._futures.cancel()

    def close(self) -> None:
        """Tell the server that no more ops will come. The server frees the program after its last op. Idempotent."""
        self._futures.close()


def _abandon(futures: weakref.ref[ProgramFutures]) -> None:
    if (found := futures()) is not None:  # otherwise the program has ended
        found.abandon()


class ProgramFutures:
    """The futures of one program, and the messages it sends."""

    def __init__(self, connection: ClientConnection, number: int, name: str) -> None:
        self._connection, self.number, self.name = connection, number, name
        self._lock = threading.Lock()
        self._futures: dict[int, ValueFuture[wire.Value]] = {}
        self._sources: dict[int, tuple[str, str]] = {}  # ref -> (name of the gen, source line), for errors
        self._expected: set[int] = set()  # refs that the server has not resolved yet
        self._undelivered: dict[int, list[wire.Delta]] = {}  # text that arrived before its callback was registered
        self._delta_callbacks: dict[int, Callable[[wire.Delta], None]] = {}
        self._call_callbacks: dict[int, Callable[[wire.Called], None]] = {}
        self._failure: MakeError | None = None
        self.first_error: BaseException | None = None
        """The first error of a value of the program, except Cancelled."""
        self._is_closed = self._is_cancelled = self._is_cancel_sent = False
        self.limits: wire.ProgramLimits | None = None
        """The limits of the program, sent with its first message."""
        self._n_sent = self._n_received = 0  # messages
        self._templates: dict[int, ProgramTemplate] = {}
        """Templates of messages that may be sent later, because the program waits for admission or is durable."""
        self._history: list[tuple[tuple[wire.Op, ...], bool]] = []
        """(ops, last) of each message of a durable program, to send them to a restarted server."""
        self._calls_seen: list[tuple[int, int]] = []  # (ref, round) of each Called of a durable program
        self._started = 0.0
        self._is_admitted = False
        self._queued: list[bytes] = []  # messages that wait for admission

    @property
    def is_durable(self) -> bool:
        """Whether the program waits for a restarted server if its server is lost."""
        return self.limits is not None and bool(self.limits.durable)

    @property
    def is_over(self) -> bool:
        """Whether the server will send nothing more about the program."""
        return self._failure is not None or (self._is_closed and not self._expected)

    @property
    def has_values_to_acknowledge(self) -> bool:
        """For a program that is over: whether the server may delete the program's journal. True if the program is
        durable and was sent, and neither failed nor was cancelled."""
        return self.is_durable and self._n_sent > 0 and self._failure is None and not self._is_cancelled

    # ---- from any thread -------------------------------------------------------------------------------------------

    def submit(self, ops: tuple[wire.Op, ...], last: bool) -> None:
        if not self.is_durable:
            self._connection.check()
        with self._lock:
            if self._is_closed and not self._is_cancelled:
                raise BadProgram("the program is closed and takes no more ops", program=self.name)
            if self._failure is not None or self._is_cancelled:
                return  # its futures raise the reason
            messages = self._encode(ops, last)
            templates = {op.template: self._template(op.template) for op in ops if isinstance(op, wire.Use)}
            for ref, name, line in _values(ops, templates):
                self._sources[ref] = (name, line)
                self._expected.add(ref)
            self._is_closed = last
            self._remember(ops, last)
            self._send(messages)
            if self.is_durable or not self._is_admitted:
                self._templates |= templates
        if last:
            self._connection.call(partial(self._connection.forget_if_over, self.number))

    def _template(self, number: int) -> ProgramTemplate:
        if (template := self._connection.templates.get(number)) is None:
            raise BadProgram(f"template {number} is not defined", program=self.name)
        return template

    def _encode(self, ops: tuple[wire.Op, ...], last: bool) -> list[bytes]:
        """Encode ops as one Submit, or as several if they are too many or too long for one. Raises BadMessage if an op
        is too long, BadProgram if a text is not valid Unicode."""
        limits = None if self._n_sent else self.limits
        if limits is not None and self._started:  # sent again to a restarted server: less time is left
            elapsed = time.monotonic() - self._started
            left = max(0.0, limits.left - elapsed) if limits.timeout else 0.0
            deadline = max(_PASSED, limits.deadline - elapsed) if limits.deadline else 0.0
            limits = replace(limits, left=left, deadline=deadline)

        def message(k: int, group: tuple[wire.Op, ...], is_last: bool) -> bytes:
            submit = wire.Submit(self.number, self._n_sent + k, group, is_last, self.name, None if k else limits)
            return wire.encode(submit)

        try:
            data = message(0, ops, last)
        except UnicodeEncodeError as e:
            raise BadProgram(f"a text of this program has {describe_surrogate(e)}", program=self.name) from None
        max_message = self._connection.welcome.max_message
        if splitting.fits(data, ops, max_message):
            return [data]
        groups = list(splitting.messages(ops, self._connection.templates, max_message))
        return [message(k, group, last and k == len(groups) - 1) for k, group in enumerate(groups)]

    def _remember(self, ops: tuple[wire.Op, ...], last: bool) -> None:
        if self.is_durable:
            self._history.append((ops, last))
            self._started = self._started or time.monotonic()

    def _send(self, messages: Sequence[bytes]) -> None:
        """Send encoded messages, or queue them until the server admits the program. The caller holds `_lock`, so
        messages leave in the order of their `seq` numbers."""
        self._n_sent += len(messages)
        if not self._is_admitted and not self._queued:
            self._is_admitted = self._connection.admit(self)
        if self._is_admitted:
            for data in messages:
                self._connection.send(data)
        else:
            self._queued += messages

    def close(self) -> None:
        """Tell the server that no more ops will come, unless it was told before or the program is over."""
        with self._lock:
            if self._is_closed or self.is_over or (self._connection.lost is not None and not self.is_durable):
                return
            self._is_closed = True
            if self._n_sent:
                self._remember((), last=True)
                self._send(self._encode((), last=True))
        self._connection.call(partial(self._connection.forget_if_over, self.number))

    def cancel(self) -> None:
        # A finalizer may call this on a thread that holds the lock of any program or of the client, so it waits for no
        # lock.
        if self.is_over:
            return
        self._is_cancelled = True
        if self._is_admitted and self._lock.acquire(blocking=False):
            try:
                self._send_cancel()
            finally:
                self._lock.release()
        self._connection.call(self._end_cancelled)

    def _send_cancel(self) -> None:
        """Tell the server to cancel the program, unless the server has got nothing of it. The caller holds `_lock`."""
        self._is_closed = self._is_cancel_sent = True
        if self._n_sent:
            self._send([wire.encode(wire.Cancel(program=self.number, seq=self._n_sent))])

    def _end_cancelled(self) -> None:
        with self._lock:
            if not self._is_cancel_sent:
                if self.is_over:
                    return
                self._send_cancel()
        # Fails the futures without waiting for the server, which may be slow or stuck.
        self.fail_unresolved()
        self._connection.forget_if_over(self.number)

    def fail_unresolved(self) -> None:
        """Fail the futures that will never be resolved, because the program is over. Called on the I/O thread."""
        if self._is_cancelled:
            name = self.name  # using `self` in the lambda would make a reference cycle
            self.fail_all(lambda gen, line: Cancelled("the program was cancelled", program=name, gen=gen, line=line))
        else:
            self.fail_all(lambda gen, line: BadProgram("the program ended, and no op of it makes this value"))

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        with self._lock:
            if (future := self._futures.get(ref)) is None:
                future = self._futures[ref] = ValueFuture()
                if self._failure is not None:
                    future.set_exception(self._failure(*self._sources.get(ref, ("", ""))))
            return future

    def forget(self, ref: int) -> None:
        with self._lock:
            self._futures.pop(ref, None)
            self._sources.pop(ref, None)

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        with self._lock:
            if self._failure is None:
                self._call_callbacks[ref] = callback

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        self._connection.call(partial(self._register_delta, ref, callback))

    def abandon(self) -> None:
        """Close the program on the I/O thread, because its handle was garbage collected. Safe in a finalizer."""
        self._connection.call(self.close)

    def lose_in_forked_child(self, why: str) -> None:
        """In a forked child, fail all values that are not known. Replaces the lock, which a thread of the parent may
        have held."""
        self._lock = threading.Lock()
        self._failure = self._failure or (lambda gen, line: RuntimeLost(why))
        for future in self._futures.values():
            if not future.done():
                future.fail_in_forked_child(RuntimeLost(why))

    # ---- on the I/O thread -----------------------------------------------------------------------------------------

    @property
    def will_end(self) -> bool:
        """Whether the program will end without further action of its user."""
        return self._is_closed and not self.is_over

    def admitted(self) -> None:
        """Send the queued messages, because the server has room for the program now."""
        with self._lock:
            self._is_admitted = True
            # Templates that were deleted while the program waited are defined again for its messages.
            deleted = [number for number in self._templates if number not in self._connection.templates]
            for number in deleted:
                self._connection.define_as(number, self._templates[number])
            for data in self._queued:
                self._connection.send(data)
            self._queued.clear()
            for number in () if self.is_durable else deleted:
                self._connection.undefine(number)

    def resume(self, connection: ClientConnection) -> None:
        """Send the whole program to a restarted server. The program fails if that server does not accept it, for
        example because of a lower max_message."""
        try:
            with self._lock:
                self._connection = connection
                self._n_sent = self._n_received = 0
                self._is_admitted = False
                self._queued.clear()
                for number, template in self._templates.items():
                    connection.define_as(number, template)
                for ops, last in self._history:
                    self._send(self._encode(ops, last))
        except BanyanError as e:
            self.fail_all(partial(_error, self.name, wire.Failed(self.number, 0, e.code, e.message)))
            connection.send(wire.encode(wire.Cancel(program=self.number, seq=self._n_sent)))

    def receive(self, message: wire.Value | wire.Failed | wire.Delta | wire.Called) -> None:
        if isinstance(message, wire.Failed) and message.ref is None:
            self.fail_all(partial(_error, self.name, message))
            return
        if message.seq != self._n_received:
            text = f"program {self.name!r} got message {message.seq} instead of {self._n_received} from the server"
            self.fail_all(lambda gen, line: RuntimeLost(text))
            self._connection.send(wire.encode(wire.Cancel(program=self.number, seq=self._n_sent)))
            return
        self._n_received += 1
        match message:
            case wire.Delta():
                self._deliver(message)
            case wire.Called(ref=ref):
                self._call(ref, message)
            case wire.Value(ref=ref):
                self._resolve(ref, message)
            case wire.Failed(ref=int(ref)):
                self._resolve(ref, _error(self.name, message, *self._sources.get(ref, ("", ""))))

    def _resolve(self, ref: int, outcome: wire.Value | BaseException) -> None:
        with self._lock:
            self._expected.discard(ref)
            self._delta_callbacks.pop(ref, None)
            self._call_callbacks.pop(ref, None)
            future = self._futures.get(ref) or self._futures.setdefault(ref, ValueFuture())
        if future.done():
            return
        if isinstance(outcome, BaseException):
            self._note_error(outcome)
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def fail_all(self, make: MakeError) -> None:
        """Fail all pending values, and those asked for later. Only the first failure of a program counts."""
        with self._lock:
            if self._failure is None:
                self._failure = make
            self._expected.clear()
            self._call_callbacks.clear()
            pending = [(ref, f) for ref, f in self._futures.items() if not f.done()]
        for ref, future in pending:
            error = self._failure(*self._sources.get(ref, ("", "")))
            self._note_error(error)
            future.set_exception(error)

    def give_up(self, lost: ClientConnection, why: str) -> None:
        """Fail all values, because the user closes the lost connection `lost`. If another connection has resumed the
        program, cancel it there."""
        if self.is_over:
            return
        self.fail_all(lambda gen, line: RuntimeLost(why))
        if self._connection is not lost:
            with self._lock:
                self._send_cancel()
            self._connection.forget_if_over(self.number)

    def _note_error(self, error: BaseException) -> None:
        if self.first_error is None and not isinstance(error, Cancelled):
            self.first_error = error

    def _register_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        self._delta_callbacks[ref] = callback
        for delta in self._undelivered.pop(ref, ()):
            self._deliver(delta)

    def _deliver(self, delta: wire.Delta) -> None:
        callback = self._delta_callbacks.get(delta.ref)
        if callback is None:
            self._undelivered.setdefault(delta.ref, []).append(delta)
            return
        try:
            callback(delta)
        except Exception as e:  # an error of the user's code is raised where the value is read
            del self._delta_callbacks[delta.ref]
            self._resolve(delta.ref, e)

    def _call(self, ref: int, called: wire.Called) -> None:
        if (callback := self._call_callbacks.get(ref)) is None:
            return  # the gen has ended meanwhile
        if self.is_durable:
            if (ref, called.round) in self._calls_seen:
                return  # a lost server has asked before; the Results are in the history or on their way
            self._calls_seen.append((ref, called.round))
        try:
            callback(called)
        except Exception as e:  # no Results will come
            self._resolve(ref, e)


def _error(program: str, failed: wire.Failed, gen: str, line: str) -> BanyanError:
    where = {"program": program, "gen": gen, "line": line, "prompt_tail": failed.prompt_tail}
    return from_code(failed.code, failed.message, **where)


def _values(ops: Iterable[wire.Op], templates: dict[int, ProgramTemplate]) -> Iterator[ValueSource]:
    """For each value that `ops` create: its number, and the name and line of its gen or select."""
    for op in ops:
        match op:
            case wire.Gen() | wire.Select():
                yield ValueSource(op.ref, op.name, op.line)
            case wire.Read():
                yield ValueSource(op.ref)
            case wire.Use():
                for ref, name, line in templates[op.template].places:
                    yield ValueSource(op.ref + ref, name, line)
