"""The sockets on which a server listens: the local one, and a tcp:// one if the config has `bind`.

A client is identified by one letter for its socket, followed by the identity that libzmq gave it on this socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq

from banyan.runtime.config import Config
from banyan.runtime.protocol import ipc, tcp_auth

Client = bytes

SHARED = 1 << 18
"""Messages of at least this many bytes are sent without a copy: copying 10 MB takes 1 to 6 ms."""
_BATCH = 64  # most messages taken from one socket before the next one gets its turn


class Listeners:
    """All listening sockets.

    sockets   readable when a client has sent something
    monitors  readable when a connection broke
    address   tcp://HOST:PORT as bound; "" without `bind`
    report    lines that tell people where the server listens besides the local socket
    peer      the origin of the message that `receive` yielded last: an IP address, or "the local socket"
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], config: Config) -> None:
        """ConfigError: the server cannot listen on a socket."""
        local, self._lock = ipc.listen(context, Path(config.socket), config.max_message)
        self._sockets = {b"i": local}
        self.address = ""
        self.peer = ""
        self.report: tuple[str, ...] = ()
        try:
            if config.bind:
                remote = tcp_auth.listen(context, config.bind, Path(config.curve_key), config.max_message)
                self._sockets[b"t"] = remote
                self.address = remote.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
                key = tcp_auth.read_keys(Path(config.curve_key))[0].decode()
                self.report = (f"listens at {self.address} too, encrypted; its public key is {key}",)
        except BaseException:
            self.release()
            raise
        self.sockets = tuple(self._sockets.values())
        self.monitors = tuple(map(ipc.watch, self.sockets))

    def receive(self) -> Iterator[tuple[Client, list[bytes]]]:
        """Yields (client, frames) of messages that have arrived, up to a limit, so that other work of the loop is not
        delayed."""
        for letter, socket in self._sockets.items():
            for _ in range(_BATCH):
                is_tcp = letter == b"t"
                try:
                    frames: list[Any] = socket.recv_multipart(zmq.NOBLOCK, copy=not is_tcp)
                except zmq.Again:
                    break
                self.peer = "the local socket"
                if is_tcp:  # only a zmq.Frame knows its peer
                    self.peer = str(frames[0].get("Peer-Address"))
                    frames = [frame.bytes for frame in frames]
                yield letter + frames[0], frames[1:]

    @property
    def has_messages(self) -> bool:
        """Whether messages have arrived that were not received yet."""
        return any(socket.poll(0) for socket in self.sockets)

    def send(self, client: Client, data: bytes) -> bool:
        """Send a message. Returns False if the client is gone or does not read its messages."""
        try:
            self._sockets[client[:1]].send_multipart((client[1:], data), zmq.NOBLOCK, copy=len(data) < SHARED)
        except zmq.ZMQError as e:
            if e.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def has_broken(self) -> bool:
        """Whether a connection broke since the last call."""
        return sum(map(ipc.drain, self.monitors)) > 0

    def release(self) -> None:
        """Release the lock of the local socket, so that another server can use its path. Idempotent."""
        self._lock.release()
