"""Numbers the messages of each program, in both directions.

Connections deliver each message once and in order, and a client whose connection breaks is forgotten with its programs.
So nothing is sent again. A gap or a repeated number means that a peer is broken, and fails the program.
"""

from __future__ import annotations

from collections.abc import Callable

from banyan.runtime.errors import BadMessage, BanyanError
from banyan.runtime.protocol import wire

Client = bytes
Key = tuple[Client, int]
"""A program: its client, and the number that the client gave it."""


class Delivery:
    """Message numbers of all running programs. `send` gives a message to a client and must not raise."""

    def __init__(self, send: Callable[[Client, wire.ServerMessage], None]) -> None:
        self._send = send
        self._n_received: dict[Key, int] = {}
        self._n_sent: dict[Key, int] = {}

    def receive(self, key: Key, seq: int) -> BanyanError | None:
        """Count message `seq` of a program. Returns an error if it is not the next one.

        A message of an unknown program with seq > 0 is answered with Failed: the program has ended, or its first
        message was lost.
        """
        expected = self._n_received.get(key, 0)
        if seq == expected:
            self._n_received[key] = expected + 1
            self._n_sent.setdefault(key, 0)
            return None
        error = BadMessage(f"message {seq} of the program came where message {expected} was expected")
        if key not in self._n_received:
            self._send(key[0], wire.Failed(key[1], 0, error.code, error.message))
        return error

    def next(self, key: Key) -> int:
        """The seq of the next message to the client."""
        return self._n_sent[key]

    def send(self, client: Client, message: wire.Delta | wire.Value | wire.Failed | wire.Called) -> None:
        """Send a message with the seq that `next` returned."""
        self._send(client, message)
        self._n_sent[client, message.program] += 1  # after `send`: a message that cannot be encoded takes no seq

    def end(self, key: Key) -> None:
        """Forget a program that has ended."""
        self._n_received.pop(key, None)
        self._n_sent.pop(key, None)
