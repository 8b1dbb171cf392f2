"""`banyan engine`: starts an engine for a server on another machine, and passes messages on.

The host connects to the server's socket for engines, encrypted, with a key that the server knows. The server decides
the options of the engine, except those about this machine (devices, threads, memory, paths), which are given here. If
the connection breaks, the engine ends, and the host joins again with another engine.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from banyan.runtime import config as configs
from banyan.runtime import launch
from banyan.runtime.config import Config
from banyan.runtime.errors import BanyanError, ConfigError, ConnectFailed
from banyan.runtime.protocol import decoders, tcp_auth, wire
from banyan.runtime.server.engine_link.link import EngineProcess

CONNECT = 10.0
"""Seconds that the server may take to answer."""
RETRY = 2.0
"""Seconds until a host tries to join again."""
_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_BATCH = 256  # most messages passed on in one direction before the other gets its turn


class _Broken(Exception):
    """The connection to the server broke."""


class EngineHost:
    """An engine for the server at `server`, tcp://HOST:PORT.

    server_key: the public key of the server. keys: the file with this host's secret key. own: options of config.OWN.
    log: prints a line. command: starts an engine. alive_fd: `run` raises EOFError at EOF of this file descriptor.
    """

    def __init__(
        self,
        server: str,
        server_key: str,
        keys: Path,
        own: Mapping[str, Any],
        log: Callable[[str], None],
        command: Sequence[str] = launch.ENGINE,
        alive_fd: int | None = None,
    ) -> None:
        configs.tcp(server)
        self._server, self._server_key, self._keys = server, server_key, tcp_auth.read_keys(keys)
        self._own, self._log, self._command, self._alive_fd = own, log, command, alive_fd
        self._path = configs.private_socket()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._engine: EngineProcess | None = None

    def run(self) -> None:
        """Serve until the server no longer needs this engine. ConfigError: the server cannot use this engine, or does
        not know its key."""
        said = ""
        while True:
            try:
                with self._connection() as (dealer, monitor):
                    return self._serve(dealer, monitor)
            except (_Broken, ConnectFailed) as e:
                if (why := e.message if isinstance(e, BanyanError) else str(e)) != said:
                    self._log(f"{why}; trying every {RETRY:g} s")
                said = why
            finally:
                self._end_engine()
            self._pause()

    def _pause(self) -> None:
        alive = [] if self._alive_fd is None else [self._alive_fd]
        if select.select(alive, [], [], RETRY)[0]:
            raise EOFError

    @contextlib.contextmanager
    def _connection(self) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
        dealer, monitor = tcp_auth.connect(self._context, self._server, self._server_key, CONNECT, self._keys, _EVENTS)
        try:
            yield dealer, monitor
        finally:
            dealer.disable_monitor()
            dealer.close(0)
            monitor.close(0)

    def _serve(self, dealer: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        """Pass messages on until the server dismisses this host. _Broken: the connection broke."""
        dealer.send_multipart([b"", wire.encode(wire.HostHello(wire.VERSION, time.monotonic()))])
        deadline = time.monotonic() + CONNECT
        while True:
            poller = zmq.Poller()
            engine = self._engine
            for source in (dealer, monitor, self._alive_fd, *((engine.socket, engine.life) if engine else ())):
                if source is not None:
                    poller.register(source, zmq.POLLIN)
            while engine is self._engine:
                ready = dict(poller.poll(None if engine else int(1000 * CONNECT)))
                if engine is None and time.monotonic() > deadline:
                    raise _Broken(f"the server at {self._server} does not answer; is {self._server_key} its key?")
                if self._alive_fd in ready:
                    raise EOFError
                if monitor in ready:
                    self._check(monitor)
                if engine is not None and engine.socket in ready:
                    self._pass_reports(engine, dealer)
                if engine is not None and engine.life in ready:
                    self._pass_reports(engine, dealer, 1 << 30)  # reports that were sent before the engine died
                    self._report_death(engine, dealer)
                    deadline = time.monotonic() + CONNECT
                if dealer in ready and not self._take_commands(dealer):
                    return

    def _check(self, monitor: zmq.Socket[bytes]) -> None:
        """Raise the error that an event of the connection stands for, if it is one."""
        event = parse_monitor_message(monitor.recv_multipart())["event"]
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            public = self._keys[0].decode()
            raise ConfigError(f"the server at {self._server} does not know the key {public}; add it to its engine_keys")
        raise _Broken(f"the connection to {self._server} broke; is {self._server_key} its key?")

    def _pass_reports(self, engine: EngineProcess, dealer: zmq.Socket[bytes], most: int = _BATCH) -> None:
        with contextlib.suppress(zmq.Again):
            for _ in range(most):
                dealer.send(engine.socket.recv(zmq.NOBLOCK))

    def _take_commands(self, dealer: zmq.Socket[bytes]) -> bool:
        """Take what the server has sent. Returns False if it dismisses this host."""
        for _ in range(_BATCH):
            try:
                frames = dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if len(frames) == 1:
                if self._engine is not None:
                    with contextlib.suppress(zmq.Again):  # the engine has died
                        self._engine.socket.send(frames[0], zmq.NOBLOCK)
                continue
            match decoders.decode_host_command(frames[-1]):
                case wire.StartEngine() as start:
                    pid = self._start_engine(start)
                    dealer.send_multipart([b"", wire.encode(wire.EngineStarted(pid))])
                case wire.EndEngine(is_hung=is_hung) if self._engine is not None:
                    self._engine.kill(is_hung)
                case wire.Dismiss(why=why, is_error=True):
                    raise ConfigError(f"the server cannot use this engine: {why}")
                case wire.Dismiss(why=why):
                    self._log(f"the server needs this engine no more: {why}")
                    return False
        return True

    def _start_engine(self, start: wire.StartEngine) -> int:
        self._end_engine()
        theirs = msgspec.json.decode(start.config, type=Config)
        # Options about the server's machine do not apply here.
        base = {name: getattr(Config(), name) for name in configs.OWN if name not in ("model", "draft_model")}
        own = base | dict(self._own) | ({"model": start.model} if start.model else {})
        config = msgspec.structs.replace(theirs, replicas=1, prefill_replicas=0, **own)
        configs.check(msgspec.structs.replace(config, engines_at="", engine_keys="", bind="", curve_key=""))
        # the address at which other engines pull its KV
        command = (*self._command, "--host", tcp_auth.own_address(self._server))
        self._engine = EngineProcess(self._context, config, self._path, command)
        self._log(f"engine {self._engine.pid} starts: {config.model}")
        return self._engine.pid

    def _report_death(self, engine: EngineProcess, dealer: zmq.Socket[bytes]) -> None:
        death = engine.death()
        self._log(f"the engine died ({death.how})")
        self._end_engine()
        dealer.send_multipart([b"", wire.encode(wire.EngineEnded(death.how, death.is_blameless, tuple(death.rids)))])

    def _end_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def close(self) -> None:
        """End the engine. Idempotent."""
        self._end_engine()
        self._context.destroy(0)
        shutil.rmtree(self._path.parent, ignore_errors=True)


class HostOptions(msgspec.Struct, frozen=True):
    """The arguments of EngineHost as JSON."""

    server: str
    server_key: str
    own: dict[str, Any]
    command: tuple[str, ...] = ()


def main(argv: list[str]) -> int:
    """Run a host, as a child of the process that started this one. Returns 0 if the server no longer needs the host or
    the parent has ended, and 1 if the server cannot use the host."""
    parser = argparse.ArgumentParser(prog="python -m banyan.runtime.server.engine_link.engine_host")
    parser.add_argument("--options", required=True, help="HostOptions as JSON")
    parser.add_argument("--key", required=True, type=Path, help="the file with its secret key")
    parser.add_argument("--alive-fd", type=int, required=True, help="end at EOF of this file descriptor")
    args = parser.parse_args(argv)
    options = msgspec.json.decode(args.options, type=HostOptions)

    def log(line: str) -> None:
        print(f"banyan: {line}", file=sys.stderr, flush=True)

    host = EngineHost(
        options.server, options.server_key, args.key, options.own, log, options.command or launch.ENGINE, args.alive_fd
    )
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
