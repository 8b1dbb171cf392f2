"""Processes: a server for this process, an engine for that server, and the ties that end them together.

A child is held by three ties, each enough alone. The **alive pipe**: its parent keeps the only write end, so that the
parent's end, however it comes (kill -9 too), is an EOF that the child's loop sees. **close()**, which runs at the exit
of the parent's interpreter. And the kernel's PR_SET_PDEATHSIG. Children stand in their own session: Ctrl-C in a
terminal reaches the user's process alone, which then ends them.

A child says that it is ready, or why it will never be, by one line of JSON on its ready pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from banyan.runtime import config as configs
from banyan.runtime.config import Config
from banyan.runtime.errors import ConfigError, EngineLost, RuntimeLost, from_code

SERVER = (sys.executable, "-m", "banyan.runtime.server")
ENGINE = (sys.executable, "-m", "banyan.runtime.engine")
"""The children, by name: this module imports neither."""

_PATIENCE = 5.0  # seconds for a child to end by itself before it is killed
_PR_SET_PDEATHSIG = 1


class StartReport(msgspec.Struct, frozen=True):
    """What a child writes to its ready pipe: who it is and what it decided, or (code not empty) why it ended."""

    pid: int
    lines: tuple[str, ...] = ()
    code: str = ""
    message: str = ""


class ChildProcess:
    """A process that this one started and will end. Its life is tied to ours."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        pass_fds: tuple[int, ...] = (),
        stderr: IO[bytes] | None = None,
        directory: Path | None = None,
    ) -> None:
        """`directory` goes when the child has ended."""
        alive, self._hold = os.pipe()
        try:
            self.process = subprocess.Popen(
                [*command, "--alive-fd", str(alive)],
                pass_fds=(alive, *pass_fds),
                stdin=subprocess.DEVNULL,
                stdout=2 if stderr is None else stderr,  # the user's stdout is the user's
                stderr=stderr,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._hold)
            raise
        finally:
            os.close(alive)
        self._end = weakref.finalize(self, _end, self.process, self._hold, directory)  # also runs at exit

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code, or None if it still runs after `timeout` seconds."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End it: ask, wait a little, kill with all of its session. Idempotent."""
        self._end()


def _end(process: subprocess.Popen[bytes], hold: int, directory: Path | None) -> None:
    os.close(hold)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


class ServerProcess(ChildProcess):
    """A running server. `socket` is where it listens; `report`, what it decided, one line each."""

    socket: Path
    report: tuple[str, ...]


def start(config: Config, timeout: float = 600.0, command: Sequence[str] = SERVER) -> ServerProcess:
    """Start a server and wait until its engine is ready. An empty `config.socket` makes it private: its directory is
    made here and goes with it.

    Raises the error the server met (ConfigError, ModelNotFound, OutOfMemory ...); RuntimeLost, with the end of what it
    wrote to stderr, if it died without a word or is not ready within `timeout` seconds.
    """
    if config.socket.startswith("tcp:"):
        raise ConfigError(f"socket is {config.socket}, and must be a path; `bind` is what listens on tcp")
    private = not config.socket
    path = configs.private_socket() if private else Path(config.socket).absolute()
    config = msgspec.structs.replace(config, socket=str(path))
    ready, write_end = os.pipe()
    # What a quiet server says is only read if it dies early; a talking one says it to the user.
    log = tempfile.TemporaryFile() if config.log == "quiet" else None  # noqa: SIM115
    server: ServerProcess | None = None
    try:
        try:
            options = ["--config", msgspec.json.encode(config).decode(), "--ready-fd", str(write_end)]
            options += ["--private"] if private else []
            directory = path.parent if private else None
            server = ServerProcess([*command, *options], pass_fds=(write_end,), stderr=log, directory=directory)
        finally:
            os.close(write_end)
        server.socket = path
        server.report = _await_report(server, ready, time.monotonic() + timeout, log).lines
    except BaseException:
        if server is not None:
            server.close()
        raise
    finally:
        os.close(ready)
        if log is not None:
            log.close()
    return server


def _await_report(server: ChildProcess, ready: int, deadline: float, log: IO[bytes] | None) -> StartReport:
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not is_readable(ready, left):
            raise RuntimeLost(f"the server was not ready in time, and was ended{_tail(log)}")
        if not (data := os.read(ready, 1 << 16)):
            code = server.wait(_PATIENCE)
            raise RuntimeLost(f"the server died as it started (exit code {code}){_tail(log)}")
        line += data
    report = msgspec.json.decode(line, type=StartReport)
    if report.code:
        # An engine that died can only be asked what it left on stderr.
        raise from_code(report.code, report.message + (_tail(log) if report.code == EngineLost.code else ""))
    return report


def is_readable(fd: int, seconds: float) -> bool:
    """Wait so long for `fd` to be readable, or at its end. Unlike select() also where a thousand files are open."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _tail(log: IO[bytes] | None, n_lines: int = 15) -> str:
    if log is None:
        return "; what it said stands above, on stderr"
    log.seek(0)
    lines = log.read().decode(errors="replace").rstrip().splitlines()[-n_lines:]
    return "; its last words:\n  " + "\n  ".join(lines) if lines else "; it said nothing on stderr"


# ---- for children --------------------------------------------------------------------------------------------------


def tie_to_parent(signum: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send us `signum` when our parent ends. It does so already when the *thread* that started us ends:
    a parent that may start us on a passing thread needs a `signum` whose handler asks os.getppid()."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def tell(ready_fd: int, report: StartReport) -> None:
    """Write the one line that the parent waits for. A parent that is gone does not matter: the alive pipe tells."""
    with contextlib.suppress(BrokenPipeError):
        os.write(ready_fd, msgspec.json.encode(report) + b"\n")
    os.close(ready_fd)
