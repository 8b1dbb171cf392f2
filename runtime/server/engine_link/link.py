"""The engine as the server sees it: a process that may die, and a socket on which it answers.

Orders that come before the engine is ready wait for it. When the process dies, another is started in its place and what
was running is sent again (`Requests.replay`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from banyan.runtime import launch
from banyan.runtime.config import Config
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.protocol.flight_record import FlightRecord
from banyan.runtime.server.engine_link.recovery import Death, cause, is_stopped, n_oom_kills

LOADING = 1800.0
"""Seconds that an engine may take to load its model."""
SLOWER = 20
"""A step that takes so many times as long as the largest one at the start is none any more."""
STOPPED = 2
"""Heartbeats after which an engine that a signal has stopped is not waited for."""


class EngineLink:
    """One engine, or the one that replaced it.

    socket   readable when the engine says something
    life     a file descriptor that is readable once the process has ended
    ready    its Ready; None until it came

    `path` is the server's own socket: engines' sockets go beside it.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], config: Config, path: Path, command: Sequence[str]
    ) -> None:
        self._context, self._config, self._path, self._command = context, config, path, command
        self.n_starts = 0
        self.first: tuple[wire.EngineOrder, ...] = ()
        """What each engine is told before anything else."""
        self.start()

    def start(self) -> None:
        """Start an engine; orders that the last one did not take are forgotten."""
        self.ready: wire.Ready | None = None
        self._early: list[bytes] = []
        self.n_starts += 1
        self._address = ipc.beside(self._path, "e")  # nothing of its predecessor's can reach it
        self.socket = ipc.pair(self._context, self._address)
        options = ["--config", msgspec.json.encode(self._config).decode(), "--socket", ipc.address(self._address)]
        self._n_silent, self._is_hung, self._was_stopped = 0, False, False
        self._nonsense = ""
        self._n_oom_kills = n_oom_kills()
        flight = FlightRecord.make()
        try:
            self._flight = FlightRecord(flight)
            options += ["--flight-fd", str(flight)]
            self._child = launch.ChildProcess([*self._command, *options], pass_fds=(flight,))
        finally:
            os.close(flight)
        self.life = os.pidfd_open(self._child.pid)

    def send(self, order: wire.EngineOrder) -> None:
        """Raises what an order raises that cannot be encoded; who gave it is to blame, and not the engine."""
        data = wire.encode(order)
        if self.ready is None:
            self._early.append(data)
        else:
            self._send(data)

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(zmq.Again):  # it is dead, which `life` will tell
            self.socket.send(data, zmq.NOBLOCK)

    def receive(self, take: Callable[[wire.EngineReport], None]) -> None:
        """Hand all reports that are there to `take`. An engine whose report cannot be taken is killed: `life` tells."""
        while True:
            try:
                data = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if self._nonsense:
                continue
            self._n_silent = 0
            try:
                self._take(wire.decode_report(data), take)
            except Exception as e:
                traceback.print_exc()
                self._nonsense = f"it said what cannot be: {e!r}"
                self._kill()

    def _take(self, report: wire.EngineReport, take: Callable[[wire.EngineReport], None]) -> None:
        if isinstance(report, wire.Ready):
            self.ready = report
            for data in (*map(wire.encode, self.first), *self._early):
                self._send(data)
            self._early.clear()
        take(report)

    def beat(self) -> None:
        """Ask for a sign of life; once a heartbeat. An engine that gave none for too long is killed: `life` tells.

        Counted in beats, not seconds: a server that was suspended has asked for none.
        """
        self._n_silent += 1
        if self.ready is None:
            most = LOADING
        else:
            most = max(self._config.engine_timeout, SLOWER * self.ready.step_seconds)
            self.send(wire.Ping())
        is_stopped_now = self._n_silent > STOPPED and is_stopped(self.pid)
        if self._n_silent * ipc.HEARTBEAT > most or is_stopped_now:
            self._is_hung, self._was_stopped = True, is_stopped_now
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return self._child.pid

    def death(self) -> Death:
        """What became of the process, which has ended."""
        n_killed = n_oom_kills() - self._n_oom_kills
        how, is_blameless = cause(self._child.wait(0), n_killed, self._is_hung, self._was_stopped)
        if self._nonsense:
            how, is_blameless = self._nonsense, False
        return Death(how, is_blameless, frozenset(self._flight.rids()), self.ready is not None)

    def close(self) -> None:
        """End the process and the socket. Idempotent."""
        if self.life >= 0:
            os.close(self.life)
            self.life = -1
            self._child.close()
            self._flight.close()
            self.socket.close(0)
            self._address.unlink(missing_ok=True)
