"""What one program sent and still expects: the futures of its values, as messages resolve them.

Any thread may submit and ask for futures; messages arrive on the client's I/O thread, and only there do futures
resolve. The lock is held for dict work only, never while a future runs its callbacks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from banyan.runtime import wire
from banyan.runtime.errors import BadMessage, BadProgram, BanyanError, RuntimeLost, from_code

MakeError = Callable[[str, str], BanyanError]
"""(gen, line) -> a fresh error. Each future gets its own: one that two threads raise would mix their tracebacks."""


def new_future(kind: type[Any]) -> Future[Any]:
    """A Future that nobody but us resolves: `cancel()` on it is refused, programs are what is cancelled."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class Line(Protocol):
    """What an inbox needs of its client."""

    lost: str | None

    @property
    def max_message(self) -> int: ...

    def send(self, data: bytes) -> None:
        """Queue a message for the server; messages leave in the order of calls."""

    def settle_soon(self, number: int) -> None:
        """Look, on the I/O thread, whether the program is settled."""


class Inbox:
    """One program's futures."""

    def __init__(self, line: Line, number: int, name: str) -> None:
        self._line, self.number, self.name = line, number, name
        self._lock = threading.Lock()
        self._futures: dict[int, Future[wire.Value]] = {}
        self._places: dict[int, tuple[str, str]] = {}  # ref -> (gen's name, source line), for errors
        self._expected: set[int] = set()
        self._heard: dict[int, list[str]] = {}  # deltas that came before somebody listened
        self._listeners: dict[int, Callable[[str], None]] = {}
        self._failure: MakeError | None = None
        self._is_closed = False
        self._n_sent = self._n_seen = 0  # messages, each way

    @property
    def is_settled(self) -> bool:
        """Nothing more will come, either way."""
        return self._failure is not None or (self._is_closed and not self._expected)

    # ---- from any thread -------------------------------------------------------------------------------------------

    def submit(self, ops: tuple[wire.Op, ...], last: bool) -> None:
        with self._lock:
            if self._is_closed:
                raise BadProgram("the program is closed: it takes no more ops", program=self.name)
            if self._failure is not None:
                return  # its futures say why
            data = wire.encode(wire.Submit(program=self.number, seq=self._n_sent, ops=ops, last=last, name=self.name))
            if len(data) > self._line.max_message:
                raise BadMessage(
                    f"this piece of program {self.name!r} takes {len(data)} bytes, and the server takes "
                    f"{self._line.max_message} at once; send less text, or start it with a larger max_message"
                )
            for op in ops:
                if isinstance(op, wire.Gen | wire.Select):
                    self._places[op.ref] = (op.name, op.line)
                if isinstance(op, wire.Gen | wire.Select | wire.Read):
                    self._expected.add(op.ref)
            self._n_sent += 1
            self._is_closed = last
            self._line.send(data)  # inside the lock: messages leave in the order of seq
        if last:
            self._line.settle_soon(self.number)

    def close(self) -> None:
        """Send the last message, if it was not sent yet."""
        with self._lock:
            if self._is_closed or self._line.lost is not None:
                return
            self._is_closed = True
            if self._n_sent:
                last = wire.Submit(program=self.number, seq=self._n_sent, ops=(), last=True, name=self.name)
                self._line.send(wire.encode(last))
                self._n_sent += 1
        self._line.settle_soon(self.number)

    def cancel(self) -> None:
        with self._lock:
            if self.is_settled or self._line.lost is not None:
                return
            self._is_closed = True
            if self._n_sent:
                self._line.send(wire.encode(wire.Cancel(program=self.number, seq=self._n_sent)))
                self._n_sent += 1
        self._line.settle_soon(self.number)

    def future(self, ref: int) -> Future[wire.Value]:
        with self._lock:
            future = self._futures.get(ref)
            if future is None:
                future = self._futures[ref] = new_future(wire.Value)
                if self._failure is not None:
                    future.set_exception(self._failure(*self._places.get(ref, ("", ""))))
            return future

    # ---- on the I/O thread ------------------------------------------------------------------------------------------

    def take(self, message: wire.Value | wire.Failed | wire.Delta) -> None:
        if message.seq < self._n_seen:
            return
        if message.seq > self._n_seen:
            n = message.seq - self._n_seen
            self.fail_all(lambda gen, line: RuntimeLost(f"{n} messages of program {self.name!r} were lost"))
            return
        self._n_seen += 1
        match message:
            case wire.Delta(ref=ref, text=text):
                self._deliver(ref, text)
            case wire.Value(ref=ref):
                self._resolve(ref, message)
            case wire.Failed(ref=None):
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
            future = self._futures.get(ref)
            if future is None:
                future = self._futures[ref] = new_future(wire.Value)
        if future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def fail_all(self, make: MakeError) -> None:
        """Fail what is pending, and what will ever be asked for; only the first failure counts."""
        with self._lock:
            if self._failure is None:
                self._failure = make
            self._expected.clear()
            pending = [(ref, f) for ref, f in self._futures.items() if not f.done()]
        for ref, future in pending:
            future.set_exception(self._failure(*self._places.get(ref, ("", ""))))

    def listen(self, ref: int, callback: Callable[[str], None]) -> None:
        self._listeners[ref] = callback
        for text in self._heard.pop(ref, ()):
            self._deliver(ref, text)

    def _deliver(self, ref: int, text: str) -> None:
        listener = self._listeners.get(ref)
        if listener is None:
            self._heard.setdefault(ref, []).append(text)
            return
        try:
            listener(text)
        except Exception as e:  # the user's code: its error belongs to the one who waits for this value
            del self._listeners[ref]
            self._resolve(ref, e)
