"""Engines on other machines. On each machine a host (engine_host.py) starts an engine, and passes messages on.

Hosts join at one encrypted socket, which accepts only hosts whose public keys are in a file. When a connection breaks,
its engine counts as dead. A host that comes back gets a new engine.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from banyan.runtime.config import Config
from banyan.runtime.errors import ConfigError, ConnectFailed
from banyan.runtime.protocol import decoders, ipc, tcp_auth, wire
from banyan.runtime.server.engine_link.link import EngineConnection
from banyan.runtime.server.engine_link.recovery import Death

MAX_REPORT = 1 << 28
"""Maximum number of bytes of a report."""
LOST = Death("its connection broke", is_blameless=True)
MAX_KILLS = 30
"""A host is abandoned if its engine is still running after this many commands to end it."""
_BATCH = 256  # most messages taken in one round of the server's loop
_LOG_SECONDS = 60.0  # refused keys are logged at most once in this time


class RemoteLink(EngineConnection):
    """The connection to an engine on another machine, and to the engines that replace it.

    send: sends frames to a host, and calls `lost` if it is gone. options: returns the options for an engine that
    starts.
    """

    def __init__(
        self, send: Callable[[bytes, list[bytes]], None], options: Callable[[], Config], engine_timeout: float
    ) -> None:
        self._send_frames, self._options = send, options
        self.identity = b""
        self._inbox: deque[bytes] = deque()
        self._death = LOST
        self._is_dead = False  # the engine has died, and `start` was not called since
        self._n_kills = 0  # how often the present engine was told to end
        self._ahead = 0.0  # how far our clock is ahead of that of the host
        self.is_gone = True
        self.life = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        super().__init__(engine_timeout)

    def attach(self, identity: bytes, host: str, clock: float) -> None:
        """Use a host that has connected, and have it start an engine. host: its name, for people. clock: the time now
        on the host's monotonic clock."""
        self.identity, self.host, self._ahead = identity, host, time.monotonic() - clock
        self.is_gone = False
        if not self._is_dead:  # otherwise the loop calls `start` when it handles the death
            self._start_engine()

    def _start_engine(self) -> None:
        self.n_starts += 1
        self._n_kills = 0
        self._death = LOST
        self.tell(wire.StartEngine(msgspec.json.encode(self._options()), self.model))

    def start(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.life)
        self._is_dead = False
        self._inbox.clear()
        self.reset()
        if not self.is_gone:
            self._start_engine()

    def arrived(self, frames: list[bytes]) -> None:
        """Handle a message from the host. Raises if it is invalid."""
        if self.is_gone:  # the host was dismissed
            return
        if len(frames) == 1:
            self._inbox.append(frames[0])
            self.is_busy = True
            return
        match decoders.decode_host_report(frames[-1]):
            case wire.EngineStarted(pid=pid):
                self.pid = pid
            case wire.EngineEnded() as end:
                self._end(Death(end.how, end.is_blameless, frozenset(end.rids)))

    def lost(self, why: str = "") -> None:
        """Mark the host as gone, and its engine as dead. why: what the host did wrong."""
        if not self.is_gone:
            self.is_gone = True
            self._end(LOST._replace(how=why) if why else LOST)

    def _end(self, death: Death) -> None:
        self._death, self._is_dead = death, True
        if self.life >= 0:
            os.eventfd_write(self.life, 1)

    def tell(self, message: wire.Wire) -> None:
        """Send a message to the host, not to its engine."""
        if not self.is_gone:
            self._send_frames(self.identity, [b"", wire.encode(message)])

    def _encode(self, command: wire.EngineCommand) -> bytes:
        if isinstance(command, wire.Run) and command.deadline:
            command = msgspec.structs.replace(command, deadline=command.deadline - self._ahead)
        return super()._encode(command)

    def _send(self, data: bytes) -> None:
        if not self.is_gone:
            self._send_frames(self.identity, [data])

    def _next(self) -> bytes:
        if not self._inbox:
            raise zmq.Again
        return self._inbox.popleft()

    def _read(self, data: bytes) -> wire.EngineReport:
        report = super()._read(data)
        if isinstance(report, wire.Step) and report.finished:
            ours = [msgspec.structs.replace(one, started=one.started + self._ahead) if one.started else one
                    for one in report.finished]  # fmt: skip
            report = msgspec.structs.replace(report, finished=tuple(ours))
        return report

    def _kill(self, is_hung: bool = False) -> None:
        self._n_kills += 1
        if self._n_kills > MAX_KILLS:
            self.give_up("it does not end its engine")
        self.tell(wire.EndEngine(is_hung))

    def heartbeat(self) -> None:
        if not self.is_gone:
            self.tell(wire.Ping())
            super().heartbeat()

    def death(self) -> Death:
        death = self._death._replace(was_ready=self.ready is not None)
        return death._replace(how=self._bad_report, is_blameless=False) if self._bad_report else death

    def dismiss(self, error: str = "") -> None:
        self.tell(wire.Dismiss(error or "it was drained", is_error=bool(error)))
        self.is_gone = True

    def give_up(self, error: str) -> None:
        """Tell the host to end, and wait for another host."""
        self.dismiss(error)
        self._end(LOST._replace(how=error))

    def close(self) -> None:
        if self.life >= 0:
            self.is_gone = True
            os.close(self.life)
            self.life = -1


class EngineHosts:
    """The socket of engine hosts. log: prints a line, on any thread.

    sockets  readable when a host has sent something, or is gone
    address  tcp://HOST:PORT as bound
    report   lines that tell people where it listens, and its public key
    """

    def __init__(self, config: Config, log: Callable[[str], None]) -> None:
        """ConfigError: the socket cannot listen, or the file of keys is not readable."""
        # imported here, because it loads asyncio: a fifth of a server's import time
        from zmq.auth.thread import ThreadAuthenticator

        self._keys, self._log = Path(config.engine_keys), log
        tcp_auth.known_keys(self._keys)
        self._links: dict[bytes, RemoteLink] = {}  # dismissed hosts too, until they have left
        self._n_refused, self._next_log = 0, 0.0
        # a separate context, since the keys of clients must not be accepted here
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        try:
            self._authenticator.start()
            self._authenticator.configure_curve_callback(credentials_provider=self)
            key_file = Path(config.curve_key)
            self._socket = tcp_auth.listen(self._context, config.engines_at, key_file, MAX_REPORT, "engines_at")
            self._monitor = ipc.watch(self._socket)
        except BaseException:
            self.close()
            raise
        self.sockets = self._socket, self._monitor
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        public = tcp_auth.read_keys(key_file)[0].decode()
        self.report = (f"engines join at {self.address}, encrypted; its public key is {public}",)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a peer with this public key may join. Called on the authenticator's thread."""
        try:
            if key in tcp_auth.known_keys(self._keys):
                return True
            why = f"its key {key.decode()} is not in {self._keys}"
        except ConfigError as e:
            why = e.message
        self._n_refused += 1
        if (now := time.monotonic()) >= self._next_log:
            self._next_log = now + _LOG_SECONDS
            self._log(f"refused an engine: {why} ({self._n_refused} in all)")
        return False

    def receive(self, join: Callable[[str], RemoteLink]) -> None:
        """Handle the messages that have arrived. join: returns the link for a new host, given the name of its key and
        its address. Raises ConnectFailed if there is no room for it."""
        for _ in range(_BATCH):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            identity, *rest = (frame.bytes for frame in frames)
            try:
                if (link := self._links.get(identity)) is not None:
                    if link.identity == identity:  # otherwise another host has replaced this one
                        link.arrived(rest)
                else:
                    hello, name = _hello(rest), self._name(frames[-1])
                    link = self._links[identity] = join(name)
                    link.attach(identity, name, hello.clock)
                    self.probe()  # forget those that were dismissed and have left, and notice others that are gone
            except ConnectFailed as e:
                self._dismiss(identity, e.message)
            except Exception as e:
                traceback.print_exc()
                self._dismiss(identity, f"the server cannot read what it sent: {e!r}")

    def probe(self) -> None:
        """Find out which hosts are gone, by sending to each."""
        for identity in list(self._links):
            self.send(identity, [b"", wire.encode(wire.Ping())])

    def _name(self, frame: zmq.Frame) -> str:
        key, address = str(frame.get("User-Id")), str(frame.get("Peer-Address")).removeprefix("::ffff:")
        names = tcp_auth.known_keys(self._keys)
        return f"{names.get(key.encode(), 'unknown')} at {address}"

    def _dismiss(self, identity: bytes, why: str) -> None:
        self.send(identity, [b"", wire.encode(wire.Dismiss(why, is_error=True))])
        if (link := self._links.pop(identity, None)) is not None:
            link.lost(why)

    def send(self, identity: bytes, frames: list[bytes]) -> None:
        """Send a message to a host. If it is gone, forget it, and tell its link."""
        try:
            self._socket.send_multipart([identity, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as e:
            if e.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            link = self._links.pop(identity, None)
            if link is not None and link.identity == identity:  # otherwise another host has replaced this one
                link.lost()

    def has_broken(self) -> bool:
        """Whether a connection broke since the last call."""
        return ipc.drain(self._monitor)

    def close(self) -> None:
        self._authenticator.stop()
        self._context.destroy(2000)  # time for the last messages to the hosts


def _hello(frames: list[bytes]) -> wire.HostHello:
    hello = decoders.decode_host_report(frames[-1]) if len(frames) == 2 else None
    if not isinstance(hello, wire.HostHello):
        raise ConnectFailed("the first message of a host must be HostHello")
    if hello.version != wire.VERSION:
        raise ConnectFailed(
            f"the server speaks version {wire.VERSION} of the protocol, the engine's host {hello.version}; install the "
            "same version of banyan on both sides"
        )
    return hello
