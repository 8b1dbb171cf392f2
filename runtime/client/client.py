"""Client side of the protocol: one connection per process and server, and one I/O thread per process.

All methods may be called from any thread. Only `connect`, `ask` and a future's `result` block. Every future resolves:
to a value, to the error of its program, or to RuntimeLost if the server is gone. A forked child makes its own
connections: it cannot use the clients of its parent, and affects neither their connections nor their threads.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zmq

from banyan.runtime.client import splitting
from banyan.runtime.client.program_futures import ProgramFutures, ProgramHandle
from banyan.runtime.config import API_KEY, SERVER_KEY, TOKEN
from banyan.runtime.errors import BadMessage, BanyanError, ConnectFailed, RuntimeLost, from_code
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import ipc, tcp_auth, wire
from banyan.runtime.protocol.http_frames import SCHEMES, server_url
from banyan.runtime.protocol.limits import MAX_NAME
from banyan.runtime.protocol.op_template import ProgramTemplate

RECONNECT_TIMEOUT = 120.0
"""Seconds that durable programs wait for their server to come back."""
_RECONNECT_HANDSHAKE, _RECONNECT_PAUSE = 5.0, 0.2  # seconds for one attempt, and between two


def connect(path: str | Path, timeout: float = 10.0, token: str = "", server_key: str = "", tenant: str = "") -> Client:
    """Returns this process's client for the server at `path`: a socket's path, tcp://HOST:PORT, or the URL of the
    server's HTTP process. The first call for a server makes the connection. Raises ConnectFailed, with the reason, if
    this fails.

    token: the access token, or over HTTP the API key, if the server asks for one; by default the environment variable
    BANYAN_TOKEN, or over HTTP BANYAN_API_KEY. server_key: for tcp:// only, the server's public key or the file that
    contains it; by default the environment variable BANYAN_SERVER_KEY. tenant: the tenant for which an operator
    connects (see wire.Hello).
    """
    is_url = str(path).startswith(SCHEMES)
    token = token or os.environ.get(API_KEY if is_url else TOKEN, "")
    if str(path).startswith("tcp://"):
        address = ServerAddress(str(path), token, server_key or os.environ.get(SERVER_KEY, ""), tenant)
    elif server_key:
        raise ConnectFailed(f"server_key is for tcp:// only, and not for {path}")
    elif is_url:
        address = ServerAddress(server_url(str(path)), token)
    else:
        address = ServerAddress(Path(path).absolute(), token, tenant=tenant)
    with _connecting:
        loop = _ClientLoop.of_this_process()
    return loop.client_for(address, timeout)


class ServerAddress(NamedTuple):
    """Where a server listens, and the credentials for it."""

    path: Path | str
    """A socket's path, tcp://HOST:PORT, or http(s)://HOST:PORT."""
    token: str = ""
    server_key: str = ""
    tenant: str = ""

    def __repr__(self) -> str:  # does not show the token
        return f"ServerAddress({str(self.path)!r})"


class Client:
    """One connection to one server. Made by `connect`."""

    welcome: wire.Welcome
    lost: str | None
    """Why the connection cannot be used any more; None while it can."""

    def __init__(
        self, loop: _ClientLoop, address: ServerAddress, timeout: float, is_for_durables: bool = False
    ) -> None:
        self.address, self.path, self.lost, self._pid = address, address.path, None, os.getpid()
        self._loop, self._lock = loop, threading.Lock()
        self._programs: dict[int, ProgramFutures] = {}
        self._admitted: dict[int, ProgramFutures] = {}  # at most welcome.max_programs; 0: any number
        self._waiting: OrderedDict[int, ProgramFutures] = OrderedDict()  # for admission
        self._kept: list[ProgramFutures] = []  # durable programs that were lost with this connection
        self.templates: dict[int, ProgramTemplate] = {}  # by number
        self._answers: dict[int, ValueFuture[wire.Answer]] = {}
        # Programs and templates of a lost connection keep their numbers here, so new numbers start above them.
        self._numbers, self._ask_ids = itertools.count(loop.n_lost << 32), itertools.count()
        # Made by a reconnect, and closed when its durable programs have ended, unless a user connects meanwhile.
        self.is_for_durables = is_for_durables
        self._n_unanswered = 0  # heartbeats since the last message of the server
        if isinstance(address.path, Path):
            self.socket, self.monitor = ipc.connect(loop.context, address.path)
        elif address.path.startswith(SCHEMES):
            from banyan.runtime.client import http_transport  # imported here, because it loads http.client and ssl

            self.socket, self.monitor = http_transport.connect(loop.context, address.path, address.token, timeout)
        else:
            self.socket, self.monitor = tcp_auth.connect(loop.context, address.path, address.server_key, timeout)
        try:
            self.welcome = self._handshake(timeout)
        except BaseException:
            self.close_sockets()
            raise
        # Registered here and not on the I/O thread, so that the next `connect` does not make a second connection.
        loop.clients[address] = self
        loop.call(partial(loop.add, self))

    def _handshake(self, timeout: float) -> wire.Welcome:
        self.send_now(
            wire.encode(wire.Hello(wire.VERSION, f"pid {os.getpid()}", self.address.token, self.address.tenant))
        )
        poller = zmq.Poller()
        poller.register(self.monitor, zmq.POLLIN)
        ready = dict(poller.poll(int(timeout * 1000)))
        if ready:
            self._connection = ipc.connected(self.monitor)
            poller.register(self.socket, zmq.POLLIN)
            ready = dict(poller.poll(int(timeout * 1000)))
        if not ready:
            raise ConnectFailed(
                f"the server at {self.path} did not answer within {timeout:g} s; is it still loading its model?"
            )
        if self.socket not in ready:
            hint = ": is that its public key?" if self.address.server_key else "; see its output on stderr"
            raise ConnectFailed(f"the server at {self.path} ended, or closed the connection{hint}")
        try:
            answer = wire.decode_server(self.socket.recv())
        except msgspec.DecodeError as e:
            raise ConnectFailed(f"what listens at {self.path} is not a Banyan server ({e})") from e
        if isinstance(answer, wire.Failed):
            raise ConnectFailed(f"the server at {self.path} refused: {answer.message}")
        if not isinstance(answer, wire.Welcome) or answer.version != wire.VERSION:
            raise ConnectFailed(
                f"the server at {self.path} speaks a different protocol version from this client ({wire.VERSION}); "
                "install the same version of banyan on both sides"
            )
        return answer

    # ---- called from any thread ------------------------------------------------------------------------------------

    def program(self, name: str = "") -> ProgramHandle:
        """A new, empty program. Nothing is sent before its first `submit`."""
        self.check()
        program = ProgramFutures(self, next(self._numbers), name[:MAX_NAME])
        with self._lock:
            self._programs[program.number] = program
        return ProgramHandle(program)

    def define(self, template: ProgramTemplate) -> int:
        """Define a template on the server. Returns its number, for a Use in any program of this client. Raises
        BadMessage if the template is larger than the server allows."""
        self.check()
        number = next(self._numbers)
        n_bytes = len(wire.encode(_define(number, template)))
        if n_bytes > (most := self.welcome.max_message):
            raise BadMessage(
                f"this template has {n_bytes} bytes; the server accepts at most {most} at once; "
                "pass the large texts as arguments, or start the server with a larger max_message"
            )
        self.define_as(number, template)
        return number

    def define_as(self, number: int, template: ProgramTemplate) -> None:
        """Define a template under the number that it had on a lost connection, or before it was deleted."""
        self.templates[number] = template
        self.send(wire.encode(_define(number, template)))

    def undefine(self, number: int) -> None:
        """Delete the template `number` on the server. Safe in a finalizer."""
        if self.templates.pop(number, None) is not None:
            self.send(wire.encode(wire.Undefine(number)))

    def ask(
        self,
        what: wire.Topic,
        timeout: float = 30.0,
        limit: int = 0,
        since: int = -1,
        name: str = "",
        path: str = "",
    ) -> Any:
        """The server's answer to a question outside any program (see wire.Ask), decoded from JSON. Raises BanyanError
        if the server refuses, EngineLost if the engine dies before it answers, and RuntimeLost if there is no answer
        within `timeout` seconds."""
        self.check()
        number = next(self._ask_ids)
        future: ValueFuture[wire.Answer] = ValueFuture()
        self._answers[number] = future
        self.send(wire.encode(wire.Ask(number, what, limit, since, name, path)))
        try:
            answer = future.result(timeout)
        except TimeoutError:
            raise RuntimeLost(f"the server at {self.path} did not answer {what!r} within {timeout:g} s") from None
        finally:
            self._answers.pop(number, None)
        if not answer.ok:
            raise from_code(answer.code or BanyanError.code, answer.body.decode())
        return msgspec.json.decode(answer.body) if answer.body else None

    def close(self) -> None:
        """Disconnect. The server frees everything of this client, and pending futures fail with RuntimeLost.
        Idempotent."""
        if self._pid == os.getpid():
            done = threading.Event()
            drop = partial(self._loop.drop, self, "this client was closed", done)
            self._loop.call(partial(self._loop.call, drop))  # after the messages that queued calls send: Cancel
            if threading.current_thread() is not self._loop.thread:
                done.wait(5.0)

    def check(self) -> None:
        """Raise RuntimeLost if this client cannot be used: the server is gone, or this is a forked child."""
        if self.lost is not None:
            raise RuntimeLost(self.lost)

    def send(self, data: bytes) -> None:
        """Queue a message for the server. Messages leave in the order of calls."""
        self._loop.call(partial(self.send_now, data))

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` on the I/O thread, after the messages and actions queued before."""
        self._loop.call(action)

    def admit(self, program: ProgramFutures) -> bool:
        """Admit the program if the server has room for it. Otherwise queue the program and return False; its `admitted`
        is called later."""
        with self._lock:
            if self._waiting or not self._has_room():
                self._waiting[program.number] = program
                return False
            self._admitted[program.number] = program
            return True

    def _has_room(self) -> bool:
        """Whether one more program can be sent. Also True if no admitted program will end by itself: waiting would be
        useless, so the program is sent for the server to refuse."""
        most = self.welcome.max_programs
        if not most or len(self._admitted) < most:
            return True
        return not any(program.will_end for program in self._admitted.values())

    # ---- called on the I/O thread ----------------------------------------------------------------------------------

    def send_now(self, data: bytes) -> None:
        if self.lost is None:
            with contextlib.suppress(zmq.Again):  # the server is gone; the monitor will report it
                self.socket.send(data, zmq.NOBLOCK)

    def heartbeat(self) -> bool:
        """Send a Ping. Returns False if more than MAX_MISSED Pings are unanswered. Pings are counted and not seconds,
        because a client process that was suspended for a while sent no Pings that the server could have answered."""
        self._n_unanswered += 1
        self.send_now(wire.encode(wire.Ping()))
        return self._n_unanswered <= ipc.MAX_MISSED

    def receive(self) -> None:
        """Handle all messages that have arrived."""
        while self.lost is None:
            try:
                data = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._n_unanswered = 0
            self._handle(wire.decode_server(data))

    def _handle(self, message: wire.ServerMessage) -> None:
        match message:
            case wire.Answer(id=number):
                if future := self._answers.pop(number, None):
                    future.set_result(message)
            case wire.Value() | wire.Failed() | wire.Delta() | wire.Called():
                if isinstance(message, wire.Failed) and message.program < 0:
                    self._loop.drop(self, f"the server refused this client: {message.message}")
                elif program := self._programs.get(message.program):
                    program.receive(message)
                    self.forget_if_over(message.program)

    def forget_if_over(self, number: int) -> None:
        """Forget the program if it has ended, and admit waiting programs in its place."""
        program = self._programs.get(number)
        if program is None or not program.is_over:
            return
        if program.has_values_to_acknowledge:
            self.send_now(wire.encode(wire.Acknowledge(number)))
        program.fail_unresolved()
        admitted: list[ProgramFutures] = []
        with self._lock:
            self._programs.pop(number, None)
            self._waiting.pop(number, None)
            if self._admitted.pop(number, None) is not None:
                while self._waiting and self._has_room():
                    waiting, other = self._waiting.popitem(last=False)
                    self._admitted[waiting] = other
                    admitted.append(other)
        for other in admitted:
            other.admitted()
        if self.is_for_durables and not self._programs:
            self._loop.call(self._drop_if_unused)  # after the messages that queued calls send: Cancel

    def _drop_if_unused(self) -> None:
        with _connecting:  # a user may connect now
            if self.is_for_durables and not self._programs and self.lost is None:
                self._loop.drop(self, "its durable programs have ended")

    @property
    def has_durables(self) -> bool:
        with self._lock:
            return any(program.is_durable for program in self._programs.values())

    def adopt(self, programs: Sequence[ProgramFutures]) -> None:
        """Resume durable programs of a lost connection on this connection."""
        if self.lost is not None:
            self._loop.reconnect(self.address, programs, self.lost)
            return
        for program in programs:
            if not program.is_over:
                with self._lock:
                    self._programs[program.number] = program
                program.resume(self)
                self.forget_if_over(program.number)
        self._loop.call(self._drop_if_unused)  # all of them may have ended meanwhile

    def lose(self, why: str, keep_durable: bool = False) -> list[ProgramFutures]:
        """Mark the connection as lost, and fail all programs and all calls of `ask`. With `keep_durable`, durable
        programs do not fail; returns these programs."""
        with self._lock:
            self.lost = why
            programs, self._programs = list(self._programs.values()), {}
            self._admitted.clear()
            self._waiting.clear()
        kept = [program for program in programs if keep_durable and program.is_durable and not program.is_over]
        self._kept = kept
        for program in programs:
            if program not in kept:
                program.fail_all(lambda gen, line: RuntimeLost(why))
        while self._answers:
            self._answers.popitem()[1].set_exception(RuntimeLost(why))
        return kept

    def give_up(self, why: str) -> None:
        """Fail the durable programs that still wait for their server, because the user closes this lost connection."""
        for program in self._kept:
            program.give_up(self, why)
        self._kept = []

    def close_sockets(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(1000)  # ms in which libzmq still sends, in its own thread

    def lose_in_forked_child(self) -> None:
        """Mark the client as lost in a forked child, and fail its programs there. Replaces the locks, which threads of
        the parent may have held."""
        self._lock = threading.Lock()
        self.lost = (
            f"this belongs to process {self._pid}, and process {os.getpid()} is its fork; run the program again here"
        )
        for program in self._programs.values():
            program.lose_in_forked_child(self.lost)
        self._programs.clear()
        ipc.close_in_fork(self._connection)


class _ClientLoop:
    """The I/O thread of this process. It serves all clients and sleeps while there is nothing to do."""

    current: _ClientLoop | None = None

    @classmethod
    def of_this_process(cls) -> _ClientLoop:
        if cls.current is None:
            cls.current = cls()
        return cls.current

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.clients: dict[ServerAddress, Client] = {}
        self._handshakes: dict[ServerAddress, threading.Lock] = {}
        self.n_lost = 0  # lost connections that had durable programs
        self._calls: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        self._poller.register(self._wake, zmq.POLLIN)
        self._is_woken = self._is_stopping = False
        self.thread = threading.Thread(target=self._run, name="banyan-io", daemon=True)
        self.thread.start()

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` on the I/O thread, in the order of calls. Does not block."""
        self._calls.append(action)
        if not self._is_woken:
            self._is_woken = True
            os.eventfd_write(self._wake, 1)

    def client_for(self, address: ServerAddress, timeout: float, is_for_durables: bool = False) -> Client:
        """Return the open connection to a server, or make a new one. Raises ConnectFailed if the server does not
        answer. is_for_durables: a new connection is only for programs that resume after a lost connection, and is
        closed after the last of them."""
        with _connecting:
            handshake = self._handshakes.setdefault(address, threading.Lock())
        # Others that want this server wait, and get the same client.
        if not handshake.acquire(timeout=timeout):
            raise ConnectFailed(f"{address.path} did not answer within {timeout:g} s; another thread waits for it too")
        try:
            with _connecting:
                client = self.clients.get(address)
                if client is not None and client.lost is None:
                    client.is_for_durables = client.is_for_durables and is_for_durables
                    return client
            return Client(self, address, timeout, is_for_durables)
        finally:
            handshake.release()

    def add(self, client: Client) -> None:
        self._poller.register(client.socket, zmq.POLLIN)
        self._poller.register(client.monitor, zmq.POLLIN)
        client.receive()  # messages that arrived since the handshake do not wake the poller

    def drop(
        self, client: Client, why: str, done: threading.Event | None = None, *, may_come_back: bool = False
    ) -> None:
        """Close a connection, and set `done`. may_come_back: durable programs wait until the server is back. If the
        connection was already lost, fail the durable programs that still wait."""
        if client.lost is None:
            self.n_lost += may_come_back and client.has_durables  # before the next client takes numbers from it
            if self.clients.get(client.address) is client:
                del self.clients[client.address]
                self._poller.unregister(client.socket)
                self._poller.unregister(client.monitor)
            kept = client.lose(why, keep_durable=may_come_back)
            client.close_sockets()
            if kept:
                self.reconnect(client.address, kept, why)
        else:
            client.give_up(why)
        if done is not None:
            done.set()

    def reconnect(self, address: ServerAddress, programs: Sequence[ProgramFutures], why: str) -> None:
        """Start a thread that waits for the server and resumes durable programs there. If the server does not come
        back, they fail with RuntimeLost(`why`)."""

        def attempt() -> None:
            client = self.client_for(address, _RECONNECT_HANDSHAKE, is_for_durables=True)
            self.call(partial(client.adopt, programs))

        def run() -> None:
            end, last_error = time.monotonic() + RECONNECT_TIMEOUT, ""
            while time.monotonic() < end and not all(program.is_over for program in programs):
                try:
                    return attempt()
                except Exception as e:  # such as too many open files: without this thread, programs would wait forever
                    last_error = e.message if isinstance(e, BanyanError) else repr(e)
                    time.sleep(_RECONNECT_PAUSE)
            text = f"{why}, and did not come back within {RECONNECT_TIMEOUT:g} s ({last_error})"
            for program in programs:
                self.call(partial(program.fail_all, lambda gen, line: RuntimeLost(text)))
            return None

        threading.Thread(target=run, name="banyan-reconnect", daemon=True).start()

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as e:
            # A bug. Without this thread, futures would never resolve, so they fail.
            for client in list(self.clients.values()):
                self.drop(client, f"the I/O thread of this process failed: {e!r}")
            _ClientLoop.current = None
            raise

    def _loop(self) -> None:
        next_heartbeat = time.monotonic() + ipc.HEARTBEAT
        while not self._is_stopping:
            timeout = int(max(0.0, next_heartbeat - time.monotonic()) * 1000) + 1 if self.clients else None
            ready = dict(self._poller.poll(timeout))
            with _busy:
                self._serve(ready)
                if time.monotonic() >= next_heartbeat:
                    next_heartbeat = time.monotonic() + ipc.HEARTBEAT
                    for client in list(self.clients.values()):
                        if not client.heartbeat():
                            self.drop(client, f"the server at {client.path} stopped answering", may_come_back=True)

    def _serve(self, ready: dict[Any, int]) -> None:
        if self._wake in ready:
            os.eventfd_read(self._wake)
            self._is_woken = False  # before the calls are taken: a later caller must wake the thread again
        while self._calls:
            self._calls.popleft()()
        for client in list(self.clients.values()):
            if client.socket in ready:
                client.receive()
            if client.monitor in ready and ipc.drain(client.monitor):
                client.receive()  # messages sent before the connection broke
                self.drop(client, f"the server at {client.path} is gone", may_come_back=True)

    def lose_in_forked_child(self) -> None:
        """Mark all clients as lost in a forked child. The child has no I/O thread that `call` could wake."""
        os.close(self._wake)
        self._is_woken = True
        for client in self.clients.values():
            client.lose_in_forked_child()

    def stop(self) -> None:
        """Close all connections and end the thread. Called at the exit of the process."""
        self.call(self._stop)
        self.thread.join(5.0)

    def _stop(self) -> None:
        for client in list(self.clients.values()):
            self.drop(client, RuntimeLost.AT_EXIT)
        self._is_stopping = True


def _define(number: int, template: ProgramTemplate) -> wire.Define:
    ops: list[wire.TemplateOp] = []
    for op in template.ops:
        ops += splitting.short_appends(op) if isinstance(op, wire.Append) else (op,)
    return wire.Define(number, tuple(ops))


_connecting = threading.Lock()
"""Held while a connection is looked up, and while an unused one is closed. Never held while waiting for a server."""
_busy = threading.RLock()
"""Held while messages are handled and during a fork, so that no future is half resolved in the child."""


def _reset_in_forked_child() -> None:
    global _connecting
    loop, _ClientLoop.current, _connecting = _ClientLoop.current, None, threading.Lock()
    if loop is not None:
        loop.lose_in_forked_child()
    _busy.release()


def _stop_at_exit() -> None:
    if _ClientLoop.current is not None:
        _ClientLoop.current.stop()


os.register_at_fork(before=_busy.acquire, after_in_parent=_busy.release, after_in_child=_reset_in_forked_child)
atexit.register(_stop_at_exit)
