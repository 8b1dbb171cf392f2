"""The server's connection to the engine process, which may die and be replaced.

Requests and questions that come before the engine is ready are queued; a request that ends meanwhile is taken out. When
the process dies, the server starts another one and replays the running requests (`EngineRequests.replay`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec
import zmq

from banyan.runtime import launch
from banyan.runtime.config import Config
from banyan.runtime.protocol import decoders, ipc, wire
from banyan.runtime.protocol.flight_record import FlightRecord
from banyan.runtime.server.engine_link.recovery import Death, cause, is_stopped, n_oom_kills

LOADING = 1800.0
"""The most seconds that an engine may take to load its model."""
SLOWER = 20
"""An engine counts as hung if it is silent for this many times the duration of the longest step at its start, and for
`engine_timeout` seconds."""
STOPPED = 2
"""After so many heartbeats without an answer, an engine that was stopped by a signal (SIGSTOP) is killed."""


def later_config(config: Config, ready: wire.Ready | None) -> Config:
    """The options of an engine that starts while the server runs. It loads no adapters: the server names those that it
    has now. ready: of an engine before it or beside it, if there are others: then the free memory says nothing about
    the share of this one, and it gets as many pages."""
    if ready is not None:
        n_tokens = config.replicas * ready.n_pages * ready.page
        config = msgspec.structs.replace(config, kv_memory=f"{n_tokens} tokens")
    return msgspec.structs.replace(config, adapters={})


class EngineLink:
    """The current engine process.

    socket   readable when the engine has sent something
    life     a file descriptor that is readable once the process has ended
    ready    the Ready message of the engine; None until the engine has sent it
    is_busy  reports have arrived that are not handled yet, besides those in the socket

    `path` is the server's own socket. The engine's socket is beside it.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], config: Config, path: Path, command: Sequence[str]
    ) -> None:
        self._context, self._config, self._path, self._command = context, config, path, command
        self.n_starts = 0
        self._vocabulary: wire.SetVocabulary | None = None
        self.start()

    def set_vocabulary(self, vocabulary: wire.SetVocabulary) -> None:
        """Set the first command for each engine. Must be called before `receive`."""
        self._vocabulary = vocabulary

    def start(self) -> None:
        """Start an engine. Commands that the previous one did not receive are dropped."""
        if self.n_starts:
            self._config = later_config(self._config, self.ready if self._config.replicas > 1 else None)
        self.ready: wire.Ready | None = None
        self._queued: OrderedDict[tuple[str, int], bytes] = OrderedDict()  # commands, by kind and number
        self._steps: Iterator[None] = iter(())  # what is left to do of the last report
        self.is_busy = False
        self.n_starts += 1
        self._address = ipc.child_path(self._path, "e")
        self.socket = ipc.pair(self._context, self._address)
        config = msgspec.json.encode(self._config).decode()
        options = ["--config", config, "--socket", ipc.address(self._address)]
        self._n_silent, self._is_hung, self._was_stopped = 0, False, False
        self._bad_report = ""
        self._n_oom_kills = n_oom_kills()
        fd = FlightRecord.make()
        try:
            self._flight = FlightRecord(fd)
            self._child = launch.ChildProcess([*self._command, *options, "--flight-fd", str(fd)], pass_fds=(fd,))
        finally:
            os.close(fd)
        self.life = os.pidfd_open(self._child.pid)

    def send(self, command: wire.EngineCommand) -> None:
        """Send a command, or queue it until the engine is ready, and has got what was queued before. Raises if the
        command cannot be encoded."""
        if self.ready is None or self._queued:
            match command:  # only what an engine without requests and without KV can act on is kept
                case wire.Run():
                    self._queued["run", command.rid] = wire.encode(command)
                    return
                case wire.Ask():
                    self._queued["ask", command.id] = wire.encode(command)
                    return
                case wire.Abort() if self._queued.pop(("run", command.rid), None) is not None:
                    return
        if self.ready is not None:
            self._send(wire.encode(command))

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(zmq.Again):  # the engine has died; `life` will report it
            self.socket.send(data, zmq.NOBLOCK)

    def receive(
        self, handle: Callable[[wire.EngineReport], Iterable[None]], is_late: Callable[[], bool] = lambda: False
    ) -> None:
        """Do the steps of `handle` for each report that has arrived, at least one, until it is late; then the link
        `is_busy`. If a report is invalid, the engine is killed."""
        while True:
            try:
                for _ in self._steps:
                    if is_late():
                        self.is_busy = True
                        return
                data = self.socket.recv(zmq.NOBLOCK)
                if self._bad_report:
                    continue
                self._n_silent = 0
                report = decoders.decode_report(data)
                if isinstance(report, wire.Ready):
                    self._start_sending(report)
                self._steps = chain(self._send_queued(), handle(report), (None,))
            except zmq.Again:
                self.is_busy = False
                return
            except Exception as e:
                traceback.print_exc()
                self._bad_report = f"it sent an invalid report: {e!r}"
                self._kill()

    def _start_sending(self, ready: wire.Ready) -> None:
        self.ready = ready
        if self._vocabulary is not None:
            self._send(wire.encode(self._vocabulary))

    def _send_queued(self) -> Iterator[None]:
        while self.ready is not None and self._queued:
            self._send(self._queued.popitem(last=False)[1])
            yield

    def heartbeat(self) -> None:
        """Send a Ping, and kill an engine that has been silent for too long.

        Silence is measured in heartbeats, not in seconds, because a server sends no Pings while it is suspended.
        """
        self._n_silent += 1
        if self.ready is None:
            timeout = LOADING
        else:
            timeout = max(self._config.engine_timeout, SLOWER * self.ready.step_seconds)
            self.send(wire.Ping())
        is_stopped_now = self._n_silent > STOPPED and is_stopped(self.pid)
        if self._n_silent * ipc.HEARTBEAT > timeout or is_stopped_now:
            self._is_hung, self._was_stopped = True, is_stopped_now
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return self._child.pid

    def death(self) -> Death:
        """Why the process has ended."""
        n_killed = n_oom_kills() - self._n_oom_kills
        how, is_blameless = cause(self._child.wait(0), n_killed, self._is_hung, self._was_stopped)
        if self._bad_report:
            how, is_blameless = self._bad_report, False
        return Death(how, is_blameless, frozenset(self._flight.rids()), self.ready is not None)

    def close(self) -> None:
        """End the process and close the socket. Idempotent."""
        if self.life >= 0:
            os.close(self.life)
            self.life = -1
            self._child.close()
            self._flight.close()
            self.socket.close(0)
            self._address.unlink(missing_ok=True)
