"""Faults for tests to put into the way of programs: messages that are lost or come twice, connections that are cut."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from banyan.runtime.client.client import Client
from banyan.runtime.protocol import wire

SAFE = (wire.Hello, wire.Welcome, wire.Ask, wire.Answer, wire.Undefine)
"""Messages outside of programs: who asked is told, or asks again."""


@contextmanager
def lossy(client: Client, seed: int, loss: float, twice: float = 0.0) -> Iterator[list[str]]:
    """Lose and repeat messages of `client`, both ways, at random. Gives what was lost."""
    rng, lost = Random(seed), list[str]()
    send_now, take = client.send_now, client._take

    def send(data: bytes) -> None:
        message = wire.decode_client(data)
        if isinstance(message, SAFE) or not lose(message):
            send_now(data)
            if rng.random() < twice:
                send_now(data)

    def receive(message: Any) -> None:
        if isinstance(message, SAFE) or not lose(message):
            take(message)
            if rng.random() < twice:
                take(message)

    def lose(message: Any) -> bool:
        if is_lost := rng.random() < loss:
            lost.append(type(message).__name__)
        return is_lost

    client.send_now, client._take = send, receive  # type: ignore[method-assign]
    try:
        yield lost
    finally:
        del client.send_now, client._take


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
