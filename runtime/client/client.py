"""The user's end of the wire: one connection per process and socket, one I/O thread per process.

    client = connect(path)
    program = client.program("qa")
    program.submit([Append(0, ("Hello",)), Gen(0, ref=0)])
    program.future(0).result()

All calls are safe from any thread. None of them waits, but `connect`, `ask` and a future's own `result`. Every future
resolves: to a value, to the error that the program met, or to RuntimeLost when the server is gone. A forked child
starts with no connection and must make its own.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import zmq

from banyan.runtime.client import reconnect
from banyan.runtime.client.admission import Admission
from banyan.runtime.client.program_futures import ProgramFutures
from banyan.runtime.client.program_handle import ProgramHandle
from banyan.runtime.config import SERVER_KEY, TOKEN
from banyan.runtime.errors import BadMessage, BanyanError, ConnectFailed, RuntimeLost
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import ipc, tcp_auth, wire
from banyan.runtime.protocol.op_template import ProgramTemplate
from banyan.runtime.protocol.resend_window import pack, unpack

_TRY = 5.0
"""Seconds that a handshake has with a server that comes back."""


def connect(path: str | Path, timeout: float = 10.0, token: str = "", server_key: str = "") -> Client:
    """The client of this process for the server at `path`, or at tcp://HOST:PORT; made by a handshake the first time.

    token: what the server asks for, if it does. server_key: its public key, or the file of it; by tcp:// only. "": what
    the environment has (BANYAN_TOKEN, BANYAN_SERVER_KEY). ConnectFailed: no such socket, nobody answers in `timeout`
    seconds, the token or the key is wrong, or the server speaks another version.
    """
    token = token or os.environ.get(TOKEN, "")
    if str(path).startswith("tcp://"):
        door = Door(str(path), token, server_key or os.environ.get(SERVER_KEY, ""))
    elif server_key:
        raise ConnectFailed(f"server_key is for tcp://; {path} is the path of a socket, and needs none")
    else:
        door = Door(Path(path).absolute(), token)
    with _opening:
        loop = _ClientLoop.of_this_process()
        client = loop.clients.get(door)
        if client is None or client.lost is not None:
            client = Client(loop, door, timeout)
        client._is_guest = False
        return client


class Door(NamedTuple):
    """Where a server is, and as whom to go there."""

    path: Path | str
    """A socket, or tcp://HOST:PORT."""
    token: str = ""
    server_key: str = ""

    def __repr__(self) -> str:  # a token is no business of a log's
        return f"Door({str(self.path)!r})"


class Client:
    """One connection to one server. Make it with `connect`."""

    welcome: wire.Welcome
    lost: str | None
    """Why the connection is of no more use; None while it is."""

    def __init__(self, loop: _ClientLoop, door: Door, timeout: float) -> None:
        self.door, self.path, self.lost, self._pid = door, door.path, None, os.getpid()
        self._loop, self._lock = loop, threading.Lock()
        self._inboxes: dict[int, ProgramFutures] = {}
        self._templates: dict[int, ProgramTemplate] = {}
        self._answers: dict[int, ValueFuture[wire.Answer]] = {}
        # Programs of a connection that was lost may come here, and keep their numbers.
        self._numbers, self._questions = itertools.count(loop.n_lost << 32), itertools.count()
        self._is_guest = False  # nobody joined by it: it is here for durable programs, and leaves with them
        self.n_unanswered = 0  # heartbeats since the server was last heard
        if isinstance(door.path, Path):
            self.socket, self.monitor = ipc.reach(loop.context, door.path)
        else:
            self.socket, self.monitor = tcp_auth.reach(loop.context, door.path, door.server_key, timeout)
        try:
            self.welcome = self._shake_hands(timeout)
        except BaseException:
            self.shut()
            raise
        self._credit = Admission(self.welcome.credit)
        # Known from here on, not when the I/O thread gets to it: the next caller must not make a second connection.
        loop.clients[door] = self
        loop.call(partial(loop.add, self))

    def _shake_hands(self, timeout: float) -> wire.Welcome:
        hello = wire.Hello(version=wire.VERSION, client=f"pid {os.getpid()}", token=self.door.token)
        with contextlib.suppress(zmq.Again):  # gone already: the monitor says so
            self.socket.send(wire.encode(hello), zmq.NOBLOCK)
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.monitor, zmq.POLLIN)
        ready = dict(poller.poll(int(timeout * 1000)))
        if not ready:
            raise ConnectFailed(
                f"the server at {self.path} did not answer within {timeout:g} s; is it still loading its model?"
            )
        if self.socket not in ready:
            doubt = ": is that its public key?" if self.door.server_key else "; see what it wrote to stderr"
            raise ConnectFailed(f"the server at {self.path} ended, or hung up{doubt}")
        try:
            answer = wire.decode_server(self.socket.recv())
        except msgspec.DecodeError as e:
            raise ConnectFailed(f"what listens at {self.path} is not a Banyan server ({e})") from e
        if isinstance(answer, wire.Failed):
            raise ConnectFailed(f"the server at {self.path} refused: {answer.message}")
        if not isinstance(answer, wire.Welcome) or answer.version != wire.VERSION:
            raise ConnectFailed(
                f"the server at {self.path} speaks another version of the protocol than this one ({wire.VERSION}); "
                "install the same version of banyan on both sides"
            )
        return answer

    # ---- called from any thread ------------------------------------------------------------------------------------

    def program(self, name: str = "") -> ProgramHandle:
        """A new, empty program. No message is sent before its first `submit`."""
        self.check()
        inbox = ProgramFutures(self, next(self._numbers), name)
        with self._lock:
            self._inboxes[inbox.number] = inbox
        return ProgramHandle(inbox)

    def define(self, template: ProgramTemplate) -> int:
        """Make a template known to the server; gives its number, for a Use in any program of this client.

        BadMessage: larger than the server takes.
        """
        self.check()
        number = next(self._numbers)
        data = wire.encode(wire.Define(number, template.ops))
        if len(data) > self.max_message:
            raise BadMessage(
                f"this template takes {len(data)} bytes, and the server takes {self.max_message} at once; "
                "give the large texts as arguments, or start it with a larger max_message"
            )
        self._templates[number] = template
        self.send(data)
        return number

    def undefine(self, number: int) -> None:
        """The template is used no more. Safe in a finalizer."""
        if self._templates.pop(number, None) is not None and self._pid == os.getpid():
            self.send(wire.encode(wire.Undefine(number)))

    def template(self, number: int) -> ProgramTemplate:
        """One that was defined."""
        return self._templates[number]

    def has_template(self, number: int) -> bool:
        """Whether it is so still."""
        return number in self._templates

    def ask(
        self,
        what: Literal["stats", "flush", "check", "info", "tree", "events"],
        timeout: float = 30.0,
        most: int = 0,
        since: int = -1,
    ) -> Any:
        """The server's answer to a question outside any program, parsed from JSON.

        BanyanError holds the server's words where the answer is a no; RuntimeLost, where there is none in `timeout` s.
        """
        self.check()
        number = next(self._questions)
        future: ValueFuture[wire.Answer] = ValueFuture()
        self._answers[number] = future
        self.send(wire.encode(wire.Ask(id=number, what=what, most=most, since=since)))
        try:
            answer = future.result(timeout)
        except TimeoutError:
            raise RuntimeLost(f"the server at {self.path} did not answer {what!r} within {timeout:g} s") from None
        finally:
            self._answers.pop(number, None)
        if not answer.ok:
            raise BanyanError(answer.body.decode())
        return msgspec.json.decode(answer.body) if answer.body else None

    def close(self) -> None:
        """Leave the server: it frees all that this client had; pending futures fail with RuntimeLost. Idempotent."""
        if self._pid == os.getpid():
            gone = threading.Event()
            self._loop.call(partial(self._loop.drop, self, "this client was closed", gone))
            if threading.current_thread() is not self._loop.thread:
                gone.wait(5.0)

    def check(self) -> None:
        """RuntimeLost if this client cannot be used: the server is gone, or this is a forked child."""
        if self._pid != os.getpid():
            raise RuntimeLost(
                f"this client belongs to process {self._pid}, and this is its fork {os.getpid()}; "
                "connect in the process that uses it"
            )
        if self.lost is not None:
            raise RuntimeLost(self.lost)

    def send(self, data: bytes) -> None:
        """Queue a message for the server; messages leave in the order of calls."""
        self._loop.call(partial(self.send_now, data))

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` on the I/O thread, after all that was queued before."""
        self._loop.call(action)

    @property
    def max_message(self) -> int:
        """Bytes of the largest message that the server takes."""
        return self.welcome.max_message

    # ---- called on the I/O thread ----------------------------------------------------------------------------------

    def send_now(self, data: bytes) -> None:
        if self.lost is None:
            with contextlib.suppress(zmq.Again):  # the server has just gone: the monitor says so next
                self.socket.send(data, zmq.NOBLOCK)

    def beat(self) -> bool:
        """Send a Ping, and what there is to compare. False: the server was silent for too many of them.

        Counted in beats, not seconds: a process that was suspended has sent none, and so misses none.
        """
        self.n_unanswered += 1
        self.send_now(wire.encode(wire.Ping()))
        with self._lock:
            inboxes = list(self._inboxes.values())
        reports = filter(None, (inbox.report() for inbox in inboxes))
        while some := list(islice(reports, 1000)):  # a server takes messages of a certain size at most
            self.send_now(wire.encode(wire.Sync(pack(some))))
        for inbox in inboxes:
            self.settle(inbox.number)
        return self.n_unanswered <= ipc.MISSED

    def receive(self) -> None:
        """Take all messages that are there."""
        while self.lost is None:
            try:
                data = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.n_unanswered = 0
            self._take(wire.decode_server(data))

    def _take(self, message: wire.ServerMessage) -> None:
        match message:
            case wire.Answer(id=number):
                if future := self._answers.pop(number, None):
                    future.set_result(message)
            case wire.Resend(program=number, seq=seq):
                if inbox := self._inboxes.get(number):
                    inbox.send_again(seq)
            case wire.Sync(programs=programs):
                for number, sent, seen in unpack(programs):
                    if inbox := self._inboxes.get(number):
                        inbox.compare(sent, seen)
                        self.settle(number)
            case wire.Value() | wire.Failed() | wire.Delta() | wire.Called():
                if isinstance(message, wire.Failed) and message.program < 0:
                    self._loop.drop(self, f"the server refused this client: {message.message}")
                elif inbox := self._inboxes.get(message.program):
                    inbox.take(message)
                    self.settle(message.program)

    def settle(self, number: int) -> None:
        """End what is asked of a program that is over, and forget it once the server knows so too."""
        inbox = self._inboxes.get(number)
        if inbox is None or not inbox.is_over:
            return
        inbox.end()
        self._credit.leave(number)
        if inbox.is_settled:
            with self._lock:
                self._inboxes.pop(number, None)
            if self._is_guest and not self._inboxes:
                self._loop.drop(self, "its durable programs have ended")

    def admit(self, inbox: ProgramFutures) -> bool:
        """Whether the server has room for one more program. Else `inbox` is told when it has."""
        return self._credit.admit(inbox)

    def abandon(self, number: int) -> None:
        """The user's handle on a program is gone."""
        if inbox := self._inboxes.get(number):
            inbox.close()

    @property
    def has_durables(self) -> bool:
        with self._lock:
            return any(inbox.is_durable for inbox in self._inboxes.values())

    def adopt(self, inboxes: Sequence[ProgramFutures], is_guest: bool) -> None:
        """Durable programs whose server is gone go on here."""
        if self.lost is not None:
            self._loop.reconnect(self.door, inboxes, self.lost)
            return
        self._is_guest = self._is_guest or is_guest
        for inbox in inboxes:
            if not inbox.is_over:
                with self._lock:
                    self._inboxes[inbox.number] = inbox
                inbox.resume(self)

    def lose(self, why: str, keep_durable: bool = False) -> list[ProgramFutures]:
        """It is of no more use: what waits for it fails. Returns the programs that are kept, and do not."""
        with self._lock:
            self.lost = why
            inboxes, self._inboxes = list(self._inboxes.values()), {}
        self._credit.close()
        kept = [inbox for inbox in inboxes if keep_durable and inbox.is_durable and not inbox.is_over]
        for inbox in inboxes:
            if inbox not in kept:
                inbox.fail_all(lambda gen, line: RuntimeLost(why))
        while self._answers:
            self._answers.popitem()[1].set_exception(RuntimeLost(why))
        return kept

    def shut(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


class _ClientLoop:
    """The I/O thread of this process. It serves all clients, and sleeps while there is nothing to do."""

    current: _ClientLoop | None = None

    @classmethod
    def of_this_process(cls) -> _ClientLoop:
        if cls.current is None:
            cls.current = cls()
        return cls.current

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.clients: dict[Door, Client] = {}
        self.n_lost = 0  # clients with durable programs
        # Held while messages are handled, and over a fork: so no future is half resolved in the child.
        self.busy = threading.RLock()
        self._todo: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        self._poller.register(self._wake, zmq.POLLIN)
        self._is_woken = self._is_stopping = False
        self.thread = threading.Thread(target=self._run, name="banyan-io", daemon=True)
        self.thread.start()

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` on the I/O thread, in the order of calls. Never waits."""
        self._todo.append(action)
        if not self._is_woken:
            self._is_woken = True
            os.eventfd_write(self._wake, 1)

    def add(self, client: Client) -> None:
        self._poller.register(client.socket, zmq.POLLIN)
        self._poller.register(client.monitor, zmq.POLLIN)
        client.receive()  # what came between the handshake and now will not wake the poller again

    def drop(
        self, client: Client, why: str, gone: threading.Event | None = None, *, may_come_back: bool = False
    ) -> None:
        if client.lost is None:
            self.n_lost += may_come_back and client.has_durables  # first: who joins now counts on from there
            if self.clients.get(client.door) is client:
                del self.clients[client.door]
                self._poller.unregister(client.socket)
                self._poller.unregister(client.monitor)
            kept = client.lose(why, keep_durable=may_come_back)
            client.shut()
            if kept:
                self.reconnect(client.door, kept, why)
        if gone is not None:
            gone.set()

    def reconnect(self, door: Door, inboxes: Sequence[ProgramFutures], why: str) -> None:
        """Durable programs of a server that is gone wait for it."""

        def enter() -> None:
            with _opening:
                client = self.clients.get(door)
                is_new = client is None or client.lost is not None
                client = Client(self, door, _TRY) if client is None or is_new else client
            self.call(partial(client.adopt, inboxes, is_new))

        reconnect.start(enter, self.call, inboxes, why)

    def _run(self) -> None:
        try:
            self._cycle()
        except BaseException as e:
            # Not foreseen; but nobody may wait for a thread that is gone.
            for client in list(self.clients.values()):
                self.drop(client, f"the I/O thread of this process failed: {e!r}")
            _ClientLoop.current = None
            raise

    def _cycle(self) -> None:
        beat = time.monotonic() + ipc.HEARTBEAT
        while not self._is_stopping:
            wait = int(max(0.0, beat - time.monotonic()) * 1000) + 1 if self.clients else None
            ready = dict(self._poller.poll(wait))
            with self.busy:
                self._serve(ready)
                if time.monotonic() >= beat:
                    beat = time.monotonic() + ipc.HEARTBEAT
                    for client in list(self.clients.values()):
                        if not client.beat():
                            self.drop(client, f"the server at {client.path} stopped answering", may_come_back=True)

    def _serve(self, ready: dict[Any, int]) -> None:
        if self._wake in ready:
            os.eventfd_read(self._wake)
            self._is_woken = False  # before `todo` is emptied: who comes later wakes us again
        while self._todo:
            self._todo.popleft()()
        for client in list(self.clients.values()):
            if client.socket in ready:
                client.receive()
            if client.monitor in ready and ipc.drain(client.monitor):
                client.receive()  # its last words, if any
                self.drop(client, f"the server at {client.path} is gone", may_come_back=True)

    def stop(self) -> None:
        """Close everything and end the thread: at the end of the process."""
        self.call(self._stop)
        self.thread.join(5.0)

    def _stop(self) -> None:
        for client in list(self.clients.values()):
            self.drop(client, "this process is ending")
        self._is_stopping = True


_opening = threading.Lock()


def _forget_in_child() -> None:
    global _opening
    loop, _ClientLoop.current, _opening = _ClientLoop.current, None, threading.Lock()
    if loop is None:
        return
    for client in loop.clients.values():
        client._lock, client._credit = threading.Lock(), Admission(0)
        for inbox in client._inboxes.values():
            inbox._lock = threading.Lock()
        client.lose("the connection stayed with the parent of this forked process; connect in this process")


def _before_fork() -> None:
    if _ClientLoop.current is not None:
        _ClientLoop.current.busy.acquire()


def _after_fork() -> None:
    if _ClientLoop.current is not None:
        _ClientLoop.current.busy.release()


def _at_exit() -> None:
    if _ClientLoop.current is not None:
        _ClientLoop.current.stop()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget_in_child)
atexit.register(_at_exit)
