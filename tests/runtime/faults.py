"""A fault for tests to put into the way of programs: a connection that is cut."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path

PATIENCE = 10.0
"""Seconds after which a server that takes nothing is given up."""


class Proxy:
    """A socket between a client and a server, which can be cut."""

    def __init__(self, path: Path, server: Path) -> None:
        self.path, self._server = path, server
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._waker.send(b"x")
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive()

    close = cut

    def _run(self) -> None:
        try:
            while True:
                ready, _, _ = select.select([self._wake, self._listener, *self._pairs], [], [])
                if self._wake in ready:
                    return
                if self._listener in ready:
                    self._accept()
                for one in ready:
                    if one in self._pairs:
                        self._pump(one)
        finally:
            for one in (*self._pairs, self._listener, self._wake, self._waker):
                one.close()

    def _accept(self) -> None:
        ours, theirs = self._listener.accept()[0], socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        for one in (ours, theirs):
            one.settimeout(PATIENCE)  # a server that stands still takes no more at some point
        try:
            theirs.connect(str(self._server))
        except OSError:  # it is gone
            ours.close()
            theirs.close()
        else:
            self._pairs |= {ours: theirs, theirs: ours}

    def _pump(self, one: socket.socket) -> None:
        other = self._pairs[one]
        data = b""
        with contextlib.suppress(OSError):
            data = one.recv(1 << 16)
        if data:
            with contextlib.suppress(OSError):
                other.sendall(data)
            return
        for each in (one, other):
            self._pairs.pop(each, None)
            each.close()
