"""A server that answers every generation at once, with the same text: what is measured beside it is the client.

with instant.server() as path: ...                a process of its own
python benchmarks/instant.py SOCKET [HOLD]        answers nothing before HOLD programs have asked
"""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from banyan.runtime.protocol import ipc, wire

LONGEST = 60.0
"""Seconds that a server may take to listen."""
TEXT = "an answer of a few words"
CHAT = wire.ChatMarkers(roles={role: (f"<{role}>", "</>") for role in ("system", "user", "assistant")}, stop=("</>",))


@contextmanager
def server(hold: int = 0) -> Iterator[Path]:
    """Run one; gives its socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        command = [sys.executable, __file__, str(path), str(hold)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                if not select.select([process.stdout], [], [], LONGEST)[0]:
                    raise TimeoutError(f"{path} does not listen after {LONGEST:g} s")
                process.stdout.readline()  # it listens
                yield path
            finally:
                process.kill()


class Instant:
    """The programs of all clients. A gen's prompt counts one token for each op."""

    def __init__(self, hold: int) -> None:
        self.hold = hold
        self.n_asked = 0
        self._seqs: dict[tuple[bytes, int], int] = {}
        self._held: list[tuple[bytes, wire.Submit]] = []

    def answers(self, who: bytes, message: wire.ClientMessage) -> Iterator[tuple[bytes, wire.ServerMessage]]:
        match message:
            case wire.Hello():
                yield who, wire.Welcome(version=wire.VERSION, model="instant", max_context=1 << 20, chat=CHAT)
            case wire.Ping():
                yield who, wire.Pong()
            case wire.Cancel(program=number):
                self._seqs.pop((who, number), None)
            case wire.Submit():
                self.n_asked += message.seq == 0
                self._held.append((who, message))
                if self.n_asked >= self.hold:
                    held, self._held = self._held, []
                    for one in held:
                        yield from self._values(*one)

    def _values(self, who: bytes, message: wire.Submit) -> Iterator[tuple[bytes, wire.ServerMessage]]:
        for op in message.ops:
            if isinstance(op, wire.Gen | wire.Select | wire.Read):
                seq = self._seqs.get((who, message.program), 0)
                self._seqs[who, message.program] = seq + 1
                text = op.choices[0] if isinstance(op, wire.Select) else TEXT
                usage = wire.TokenUsage(len(message.ops), 0, 6)
                yield who, wire.Value(message.program, seq, op.ref, (wire.Sample(text, "stop", n_tokens=6),), usage)


def main(path: Path, hold: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket, _lock = ipc.listen(context, path, 1 << 30)
    print("listening", flush=True)
    instant = Instant(hold)
    while True:
        who, data = socket.recv_multipart()
        for client, answer in instant.answers(who, wire.decode_client(data)):
            socket.send_multipart((client, wire.encode(answer)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
