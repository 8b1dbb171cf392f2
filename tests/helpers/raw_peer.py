"""A client that sends any message or bytes to a server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from banyan.runtime.protocol import ipc, wire


class Peer:
    """A client. hello: whether it begins with a Hello."""

    def __init__(self, context: Any, path: Path, hello: bool = True) -> None:
        self.socket, self.monitor = ipc.connect(context, path)
        if hello:
            self.send(wire.Hello(wire.VERSION))
            assert isinstance(self.receive(), wire.Welcome)

    def send(self, *messages: wire.ClientMessage | bytes) -> None:
        for message in messages:
            self.socket.send(message if isinstance(message, bytes) else wire.encode(message))

    def receive(self, seconds: float = 30.0) -> wire.ServerMessage:
        """The next message other than Pong, which a server may send at any time."""
        deadline = time.monotonic() + seconds
        while self.socket.poll(max(0, int(1000 * (deadline - time.monotonic())))):
            message = wire.decode_server(self.socket.recv())
            if not isinstance(message, wire.Pong):
                return message
        raise AssertionError("no message came")

    def stats(self) -> dict[str, Any]:
        """The counters of the server itself. Messages that come before them are dropped."""
        self.send(wire.Ask(1, "stats"))
        while not isinstance(answer := self.receive(), wire.Answer):
            pass
        found: dict[str, Any] = json.loads(answer.body)["server"]
        return found

    def run_program(self, program: int) -> None:
        gen = wire.Gen(0, 0, wire.Sampling(max_tokens=3))
        self.send(wire.Submit(program, 0, (wire.Append(0, ("a",)), gen), last=True))
        value = self.receive()
        assert isinstance(value, wire.Value)
        assert value.program == program
