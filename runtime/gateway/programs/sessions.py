"""Connections to the server, one for each HTTP client that sends programs. The server sees each connection as a
separate client. So its limits, its fairness and its handling of lost clients work as for clients on the socket."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path

import zmq

from banyan.runtime.client.client import Client
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.programs.json_program import JSONProgram
from banyan.runtime.protocol import ipc, wire

MAX_SESSIONS = 256
"""Maximum number of sessions of one tenant at a time."""
MAX_WAITING = 64 << 20
"""Maximum number of bytes that wait for a client that does not read. A client with more loses its session."""
WELCOME_SECONDS = 10.0


class Session:
    """A connection to the server for one HTTP client. All its methods run on one event loop. is_over: whether it is
    closed."""

    def __init__(
        self,
        context: ipc.Context,
        path: Path,
        tenant: str,
        on_close: Callable[[Session], object] = lambda session: None,
    ) -> None:
        """on_close: called once, when the session is closed."""
        self.id, self.tenant, self._on_close = secrets.token_hex(16), tenant, on_close
        self.is_over = False
        self.program: JSONProgram | None = None
        """The one program of a session in JSON."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._socket, self._monitor = ipc.connect(context, path)
        self._arrived: list[bytes] = []
        self._n_waiting = 0  # bytes
        self._waiter: asyncio.Future[None] | None = None
        self._is_watched = False
        self._loop.add_reader(self._socket.fileno(), self._take)

    async def begin(self, hello: wire.Hello) -> bytes:
        """Send `hello`, the first message, and return the server's answer, an encoded Welcome. HTTPError: the server
        refuses the client, or does not answer."""
        self.send(wire.encode(hello))
        try:
            async with asyncio.timeout(WELCOME_SECONDS):
                (data, *_) = await self.messages()
        except (TimeoutError, ValueError):
            raise HTTPError(503, "the server does not answer") from None
        if isinstance(answer := wire.decode_server(data), wire.Failed):
            raise HTTPError(503 if answer.code == "overloaded" else 400, answer.message, code=answer.code)
        ipc.connected(self._monitor)  # read the event that came before the Welcome
        self._is_watched = True
        self._loop.add_reader(self._monitor.fileno(), self._take)
        self._take()
        return data

    def send(self, data: bytes) -> None:
        """Queue a message for the server. No effect once the session is closed."""
        if self.is_over:
            return
        with contextlib.suppress(zmq.Again):  # the server is gone, which the monitor reports
            self._socket.send(data, zmq.NOBLOCK)
        self._take()  # sending may clear the event that announces a message

    def keep_alive(self) -> None:
        """Send heartbeats to the server from now on. Needed for clients that speak JSON; Banyan's own client sends
        heartbeats itself."""
        self.send(wire.encode(wire.Ping()))
        if not self.is_over:
            self._timer = self._loop.call_later(ipc.HEARTBEAT, self.keep_alive)

    async def messages(self) -> list[bytes]:
        """Wait until messages arrive from the server, and return all that have arrived. []: no more will come, because
        the server is gone, the session has ended, or the client read too slowly."""
        while not (self._arrived or self.is_over):
            self._waiter = self._loop.create_future()
            await self._waiter
        arrived, self._arrived, self._n_waiting = self._arrived, [], 0
        return arrived

    def _take(self) -> None:
        """Read all messages that have arrived on the socket. libzmq may announce several messages only once, so it is
        not enough to read one for each call."""
        if self.is_over:
            return
        is_gone = self._is_watched and ipc.drain(self._monitor)
        with contextlib.suppress(zmq.Again):
            while self._n_waiting <= MAX_WAITING:
                self._arrived.append(data := self._socket.recv(zmq.NOBLOCK))
                self._n_waiting += len(data)
        if self._n_waiting > MAX_WAITING:
            self._arrived.clear()
            self.close()
        elif is_gone:
            self.close()
        elif self._arrived:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Disconnect: the server ends the programs of the session. `messages` returns what has arrived, and then [].
        Idempotent."""
        if self.is_over:
            return
        self.is_over = True
        for one in (self._socket, self._monitor):
            self._loop.remove_reader(one.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(1000)
        self._wake()
        self._on_close(self)


class Sessions:
    """The open sessions of the HTTP process, by their ids."""

    def __init__(self) -> None:
        self._context: ipc.Context = zmq.Context()
        self._sessions: dict[str, Session] = {}

    async def open(self, client: Client, version: int, name: str) -> tuple[Session, bytes]:
        """Open a session for the client's tenant. Returns the session and the server's encoded Welcome. version: the
        client's version of the protocol. name: what the client calls itself. HTTPError: the tenant has too many
        sessions, or the server refuses or does not answer. ConnectFailed: the server is gone."""
        address = client.address
        tenant = address.tenant
        if sum(one.tenant == tenant for one in self._sessions.values()) >= MAX_SESSIONS:
            raise HTTPError(
                429, f"{MAX_SESSIONS} sessions of this API key are open, which is the maximum; end some of them"
            )
        session = Session(self._context, Path(address.path), tenant, lambda closed: self._sessions.pop(closed.id))
        self._sessions[session.id] = session
        try:
            return session, await session.begin(wire.Hello(version, name, address.token, address.tenant))
        except BaseException:
            session.close()
            raise

    def find(self, name: str, tenant: str) -> Session:
        """The open session with this id. HTTPError: the tenant has none."""
        session = self._sessions.get(name)
        if session is None or session.tenant != tenant:
            raise HTTPError(404, "there is no such session; a session ends with the response to its first request")
        return session

    def close(self) -> None:
        """Close all sessions, which ends the HTTP responses that stream from them. Called when the process ends."""
        for session in list(self._sessions.values()):
            session.close()
