"""A child process for work that may hang or crash on bad data. The child answers each message that it gets."""

from __future__ import annotations

import argparse
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from banyan.runtime import launch
from banyan.runtime.errors import BadProgram

START_SECONDS = 120.0


class HelperProcess:
    """The parent's side of a child process, which handles one message at a time. The child is started at the first
    message, and again after it has died or was ended. Thread-safe."""

    def __init__(self, command: Sequence[str], hello: bytes, what: str) -> None:
        """command: the command line of a child, which runs `serve`. hello: the first message to each child; a later
        change of the attribute takes effect when the next child starts. what: names the thing that a child loads, in
        errors."""
        self._command, self.hello, self._what = command, hello, what
        self._lock = threading.Lock()
        self.child: launch.ChildProcess | None = None  # None: there is none now

    def ask(self, data: bytes, seconds: float) -> bytes:
        """The answer to a message. TimeoutError: there was no answer within `seconds`, and the child was killed.
        Another OSError, or EOFError: the child died. BadProgram: the child cannot load what it needs."""
        with self._lock:
            try:
                if self.child is None:
                    self._start()  # does not count as time of the message
                return self._ask(data, seconds)
            except BaseException:
                self._stop()
                raise

    def close(self) -> None:
        """End the child, if there is one. Idempotent."""
        if (child := self.child) is not None:
            child.process.kill()  # before the lock is taken, because a thread that waits for an answer holds it
        with self._lock:
            self._stop()

    def _ask(self, data: bytes, seconds: float) -> bytes:
        self._pipe.send_bytes(data)
        if not self._pipe.poll(seconds):
            raise TimeoutError
        return self._pipe.recv_bytes()

    def _start(self) -> None:
        ours, its = socket.socketpair()
        with its:
            self.child = launch.ChildProcess([*self._command, "--fd", str(its.fileno())], pass_fds=(its.fileno(),))
        self._pipe = Connection(ours.detach())
        try:
            error = self._ask(self.hello, START_SECONDS).decode()
        except TimeoutError:
            error = f"that takes more than {START_SECONDS:.0f} s"
        if error:
            raise BadProgram(f"{self._what} cannot be loaded: {error}")

    def _stop(self) -> None:
        if self.child is not None:
            self.child.process.kill()
            self.child.close()
            self.child = None
            self._pipe.close()


def serve(start: Callable[[bytes], Callable[[bytes], bytes]]) -> None:
    """Run the child. start: gets the first message, and returns the function that answers the others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True, help="socket for messages and their answers")
    parser.add_argument("--alive-fd", type=int, required=True, help="not used: the socket ends with the parent")
    pipe = Connection(parser.parse_args().fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    launch.tie_to_parent()
    try:
        answer = start(pipe.recv_bytes())
    except Exception as e:  # whatever a library raises
        pipe.send_bytes((str(e) or repr(e)).encode())
        return
    pipe.send_bytes(b"")
    while True:
        try:
            data = pipe.recv_bytes()
        except EOFError:
            return
        pipe.send_bytes(answer(data))
