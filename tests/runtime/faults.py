"""Fault injection: a connection that can be cut."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path

TIMEOUT = 10.0
"""Seconds after which a server that reads nothing is given up."""


class Proxy:
    """A Unix socket between client and server that can be cut."""

    def __init__(self, path: Path, server_path: Path) -> None:
        self.path, self._server_path = path, server_path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._waker.send(b"x")
        self._thread.join(2 * TIMEOUT)
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
                for source in ready:
                    if source in self._pairs:
                        self._forward(source)
        finally:
            for sock in (*self._pairs, self._listener, self._wake, self._waker):
                sock.close()

    def _accept(self) -> None:
        client, server = self._listener.accept()[0], socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        for sock in (client, server):
            sock.settimeout(TIMEOUT)  # sends to a stopped server block at some point
        try:
            server.connect(str(self._server_path))
        except OSError:  # the server is gone
            client.close()
            server.close()
        else:
            self._pairs |= {client: server, server: client}

    def _forward(self, source: socket.socket) -> None:
        target = self._pairs[source]
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(1 << 16)
        if data:
            with contextlib.suppress(OSError):
                target.sendall(data)
            return
        for sock in (source, target):
            self._pairs.pop(sock, None)
            sock.close()
