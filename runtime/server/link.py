"""The engine as the server sees it: a process that may die, and a socket on which it answers.

Orders that come before the engine is ready wait for it. When the process dies, another is started in its place and what
was running is sent again (`Requests.replay`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from banyan.runtime import ipc, launch, wire
from banyan.runtime.config import Config


class Link:
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
        self._early: list[wire.EngineOrder] = []
        self.n_starts += 1
        # Each engine has a socket of its own: nothing of its predecessor's can reach it.
        self._address = Path(f"{self._path}.e{self.n_starts}")
        self.socket = ipc.pair(self._context, self._address)
        options = ["--config", msgspec.json.encode(self._config).decode(), "--socket", ipc.address(self._address)]
        self._child = launch.Child([*self._command, *options])
        self.life = os.pidfd_open(self._child.pid)

    def send(self, order: wire.EngineOrder) -> None:
        if self.ready is None:
            self._early.append(order)
            return
        with contextlib.suppress(zmq.Again):  # it is dead, which `life` will tell
            self.socket.send(wire.encode(order), zmq.NOBLOCK)

    def receive(self, take: Callable[[wire.EngineReport], None]) -> None:
        """Hand all reports that are there to `take`."""
        while True:
            try:
                data = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            report = wire.decode_report(data)
            if isinstance(report, wire.Ready):
                self.ready = report
                for order in (*self.first, *self._early):
                    self.send(order)
                self._early.clear()
            take(report)

    @property
    def pid(self) -> int:
        return self._child.pid

    def exit_code(self) -> int | None:
        return self._child.wait(0)

    def close(self) -> None:
        """End the process and the socket. Idempotent."""
        if self.life >= 0:
            os.close(self.life)
            self.life = -1
            self._child.close()
            self.socket.close(0)
            self._address.unlink(missing_ok=True)
