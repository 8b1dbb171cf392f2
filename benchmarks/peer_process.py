"""A system under test in its own process. SIGSTOP stops it between requests, so that its polling costs the others
nothing.

The process reads a line of text per request from standard input and answers with a line of JSON. Its first line, before
any request, says that it is ready.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil

LONGEST = 3600.0
"""Seconds that a process may take to start, or to answer a request."""


class ProcessTree:
    """A process and its children."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)

    def _all(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self._root, *self._root.children(recursive=True)]
        return []

    def signal(self, number: signal.Signals) -> None:
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    @property
    def peak(self) -> int:
        """The sum of the processes' peak memory in bytes. Shared pages count for each."""
        n = 0
        for process in self._all():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                n += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
        return n << 10


class PeerProcess:
    """Starts the process and waits until it is ready. ready: the decoded JSON of its first line."""

    def __init__(self, command: list[str]) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._tree = ProcessTree(self._process.pid)
        try:
            self.ready = self._read()
        except BaseException:
            self.close()
            raise
        self._tree.signal(signal.SIGSTOP)

    def ask(self, request: str) -> Any:
        """Send a request and return the answer."""
        self._tree.signal(signal.SIGCONT)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `_read` says so
            print(request, file=self._process.stdin, flush=True)
        answer = self._read()
        self._tree.signal(signal.SIGSTOP)
        return answer

    def _read(self) -> Any:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], LONGEST)[0]:
            self._tree.signal(signal.SIGKILL)
            raise SystemExit(f"{self._process.args!r} has not answered within {LONGEST:g} s")
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{self._process.args!r} ended with status {self._process.wait()}; see its output above")
        return json.loads(line)

    @property
    def peak(self) -> int:
        return self._tree.peak

    def close(self) -> None:
        self._tree.signal(signal.SIGCONT)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._tree.signal(signal.SIGKILL)
            self._process.wait()
