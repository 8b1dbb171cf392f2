"""`banyan engine`: starts an engine for servers on other machines, and passes messages on.

The host connects to the socket for engines of each server, encrypted, with a key that the server knows. The first
server decides the options of the engine, except those about the host's machine (devices, threads, memory, paths), which
the host has itself. If several servers use the engine, they must have equal options for engines, and the host gives
each server its own part of the messages (shared_engine.py).

If the connection to a server breaks, the host joins the server again. The engine ends when no server is left that uses
it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from banyan.runtime import config as configs
from banyan.runtime import launch
from banyan.runtime.config import Config
from banyan.runtime.errors import BanyanError, ConfigError
from banyan.runtime.protocol import decoders, tcp_auth, wire
from banyan.runtime.server.engine_link.link import NO_PROCESS, EngineProcess
from banyan.runtime.server.engine_link.shared_engine import NotShared, SharedEngine

CONNECT = 10.0
"""Seconds that a server may take to answer."""
RETRY = 2.0
"""Seconds until a host tries to join again."""
NEWS = 0.05
"""The least seconds between two messages to a server about the work of the others."""
_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_BATCH = 256  # most messages passed on in one direction before the other gets its turn

Sockets = tuple[zmq.Socket[bytes], zmq.Socket[bytes]]
"""A connection to a server, and its monitor."""


class _Broken(Exception):
    """The connection to a server broke."""


class JoinedServer:
    """A server to which the host belongs, and the connection to it.

    address   tcp://HOST:PORT
    key       its public key
    number    the number by which SharedEngine knows the connection
    sockets   the connection; None if there is none at the moment
    config    the engine options that the server has asked for; None: the server does not use the engine now
    refusal   (pid of an engine, why this server cannot share it), if the server had already begun to use that engine
    deadline  without a connection: when the host connects again. With a connection, while the server does not use the
              engine: when the host stops waiting for StartEngine
    """

    def __init__(self, address: str, key: str) -> None:
        configs.tcp(address)
        self.address, self.key, self.number = address, tcp_auth.public_key(key).decode(), -1
        self.sockets: Sockets | None = None
        self.deadline = 0.0
        self.config: Config | None = None
        self.refusal = (-1, "")
        self.said = ""  # the last reason why there is no connection

    def send(self, message: wire.Wire) -> None:
        """Send a message of the host, not of its engine, to the server."""
        self._send([b"", wire.encode(message)])

    def pass_report(self, data: bytes) -> None:
        self._send([data])

    def _send(self, frames: list[bytes]) -> None:
        if self.sockets is not None:
            with contextlib.suppress(zmq.Again):  # the connection has just broken, which the monitor will report
                self.sockets[0].send_multipart(frames, zmq.NOBLOCK)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self.sockets is not None:
            dealer, monitor = self.sockets
            self.sockets = None
            dealer.disable_monitor()
            dealer.close(0)
            monitor.close(0)


class EngineHost:
    """An engine for one or more servers.

    servers: (tcp://HOST:PORT, public key or a file with it) of each; ConfigError: a key cannot be read. keys: the file
    with this host's secret key. own: option -> value, for options about this machine (config.OWN), which replace the
    values that a server sends. log: prints a line. command: the command line that starts an engine. alive_fd: `run`
    raises EOFError at EOF of this file descriptor.
    """

    def __init__(
        self,
        servers: Sequence[tuple[str, str]],
        keys: Path,
        own: Mapping[str, Any],
        log: Callable[[str], None],
        command: Sequence[str] = launch.ENGINE,
        alive_fd: int | None = None,
    ) -> None:
        self._servers = [JoinedServer(*server) for server in servers]
        self._keys = tcp_auth.read_keys(keys)
        self._own, self._log, self._command, self._alive_fd = own, log, command, alive_fd
        self._path = configs.private_socket()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._engine: EngineProcess | None = None
        self._config = Config()  # of the engine
        # None: the messages of a single server are passed on unread
        self._shared = SharedEngine() if len(servers) > 1 else None
        self._n_connections = 0
        self._next_news = 0.0
        self._sources: tuple[Any, ...] = ()  # what the poller waits for
        self._poller = zmq.Poller()

    def run(self) -> None:
        """Serve until no server needs this engine. ConfigError: the last server cannot use this engine, or does not
        know this host's key."""
        while self._servers:
            ready = self._poll()
            if self._alive_fd in ready:
                raise EOFError
            if (engine := self._engine) is not None:
                if engine.socket in ready:
                    self._pass_reports(engine)
                if engine.life in ready:
                    self._pass_reports(engine, 1 << 30)  # reports that were sent before the engine died
                    self._report_death(engine)
            for server in list(self._servers):
                try:
                    self._listen(server, ready)
                except _Broken as e:
                    self._lose(server, str(e))
                except ConfigError as e:
                    self._leave(server)
                    if not self._servers:
                        raise
                    self._log(e.message)
            self._tell_news()

    # ---- connections -----------------------------------------------------------------------------------------------

    def _poll(self) -> dict[Any, int]:
        """Wait for a message, the end of the engine or the parent, or the next deadline. Returns what is readable."""
        engine, connections = self._engine, (socket for server in self._servers for socket in server.sockets or ())
        sources = (self._alive_fd, *((engine.socket, engine.life) if engine else ()), *connections)
        if sources != self._sources:
            self._sources, self._poller = sources, zmq.Poller()
            for source in sources:
                if source is not None:
                    self._poller.register(source, zmq.POLLIN)
        times = [server.deadline for server in self._servers if server.config is None]
        if self._shared is not None and self._shared.has_news:
            times.append(self._next_news)
        wait = min(times, default=math.inf) - time.monotonic()
        return dict(self._poller.poll(None if wait == math.inf else max(0, math.ceil(1000 * wait))))

    def _listen(self, server: JoinedServer, ready: Mapping[Any, int]) -> None:
        """Handle the messages and events of the connection to a server. If there is no connection, connect once
        `deadline` has passed. Raises _Broken or ConfigError if the connection has to end."""
        if server.sockets is None:
            if (now := time.monotonic()) >= server.deadline:
                server.deadline = now + CONNECT
                server.number = self._n_connections
                self._n_connections += 1
                server.sockets = tcp_auth.open_connection(
                    self._context, server.address, server.key, self._keys, _EVENTS
                )
                server.send(wire.HostHello(wire.VERSION, now))
            return
        dealer, monitor = server.sockets
        if monitor in ready:
            self._check(server, monitor)
        if dealer in ready:
            try:
                self._take_commands(server, dealer)
            except BanyanError:
                raise
            except wire.UNREADABLE as e:
                raise _Broken(f"the server at {server.address} sent an invalid message: {e}") from e
            except NO_PROCESS as e:  # for example, no process can be started now, or a name cannot be resolved
                raise _Broken(f"the engine for the server at {server.address} cannot be started: {e}") from e
        elif server.config is None and time.monotonic() > server.deadline:
            raise _Broken(f"the server at {server.address} does not answer; is {server.key} its key?")

    def _check(self, server: JoinedServer, monitor: zmq.Socket[bytes]) -> None:
        """Read the event of a connection to a server that has failed. Raises ConfigError if the server does not know
        this host's key, else _Broken."""
        event = parse_monitor_message(monitor.recv_multipart())["event"]
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            key = self._keys[0].decode()
            raise ConfigError(f"the server at {server.address} does not know the key {key}; add it to its engine_keys")
        if event == zmq.EVENT_CLOSED:
            raise _Broken(f"nobody listens at {server.address}")
        hint = "" if server.config is not None else f"; is {server.key} its key?"
        raise _Broken(f"the connection to {server.address} broke{hint}")

    def _lose(self, server: JoinedServer, why: str) -> None:
        """Close a broken connection to a server, and join it again later."""
        if why != server.said:
            self._log(f"{why}; trying every {RETRY:g} s")
        server.said = why
        self._disconnect(server)
        server.deadline = time.monotonic() + RETRY

    def _leave(self, server: JoinedServer) -> None:
        """Close the connection to a server for good."""
        self._servers.remove(server)
        self._disconnect(server)

    def _disconnect(self, server: JoinedServer) -> None:
        self._release(server)
        server.refusal = (-1, "")  # another server may listen there the next time
        server.close()
        if not self._users:
            self._end_engine()

    def _release(self, server: JoinedServer) -> None:
        """Record that a server no longer uses the engine, and end all that it has there. Idempotent."""
        was_user = server.config is not None
        server.config, server.deadline = None, time.monotonic() + CONNECT
        if was_user and self._shared is not None:
            self._pass_parts(*self._shared.leave(server.number, self._users))

    # ---- from servers to the engine --------------------------------------------------------------------------------

    @property
    def _users(self) -> dict[int, JoinedServer]:
        """Number -> a server that uses the engine."""
        return {server.number: server for server in self._servers if server.config is not None}

    def _take_commands(self, server: JoinedServer, dealer: zmq.Socket[bytes]) -> None:
        for _ in range(_BATCH):
            try:
                frames = dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 1:
                if server.config is not None:
                    self._pass_command(server, frames[0])
                continue
            match decoders.decode_host_command(frames[-1]):
                case wire.StartEngine() as start:
                    self._start_engine(server, start)
                case wire.EndEngine(is_hung=is_hung) if self._engine is not None and server.config is not None:
                    self._engine.kill(is_hung)
                case wire.Dismiss(why=why, is_error=True):
                    raise ConfigError(f"the server at {server.address} cannot use this engine: {why}")
                case wire.Dismiss(why=why):
                    self._log(f"the server at {server.address} needs this engine no more: {why}")
                    self._leave(server)
                    return

    def _pass_command(self, server: JoinedServer, data: bytes) -> None:
        if self._shared is None:
            self._command_engine([data])
            return
        try:
            self._command_engine(self._shared.take(server.number, data))
        except NotShared as e:
            assert self._engine is not None
            server.refusal = self._engine.pid, str(e)
            self._refuse(server, str(e), is_blameless=True)  # not the fault of its requests

    def _command_engine(self, commands: Iterable[bytes]) -> None:
        for data in commands:
            if self._engine is not None:
                with contextlib.suppress(zmq.Again):  # the engine has died
                    self._engine.socket.send(data, zmq.NOBLOCK)

    def _start_engine(self, server: JoinedServer, start: wire.StartEngine) -> None:
        """Start an engine, or let the server use the one that other servers use."""
        theirs = msgspec.json.decode(start.config, type=Config)
        # Options about the server's machine do not apply here.
        base = {name: getattr(Config(), name) for name in configs.OWN if name not in ("model", "draft_model")}
        own = base | dict(self._own) | ({"model": start.model} if start.model else {})
        config = msgspec.structs.replace(theirs, replicas=1, prefill_replicas=0, **own)
        self._release(server)
        if self._shared is not None and self._engine is not None and self._users:
            self._use_engine(server, config, self._engine, self._shared)
            return
        self._end_engine()
        configs.check(msgspec.structs.replace(config, engines_at="", engine_keys="", bind="", curve_key=""))
        # the address at which other engines pull its KV
        command = (*self._command, "--host", tcp_auth.own_address(server.address))
        self._engine = EngineProcess(self._context, config, self._path, command)
        self._config = server.config = config
        server.said = ""
        if self._shared is not None:
            self._shared.start()
        self._log(f"engine {self._engine.pid} starts: {config.model}")
        server.send(wire.EngineStarted(self._engine.pid))

    def _use_engine(self, server: JoinedServer, config: Config, engine: EngineProcess, shared: SharedEngine) -> None:
        """Let a server use the engine that runs, or refuse it if it cannot share that engine."""
        pid, why = server.refusal
        if pid == engine.pid:  # refuse before Ready is sent, or the start would count as a success
            self._refuse(server, why)
            return
        for option in configs.OF_ENGINES:
            if (its := getattr(config, option)) != (ours := getattr(self._config, option)):
                self._refuse(server, f"its engines must have {option}={its!r}, and this one has {ours!r}")
                return
        server.config, server.said = config, ""
        server.send(wire.EngineStarted(engine.pid))
        self._log(f"the server at {server.address} uses engine {engine.pid}, too")
        if shared.ready is not None:
            self._tell_ready(server, shared)

    def _tell_ready(self, server: JoinedServer, shared: SharedEngine) -> None:
        assert server.config is not None
        try:
            server.pass_report(shared.ready_for(server.number, server.config.adapters))
        except NotShared as e:
            self._refuse(server, str(e))

    def _refuse(self, server: JoinedServer, why: str, is_blameless: bool = False) -> None:
        """Tell a server that it cannot use the engine together with the other servers, as if the engine had ended.
        is_blameless: the server's requests did not cause this, so none of them is suspected of crashing the engine."""
        self._release(server)
        server.send(wire.EngineEnded(f"its host shares it with other servers, but {why}", is_blameless))

    # ---- from the engine to servers --------------------------------------------------------------------------------

    def _pass_reports(self, engine: EngineProcess, most: int = _BATCH) -> None:
        with contextlib.suppress(zmq.Again):
            for _ in range(most):
                data = engine.socket.recv(zmq.NOBLOCK)
                if self._shared is None:
                    for server in self._users.values():
                        server.pass_report(data)
                else:
                    self._split(data, self._shared)

    def _split(self, data: bytes, shared: SharedEngine) -> None:
        was_ready, users = shared.ready, self._users
        self._pass_parts(*shared.report(data, users))
        if was_ready is None and shared.ready is not None:
            for server in users.values():
                self._tell_ready(server, shared)

    def _pass_parts(self, sent: Iterable[tuple[int, bytes]], commands: Iterable[bytes] = ()) -> None:
        """Send servers their reports, by number, and the engine commands."""
        users = self._users
        for number, report in sent:
            users[number].pass_report(report)
        self._command_engine(commands)

    def _tell_news(self) -> None:
        """Tell each server about the work of the others, if that work has changed; at most once in NEWS seconds."""
        if self._shared is not None and self._shared.has_news and (now := time.monotonic()) >= self._next_news:
            self._next_news = now + NEWS
            self._pass_parts(self._shared.news(self._users))

    def _report_death(self, engine: EngineProcess) -> None:
        while engine.await_report():
            self._pass_reports(engine)
        death = engine.death()
        self._log(f"the engine died ({death.how})")
        self._end_engine()
        for server in self._users.values():
            its = death if self._shared is None else self._shared.death_of(death, server.number)
            server.send(wire.EngineEnded(its.how, its.is_blameless, tuple(its.rids)))
            self._release(server)

    def _end_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def close(self) -> None:
        """End the engine. Idempotent."""
        self._end_engine()
        for server in self._servers:
            server.close()
        self._context.destroy(0)
        shutil.rmtree(self._path.parent, ignore_errors=True)


class HostOptions(msgspec.Struct, frozen=True):
    """Arguments of EngineHost. A host process gets them as JSON, in its command-line argument --options."""

    servers: tuple[tuple[str, str], ...]
    own: dict[str, Any]
    command: tuple[str, ...] = ()


def main(argv: list[str]) -> int:
    """Run a host in this child process. Returns 0 if the server no longer needs the host or the parent has ended, and 1
    if the server cannot use the host."""
    parser = argparse.ArgumentParser(prog="python -m banyan.runtime.server.engine_link.engine_host")
    parser.add_argument("--options", required=True, help="HostOptions as JSON")
    parser.add_argument("--key", required=True, type=Path, help="the file with the host's secret key")
    parser.add_argument("--alive-fd", type=int, required=True, help="end at EOF of this file descriptor")
    args = parser.parse_args(argv)
    options = msgspec.json.decode(args.options, type=HostOptions)

    def log(line: str) -> None:
        print(f"banyan: {line}", file=sys.stderr, flush=True)

    command = options.command or launch.ENGINE
    host = EngineHost(options.servers, args.key, options.own, log, command, args.alive_fd)
    try:
        host.run()
    except EOFError:
        return 0
    except BanyanError as e:
        log(e.message)
        return 1
    finally:
        host.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
