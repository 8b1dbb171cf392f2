"""Starts the servers and engines of tests as forks of a process that has imported their modules.

Imports take nearly all of the CPU time that a server (0.4 s) and an engine (3 s) need to start. A *template* is a
process that has imported the modules and waits. For each child that `launch` starts, it forks, as Android's zygote
does. The fork becomes a child of the process that asked for it. It gets the file descriptors, session and command line
of an ordinary child, and ends as an interpreter does. A server gets its own template for its engines. Other
commands are started as usual.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

MODULES = ("banyan", "banyan.runtime.server", "banyan.runtime.engine", "banyan.runtime.gateway")
"""Packages that a template can run as `python -m`. It has imported nearly all of their modules."""
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "OMP_", "HF_", "XDG_", "TRITON_INTERPRET")
"""Prefixes of environment variables that are read at a start or import. A child with other values is not forked."""
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_HIGH = 500  # received file descriptors are first moved to numbers from here on
_MAX_ORDER = 1 << 17  # bytes


class Template:
    """A template, as seen by the process that asks it for forks. orders: a socket to the template; None: the first fork
    starts a template."""

    def __init__(self, orders: socket.socket | None = None) -> None:
        self._orders, self._lock = orders, threading.Lock()
        self._environment = _read_at_start(os.environ)

    def serves(self, command: list[str], environment: Mapping[str, str]) -> bool:
        if command[0] != sys.executable or _read_at_start(environment) != self._environment:
            return False
        return command[1].endswith(".py") or (command[1] == "-m" and command[2] in MODULES)

    def fork(self, fds: Mapping[int, int], **order: Any) -> int:
        """The pid of a new child of this process. fds: number in the child -> file descriptor here."""
        data = json.dumps({"targets": list(fds), **order}).encode()
        assert len(data) < _MAX_ORDER
        with self._lock:
            if self._orders is None:
                self._start()
            assert self._orders is not None
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # the child's parent ends, and this process adopts the child
            try:
                socket.send_fds(self._orders, [data], list(fds.values()))
                pid = self._orders.recv(20)
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)
        assert pid, "the template of servers and engines died"
        return int(pid)

    def _start(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )

    def close(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self.process.wait(30)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


class ForkedPopen(subprocess.Popen[bytes]):
    """A Popen whose child is forked by a template if the template serves the command."""

    def __init__(self, args: list[str], *, template: Template, **options: Any) -> None:
        self._template = template
        super().__init__(args, **options)

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Sequence[int], cwd: Any, env: Any,
        startupinfo: Any, creationflags: int, shell: bool,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        restore_signals: bool, gid: Any, gids: Any, uid: Any, umask: int, start_new_session: bool, process_group: int,
    ) -> None:  # fmt: skip
        pipes = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        environment = dict(os.environ if env is None else env)
        if not self._template.serves(args, environment):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, *pipes,
                restore_signals, gid, gids, uid, umask, start_new_session, process_group,
            )  # fmt: skip
            return
        standard = {k: k if fd == -1 else fd for k, fd in enumerate((p2cread, c2pwrite, errwrite))}
        try:
            fds = standard | {fd: fd for fd in pass_fds}
            self.pid = self._template.fork(
                fds, command=args[1:], environment=environment, folder=str(cwd or os.getcwd()),
                is_session=start_new_session,
            )  # fmt: skip
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True


Start = Callable[..., subprocess.Popen[Any]]


def install(template: Template) -> Start:
    """Let a template fork the children that `launch` starts. Returns the function that replaces Popen."""
    from banyan.runtime import launch

    start = partial(ForkedPopen, template=template)
    launch.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": start})  # type: ignore[assignment]
    return start


# ---- the template --------------------------------------------------------------------------------------------------


def main(fd: int) -> None:
    gc.disable()
    sys.path.pop(0)  # this folder
    import banyan.runtime.engine.process
    import banyan.runtime.gateway.process
    import banyan.runtime.server.worker  # noqa: F401

    gc.freeze()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch would take back its operators: 7,000 pages copied, 50 ms for each child
    run(serve(socket.socket(fileno=fd)))


def serve(orders: socket.socket) -> dict[str, Any]:
    """Fork a child for each order, until the socket is closed. Returns only in a child, with its order."""
    while True:
        data, fds, _, _ = socket.recv_fds(orders, _MAX_ORDER, 64)
        if not data:
            os._exit(0)
        numbers, number = os.pipe()
        go, gone = os.pipe()
        middle = os.fork()
        if not middle:
            if pid := os.fork():
                os.write(number, str(pid).encode())
                os._exit(0)
            os.close(gone)
            os.read(go, 1)  # until the parent has ended, as the code below asks for a signal at its end
            order: dict[str, Any] = json.loads(data)
            orders.detach()  # or its destructor closes this number, which `_become` may reuse
            _become(order, fds)
            return order
        os.waitpid(middle, 0)
        pid_bytes = os.read(numbers, 20)
        for one in (numbers, number, go, gone, *fds):
            os.close(one)
        orders.send(pid_bytes)


def _become(order: dict[str, Any], fds: list[int]) -> None:
    """Give this process the file descriptors, the session, the folder and the environment of its order."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH) for fd in fds]
    for target, fd in zip(order["targets"], high, strict=True):
        os.dup2(fd, target)
    _close_all_but({0, 1, 2, *order["targets"]})
    if order["is_session"]:
        os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])


def run(order: dict[str, Any]) -> NoReturn:
    """Run a command as an interpreter would, and exit. A process that is no engine gets a template for its children."""
    command = order["command"]
    if "--flight-fd" not in command:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            run(serve(_alone(theirs)))
        theirs.close()
        install(Template(ours))
    gc.enable()
    code: Any = 0
    try:
        _interpret(*command)
    except SystemExit as e:
        code = e.code
        if code is None or isinstance(code, str):
            code = 1 if code and print(code, file=sys.stderr) is None else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _interpret(first: str, *rest: str) -> None:
    """Run a module or a script, as an interpreter does with these arguments."""
    if first == "-m":
        sys.argv[:] = (first, *rest[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = (first, *rest)
        sys.path.insert(0, os.path.dirname(first))
        runpy.run_path(first, run_name="__main__")


def _alone(orders: socket.socket) -> socket.socket:
    """Close all other file descriptors that this process inherited, so that it keeps no pipe open. Returns `orders`."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    _close_all_but({0, 1, 2, orders.fileno()})
    return orders


def _close_all_but(fds: set[int]) -> None:
    kept = sorted(fds)
    for low, high in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)


if __name__ == "__main__":
    main(int(sys.argv[1]))
