"""The server's connection to an engine, which may die and be replaced.

Requests and questions that arrive before the engine is ready are queued; a request that ends meanwhile is removed from
the queue. When the engine dies, another takes its place, and the server replays the running requests
(`EngineRequests.replay`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
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
"""Maximum time in seconds that an engine may take to load its model."""
NO_PROCESS = (OSError, zmq.ZMQError)
"""The errors raised if no process can be started now: too many processes or open files, or too little memory."""
SLOWER = 20
"""An engine counts as hung if it has been silent for SLOWER times the longest step measured at its start, and also for
`engine_timeout` seconds."""
LAST_REPORT = 0.5
"""Seconds to wait for the last report of an engine that has failed."""
ENDING = 0.05
"""How long the loop waits, in seconds, for the old engine to exit when it is replaced. A live engine may take longer
to end; its successor, which needs its memory, starts only then."""
STOPPED = 2
"""Heartbeats without an answer after which an engine that was stopped by a signal (SIGSTOP) is killed."""


def later_config(config: Config, ready: wire.Ready | None) -> Config:
    """The options of an engine that starts while the server runs. They name no adapters: the server has the engine load
    those in use once it has started. ready: the Ready message of an engine that runs beside the new one, or of its
    predecessor; None if there is none. The new engine gets as many pages as that engine, because the memory that is
    free at the moment does not show how much the new engine may use."""
    if ready is not None:
        n_tokens = max(1, config.replicas) * ready.n_pages * ready.page
        config = msgspec.structs.replace(config, kv_memory=f"{n_tokens} tokens")
    return msgspec.structs.replace(config, adapters={})


class EngineProcess:
    """An engine as a child process.

    socket   readable when the engine has sent something
    life     a file descriptor that is readable once the process has ended

    path: the socket of the server or host that starts the engine; the engine's own socket is created beside it.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], config: Config, path: Path, command: Sequence[str]
    ) -> None:
        """Start the engine. command: the command line, without options. Raises an error in NO_PROCESS if no process can
        be started now."""
        self._address = ipc.child_path(path, "e")
        options = ["--config", msgspec.json.encode(config).decode(), "--socket", ipc.address(self._address)]
        self._is_hung, self._was_stopped = False, False
        self._n_oom_kills = n_oom_kills()
        with contextlib.ExitStack() as undo:
            self.socket = ipc.pair(context, self._address)
            undo.callback(self._address.unlink, missing_ok=True)
            undo.callback(self.socket.close, 0)
            fd = FlightRecord.make()
            try:
                self._flight = FlightRecord(fd)
                self._child = launch.ChildProcess([*command, *options, "--flight-fd", str(fd)], pass_fds=(fd,))
            finally:
                os.close(fd)
            undo.callback(self._child.close)
            self.pid = self._child.pid
            self.life = os.pidfd_open(self.pid)
            undo.pop_all()

    def await_report(self) -> bool:
        """Wait for the last report of a process that has failed by itself, at most LAST_REPORT seconds. Returns whether
        the report has arrived. The process sends the report before it ends, but libzmq's thread may not have read it
        yet."""
        return self._child.wait(0) == 1 and self.socket.poll(int(1000 * LAST_REPORT)) != 0

    def kill(self, is_hung: bool = False) -> None:
        """Kill the process. is_hung: whether the reason is that it gave no sign of life."""
        self._is_hung, self._was_stopped = is_hung, is_hung and is_stopped(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def death(self) -> Death:
        """Why the process has ended."""
        n_killed = n_oom_kills() - self._n_oom_kills
        how, is_blameless = cause(self._child.wait(0), n_killed, self._is_hung, self._was_stopped)
        return Death(how, is_blameless, frozenset(self._flight.rids()))

    def close(self) -> None:
        """End the process and close the socket. Idempotent."""
        if self.life >= 0:
            os.close(self.life)
            self.life = -1
            self._child.close()
            self._flight.close()
            self.socket.close(0)
            self._address.unlink(missing_ok=True)


class EngineConnection:
    """The server's side of the connection to an engine, on this or another machine.

    ready    the Ready message of the engine; None until the engine has sent it
    is_busy  there are reports that were received but not handled yet
    is_gone  there is no engine, and this connection cannot start one
    host     the machine of the engine; "": this one
    socket   readable when the engine has sent something; None: the connection has no separate socket, and the server
             hands it the messages that arrive from the engine's host
    life     a file descriptor that is readable once the engine has died; -1: no process could be started
    """

    is_gone = False
    model = ""  # the model that the engine loads; "": the configuration's
    host = ""
    pid = -1
    socket: zmq.Socket[bytes] | None = None
    life = -1

    def __init__(self, engine_timeout: float) -> None:
        self._engine_timeout = engine_timeout
        self.n_starts = 0
        self._vocabulary: wire.SetVocabulary | None = None
        self.reset()

    def reset(self) -> None:
        """Prepare for another engine. Commands that the previous engine did not receive are dropped."""
        self.ready: wire.Ready | None = None
        self._queued: OrderedDict[tuple[str, int], wire.EngineCommand] = OrderedDict()  # by kind and number
        self._steps: Iterator[None] = iter(())  # the remaining steps of handling the last report
        self.is_busy = self._is_listening = False
        self._n_silent = 0
        self._bad_report = ""

    def _send(self, data: bytes) -> None:
        """Send an encoded command."""
        raise NotImplementedError

    def _next(self) -> bytes:
        """The next encoded report. zmq.Again: none has arrived."""
        raise NotImplementedError

    def _read(self, data: bytes) -> wire.EngineReport:
        """Decode a report. Raises if it is invalid."""
        report: wire.EngineReport = decoders.decode_report(data)
        return report

    def _kill(self, is_hung: bool = False) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Start an engine in place of the one that has died. (For an engine on another machine, its host is told to
        start one, or another host is awaited.) Raises an error in NO_PROCESS if no process can be started now. If the
        previous process has not ended yet, returns without starting an engine. In these two cases the caller must try
        again later; requests and questions are queued until then."""
        raise NotImplementedError

    def death(self) -> Death:
        """Why the engine has died."""
        raise NotImplementedError

    def await_report(self) -> bool:
        """Wait a short time for the last report of an engine that has failed by itself. Returns whether a report has
        arrived. Always False for an engine on another machine."""
        return False

    def dismiss(self, error: str = "") -> None:
        """End an engine on another machine, because it is not needed any more or, with `error`, cannot be used. Does
        nothing for an engine on this machine."""

    def refuse(self) -> None:
        """Stop sending commands to the engine."""
        self.ready = None

    def close(self) -> None:
        """Close the connection. If the engine runs on this machine, end it too; for an engine on another machine,
        `dismiss` does this. Idempotent."""
        raise NotImplementedError

    def set_vocabulary(self, vocabulary: wire.SetVocabulary) -> None:
        """Set the vocabulary, which is the first command that each new engine gets. Must be called before `receive`."""
        self._vocabulary = vocabulary

    def send(self, command: wire.EngineCommand) -> None:
        """Send a command to the engine. Runs and Asks are queued if the engine is not ready or has not received all
        earlier ones; an Abort of a queued Run only removes it from the queue. Other commands are dropped if the engine
        is not ready: a new engine has no requests and no KV. Raises if the command cannot be encoded."""
        data = self._encode(command)
        if self.ready is None or self._queued:
            match command:  # keep only commands that make sense for an engine without requests and without KV
                case wire.Run():
                    self._queued["run", command.rid] = command
                    return
                case wire.Ask():
                    self._queued["ask", command.id] = command
                    return
                case wire.Abort() if self._queued.pop(("run", command.rid), None) is not None:
                    return
        if self.ready is not None:
            self._send(data)

    def _encode(self, command: wire.EngineCommand) -> bytes:
        """Encode a command for the engine. (RemoteLink converts deadlines to the clock of the engine's machine.)"""
        return wire.encode(command)

    def receive(
        self, handle: Callable[[wire.EngineReport], Iterable[None]], is_late: Callable[[], bool] = lambda: False
    ) -> None:
        """Call `handle` with each report that has arrived, and run the iterator that it returns, step by step. If
        `is_late()` is true after a step, return with `is_busy` True; the next call continues from there, by at least
        one step. If a report is invalid or `handle` fails, the engine is killed."""
        while True:
            try:
                for _ in self._steps:
                    if is_late():
                        self.is_busy = True
                        return
                data = self._next()
                if self._bad_report:
                    continue
                self._n_silent = 0
                report = self._read(data)
                if isinstance(report, wire.Ready):
                    self.ready = report
                    if self._vocabulary is not None:
                        self._send(wire.encode(self._vocabulary))
                self._steps = chain(self._send_queued(), handle(report), (None,))
            except zmq.Again:
                self.is_busy = False
                return
            except Exception as e:
                traceback.print_exc()
                self._bad_report = f"it sent an invalid report: {e!r}"
                self._kill()
                return  # a socket that fails once may fail without end; the next call drops what else has arrived

    def listen(self) -> None:
        """Have the engine report, from now on, what its radix tree stores and evicts (TreeEvents). Does nothing if the
        engine is not ready, or reports this already."""
        if self.ready is not None and not self._is_listening:
            self._is_listening = True
            self._send(wire.encode(wire.Listen()))

    def _send_queued(self) -> Iterator[None]:
        while self.ready is not None and self._queued:
            self._send(self._encode(self._queued.popitem(last=False)[1]))
            yield

    def heartbeat(self) -> None:
        """Send a Ping, and kill an engine that has been silent for too long.

        Silence is measured in heartbeats, not in seconds, because a server sends no Pings while it is suspended.
        """
        self._n_silent += 1
        if self.ready is None:
            timeout = LOADING
        else:
            timeout = max(self._engine_timeout, SLOWER * self.ready.step_seconds)
            self.send(wire.Ping())
        was_stopped = self._n_silent > STOPPED and not self.host and is_stopped(self.pid)
        if was_stopped or self._n_silent * ipc.HEARTBEAT > timeout:
            self._kill(is_hung=True)


class EngineLink(EngineConnection):
    """The connection to an engine that the server starts itself."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], config: Config, path: Path, command: Sequence[str]
    ) -> None:
        """Start the engine. path: the server's own socket; the engine's socket is created beside it. command: the
        command line that starts an engine."""
        self._context, self._config, self._path, self._command = context, config, path, command
        self._process = EngineProcess(context, config, path, command)
        self._ending: threading.Thread | None = None  # ends the previous process
        super().__init__(config.engine_timeout)
        self._adopt()

    def _adopt(self) -> None:
        self.socket, self.life, self.pid = self._process.socket, self._process.life, self._process.pid
        self.n_starts += 1

    def start(self) -> None:
        self._config = later_config(self._config, self.ready if self._config.replicas > 1 else None)
        if self.model:
            self._config = msgspec.structs.replace(self._config, model=self.model)
        if self.life >= 0:  # otherwise this is another try, and the queued commands are for this engine
            self._ending = threading.Thread(target=self._process.close)
            self._ending.start()
            self.socket, self.life, self.pid = None, -1, -1
            self.reset()
            self._ending.join(ENDING)
        if self._ending is not None and self._ending.is_alive():
            return
        self._process = EngineProcess(self._context, self._config, self._path, self._command)
        self._adopt()

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(zmq.Again):  # the engine has died; `life` will report it
            self._process.socket.send(data, zmq.NOBLOCK)

    def _next(self) -> bytes:
        return self._process.socket.recv(zmq.NOBLOCK)

    def _kill(self, is_hung: bool = False) -> None:
        self._process.kill(is_hung)

    def await_report(self) -> bool:
        return self._process.await_report()

    def death(self) -> Death:
        death = self._process.death()._replace(was_ready=self.ready is not None)
        return death._replace(how=self._bad_report, is_blameless=False) if self._bad_report else death

    def close(self) -> None:
        if self._ending is not None:
            self._ending.join()
        self._process.close()
