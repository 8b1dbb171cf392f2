"""Where clients come in: a local socket, and tcp:// where the config binds one. To the server they are one door.

A client is the letter of its door and the name that libzmq gave it there, so that nobody takes another's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import zmq

from banyan.runtime.config import Config
from banyan.runtime.protocol import ipc, tcp_auth

Client = bytes

_AT_ONCE = 64  # messages taken from a door before others have their turn


class Listeners:
    """sockets: readable when somebody says something. breaks: when a connection breaks. lines: where it listens beside
    the local socket, for a person."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], config: Config) -> None:
        """ConfigError: it cannot listen."""
        near, self._lock = ipc.listen(context, Path(config.socket), config.max_message)
        self._doors = {b"i": near}
        self.address = ""
        """tcp://HOST:PORT as it is bound; "": it is not."""
        self.lines: tuple[str, ...] = ()
        try:
            if config.bind:
                far = tcp_auth.listen(context, config.bind, Path(config.curve_key), config.max_message)
                self._doors[b"t"] = far
                self.address = far.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
                key = tcp_auth.read_keys(Path(config.curve_key))[0].decode()
                self.lines = (f"listens at {self.address} too, encrypted; its public key is {key}",)
        except BaseException:
            self.release()
            raise
        self.sockets = tuple(self._doors.values())
        self.breaks = tuple(map(ipc.watch, self.sockets))

    def receive(self) -> Iterator[tuple[Client, list[bytes]]]:
        """What clients sent: at most a batch, so that nobody else is kept waiting."""
        for letter, door in self._doors.items():
            for _ in range(_AT_ONCE):
                try:
                    name, *frames = door.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                yield letter + name, frames

    def send(self, client: Client, data: bytes) -> bool:
        """False: it is gone, or does not read what it asked for."""
        try:
            self._doors[client[:1]].send_multipart((client[1:], data), zmq.NOBLOCK)
        except zmq.ZMQError as e:
            if e.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def has_broken(self) -> bool:
        """Whether a connection broke since it was last asked."""
        return sum(map(ipc.drain, self.breaks)) > 0

    def release(self) -> None:
        """Let another server have the place. Idempotent."""
        self._lock.release()
