"""A server that answers every generation at once with the same text, to measure clients.

with instant.server() as path: ...                runs the server in its own process
python benchmarks/instant.py SOCKET [HOLD]        withholds all answers until HOLD programs have submitted
"""

from __future__ import annotations

import argparse
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from banyan.runtime.protocol import decoders, ipc, wire

START_TIMEOUT = 60.0  # seconds
TEXT = "an answer of a few words"
CHAT = wire.ChatMarkers(roles={role: (f"<{role}>", "</>") for role in ("system", "user", "assistant")}, stop=("</>",))


@contextmanager
def server(hold: int = 0) -> Iterator[Path]:
    """Run a server; yields the path of its socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        command = [sys.executable, __file__, str(path), str(hold)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                if not select.select([process.stdout], [], [], START_TIMEOUT)[0]:
                    raise TimeoutError(f"{path} does not listen after {START_TIMEOUT:g} s")
                process.stdout.readline()  # it is listening
                yield path
            finally:
                process.kill()


class InstantServer:
    """Answers the messages of all clients."""

    def __init__(self, hold: int) -> None:
        self.hold = hold
        self.n_programs = 0
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
                self.n_programs += message.seq == 0
                self._held.append((who, message))
                if self.n_programs >= self.hold:
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


def main(socket: Path, hold: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    listener, _lock = ipc.listen(context, socket, 1 << 30)
    print("listening", flush=True)
    instant = InstantServer(hold)
    while True:
        who, data = listener.recv_multipart()
        for client, answer in instant.answers(who, decoders.decode_client(data)):
            listener.send_multipart((client, wire.encode(answer)))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("socket", type=Path)
    arguments.add_argument("hold", type=int, nargs="?", default=0)
    main(**vars(arguments.parse_args()))
