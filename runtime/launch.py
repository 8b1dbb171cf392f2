"""Starts child processes (the server of a user's process, the engine of a server) and ends them with their parent.

Each of three things ends a child with its parent. The kernel closes the alive pipe, whose only write end the parent
holds, so the child reads EOF. At the exit of its interpreter, the parent calls close(). And the kernel signals the
child (PR_SET_PDEATHSIG).

Children run in their own session, so Ctrl-C in a terminal reaches only the user's process, which then ends them. A fork
of the parent does not own the children: its exit and its close() do not end them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import ipaddress
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from banyan.runtime import config as configs
from banyan.runtime.config import Config, HTTPConfig
from banyan.runtime.errors import ConfigError, EngineLost, RuntimeLost, from_code

SERVER = (sys.executable, "-m", "banyan.runtime.server")
ENGINE = (sys.executable, "-m", "banyan.runtime.engine")
GATEWAY = (sys.executable, "-m", "banyan.runtime.gateway")
"""The commands of the children. This module imports none of them."""

_GRACE = 5.0  # seconds for a child to end by itself before it is killed
_PR_SET_PDEATHSIG = 1

P = TypeVar("P", bound="ChildProcess")


class StartReport(msgspec.Struct, frozen=True):
    """What a child writes to its ready pipe when it is ready, has failed, or takes long to start.

    lines: what the child chose, as text for people.
    code, message: the error with which the child ended; code "": no error.
    notice: what the child is doing that takes long; "": this is the last report. After a notice, another report
    follows.
    """

    lines: tuple[str, ...] = ()
    code: str = ""
    message: str = ""
    notice: str = ""


class ChildProcess:
    """A process that this process started and that ends with this process. kind: what error messages call the child."""

    kind = "child process"

    def __init__(
        self,
        command: Sequence[str],
        *,
        pass_fds: tuple[int, ...] = (),
        stderr: IO[bytes] | None = None,
        directory: Path | None = None,
    ) -> None:
        """Start the child. pass_fds: file descriptors that it inherits. stderr: the file for its output; None: our
        stderr. directory: a directory to remove when the child has ended."""
        alive, write_end = os.pipe()
        try:
            self.process = subprocess.Popen(
                [*command, "--alive-fd", str(alive)],
                pass_fds=(alive, *pass_fds),
                stdin=subprocess.DEVNULL,
                stdout=2 if stderr is None else stderr,  # stdout belongs to the user's program
                stderr=stderr,
                start_new_session=True,
            )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(alive)
        self.pid, self._write_end = self.process.pid, write_end
        self._end = weakref.finalize(self, _end, self.process, write_end, directory)  # also runs at exit
        _children.add(self)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the child has ended. Returns its exit code; None if it still runs after `timeout` seconds."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End the child: close the alive pipe, wait a little, then kill the child's whole session. Idempotent."""
        self._end()


_children: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


def _disown_children() -> None:
    """Make a fork of this process leave the children alone: its close() and its exit do not end them. Called in the
    fork.

    The fork also closes its copies of the alive pipes. If it kept them open, the children would not notice when their
    parent ends.
    """
    for child in list(_children):
        if child._end.detach() is not None:
            os.close(child._write_end)
            child.process.returncode = 0  # a fork cannot wait for it


os.register_at_fork(after_in_child=_disown_children)


def _end(process: subprocess.Popen[bytes], write_end: int, directory: Path | None) -> None:
    os.close(write_end)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


class ServerProcess(ChildProcess):
    """A running server. socket: the path at which it listens. report: lines for people about what the server chose,
    such as sizes."""

    kind = "server"
    socket: Path
    report: tuple[str, ...]


class GatewayProcess(ChildProcess):
    """A running HTTP process. url: where it listens, such as http://127.0.0.1:8000."""

    kind = "HTTP process"
    url: str


def start(config: Config, timeout: float = 600.0, command: Sequence[str] = SERVER) -> ServerProcess:
    """Start a server and wait until its engine is ready. If `config.socket` is empty, the server gets a private socket
    in a new directory, which is removed when the server ends. Raises the server's error (ConfigError, ModelNotFound,
    OutOfMemory ...). RuntimeLost: the server died without an error, or is not ready within `timeout` seconds."""
    if config.socket.startswith("tcp:"):
        raise ConfigError(f"socket is {config.socket}, but must be a path; to listen on tcp, set `bind`")
    private = not config.socket
    path = configs.private_socket() if private else Path(config.socket).absolute()
    config = msgspec.structs.replace(config, socket=str(path))
    with contextlib.ExitStack() as stack:
        # The output of a quiet server is shown only if it does not start, unless the user wants traces there.
        is_shown = config.log != "quiet" or config.traces == "console"
        log = None if is_shown else stack.enter_context(tempfile.TemporaryFile())
        directory = path.parent if private else None
        make = partial(ServerProcess, stderr=log, directory=directory)
        server, server_report = _start(make, [*command, *(["--private"] if private else [])], config, timeout, log)
    server.socket, server.report = path, server_report.lines
    return server


def start_gateway(config: HTTPConfig, timeout: float = 60.0) -> GatewayProcess:
    """Start the HTTP process of a running server, and wait until it listens. ConfigError: it cannot listen, or the
    packages of the extra `http` are not installed. RuntimeLost: it died, or was not ready within `timeout` seconds."""
    _check_packages()
    gateway, report = _start(GatewayProcess, GATEWAY, config, timeout, None)
    (gateway.url,) = report.lines
    return gateway


def check_gateway(config: HTTPConfig) -> None:
    """Check, before a server loads its model, what its HTTP process will check as it starts. ConfigError: an option is
    invalid, the process cannot listen at its address, or the extra is not installed."""
    configs.origins(config.cors)
    configs.model_names(config.models)
    if config.keys_file:
        configs.api_keys(Path(config.keys_file))
    if config.token_file:
        configs.operator_token(Path(config.token_file))
    listen(config).close()
    _check_packages()


def _check_packages() -> None:
    for name in ("starlette", "uvicorn", "httptools"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"http needs {name}: pip install 'banyan[http]'")


def listen(config: HTTPConfig) -> socket.socket:
    """Bind the socket at which the HTTP process will listen. ConfigError: the address is not available, or other
    machines could connect to it although no API keys are set."""
    host, port = configs.address(config.address)
    try:
        (family, *_, where), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not ipaddress.ip_address(where[0]).is_loopback and not config.keys_file:
            raise ConfigError(
                f"http is {config.address}, where anybody could connect; set http_keys, so that only clients with a "
                "key can"
            )
        # asyncio turns off Nagle's delay, of 40 ms, only for sockets that name their protocol.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(where)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as e:  # UnicodeError: the host is no name, like a..b
        why = getattr(e, "strerror", None) or e
        raise ConfigError(f"http: cannot listen at {config.address}: {why}") from e
    return listener


def _start(
    make: Callable[..., P], command: Sequence[str], config: Config | HTTPConfig, timeout: float, log: IO[bytes] | None
) -> tuple[P, StartReport]:
    """Start a child, and wait until it reports that it is ready. Returns the child and its report. If the child fails,
    its error is raised.

    make: makes the ChildProcess from a command. log: the file that gets the child's output; None: stderr gets it.
    """
    ready, write_end = os.pipe()
    try:
        try:
            options = ("--config", msgspec.json.encode(config).decode(), "--ready-fd", str(write_end))
            child = make([*command, *options], pass_fds=(write_end,))
        finally:
            os.close(write_end)
        try:
            is_quiet = isinstance(config, Config) and config.log == "quiet"
            return child, _await_report(child, ready, time.monotonic() + timeout, log, is_quiet)
        except BaseException:
            child.close()
            raise
    finally:
        os.close(ready)


def _await_report(
    child: ChildProcess, ready: int, deadline: float, log: IO[bytes] | None, is_quiet: bool
) -> StartReport:
    """Wait until a child reports that it is ready, and return the report. Raises the error that the child reports.
    RuntimeLost: the child died, or `deadline` (time.monotonic) has passed.

    ready: the read end of the ready pipe. log: the file that gets the child's output; None: stderr gets it. is_quiet:
    whether to print the child's notices, because the child itself logs none.
    """
    data = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not is_readable(ready, left):
            raise RuntimeLost(f"the {child.kind} was not ready in time, and was ended{_tail(log)}")
        if not (more := os.read(ready, 1 << 16)):
            code = child.wait(_GRACE)
            raise RuntimeLost(f"the {child.kind} died as it started (exit code {code}){_tail(log)}")
        *lines, data = (data + more).split(b"\n")
        for line in lines:
            report = msgspec.json.decode(line, type=StartReport)
            if report.code:
                # Only its stderr can tell why an engine died.
                raise from_code(report.code, report.message + (_tail(log) if report.code == EngineLost.code else ""))
            if not report.notice:
                return report
            if is_quiet:
                print(f"banyan: {report.notice}", file=sys.stderr, flush=True)


def is_readable(fd: int, seconds: float) -> bool:
    """Wait until `fd` is readable or at EOF, at most `seconds`. Returns whether it is. Unlike select(), this works with
    file descriptors above 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _tail(log: IO[bytes] | None) -> str:
    if log is None:
        return "; its output is above, on stderr"
    log.seek(0)
    lines = log.read().decode(errors="replace").rstrip().splitlines()[-15:]
    return "; the end of its output:\n  " + "\n  ".join(lines) if lines else "; it wrote nothing to stderr"


# ---- for children --------------------------------------------------------------------------------------------------


def tie_to_parent(signum: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send `signum` to this process when its parent ends. The kernel also sends it when the thread that
    started this process ends, although the parent lives on. Where that can happen, the handler of `signum` must check
    os.getppid()."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def report_start(ready_fd: int, report: StartReport) -> None:
    """Called in a child: write a report to the parent. Closes the pipe, except after a notice. No error is raised if
    the parent is gone, because the alive pipe tells the child."""
    with contextlib.suppress(BrokenPipeError):
        os.write(ready_fd, msgspec.json.encode(report) + b"\n")
    if not report.notice:
        os.close(ready_fd)
