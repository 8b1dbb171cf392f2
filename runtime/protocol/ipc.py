"""Sockets and their limits: who may listen where, who may come in, and how much is taken from whom.

A server listens with one ROUTER on ipc://<path>; each client has one DEALER; an engine hangs on a PAIR. The directory
of the path is the lock on the door: mode 0700, owned by this user. libzmq refuses peers of another user besides
(IPC_FILTER_UID), and drops a peer whose message is larger than `max_message`.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import socket as sockets
import stat
from pathlib import Path

import zmq

from banyan.runtime.errors import ConfigError, ConnectFailed

HEARTBEAT = 1.0
"""Seconds between two Pings of a client."""
MISSED = 5
"""So many Pings without a sign of the server, and the client calls it lost."""
SILENT = 30
"""A server forgets a client that was silent for so many heartbeats. Its death is seen at once, by the socket."""

_RECEIVE_LIMIT = 64  # messages of one client that wait for the server; beyond it they wait with the client
_SEND_LIMIT = 100_000  # messages that wait for one client who does not read; beyond it the client is dropped
_PATH_LIMIT = 107  # bytes of a Unix socket's address, without its end


def address(path: Path) -> str:
    """The ZeroMQ address of a socket path. ConfigError if the path is longer than Linux takes."""
    if len(os.fsencode(path)) > _PATH_LIMIT:
        raise ConfigError(f"the socket's path is too long for Linux ({_PATH_LIMIT} bytes): {path}")
    return f"ipc://{path}"


def private_directory(path: Path) -> None:
    """Make `path` with mode 0700, or check that it is such: ConfigError says whose it is, or who else may enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.getuid():
        raise ConfigError(f"{path} belongs to user {status.st_uid}; put the socket in a directory of your own")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"others may enter {path} (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"put the socket in a directory of its own, or run `chmod 700 {path}`"
        )


class Lock:
    """The right to listen at a path, for as long as this process lives: an flock beside the socket.

    The kernel drops it with the process, however that ends; so a path that is locked has a living server.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise _taken(path) from None

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _taken(path: Path) -> ConfigError:
    return ConfigError(f"a server already listens at {path}; join it with connect(), or choose another socket")


def _knock(path: Path) -> None:
    """Open and close a plain connection: OSError says why nobody answers."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as s:
        s.settimeout(5.0)
        s.connect(str(path))


def listen(context: zmq.Context[zmq.Socket[bytes]], path: Path, max_message: int) -> tuple[zmq.Socket[bytes], Lock]:
    """A ROUTER bound to `path`, and the lock that keeps others away from it.

    The socket file of a dead server is replaced. ConfigError: a living server is there, or the place is not safe.
    """
    where = address(path)
    private_directory(path.parent)
    lock = Lock(path)
    try:
        if path.exists():
            if not stat.S_ISSOCK(path.stat().st_mode):
                raise ConfigError(f"{path} is a file, not a socket; choose another path for the socket")
            with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
                _knock(path)
                raise _taken(path)
            path.unlink(missing_ok=True)
    except BaseException:
        lock.release()
        raise
    for left in path.parent.glob(f"{glob.escape(path.name)}.[ec]-??????"):  # of a server that was killed
        left.unlink(missing_ok=True)
    door = router(context, max_message)
    door.bind(where)
    return door, lock


def router(context: zmq.Context[zmq.Socket[bytes]], max_message: int) -> zmq.Socket[bytes]:
    """A ROUTER with a server's limits, not bound yet."""
    s = _socket(context, zmq.ROUTER)
    s.setsockopt(zmq.MAXMSGSIZE, max_message)
    s.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a send to a vanished client is an error, not silence
    s.setsockopt(zmq.SNDHWM, _SEND_LIMIT)
    s.setsockopt(zmq.RCVHWM, _RECEIVE_LIMIT)
    return s


def dealer(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """A DEALER as clients have it, not connected yet."""
    s = _socket(context, zmq.DEALER)
    s.setsockopt(zmq.RECONNECT_IVL, -1)  # a server that comes back knows nothing of us: it is another one
    s.setsockopt(zmq.SNDHWM, 0)  # what the user submits waits in the user's memory
    return s


def reach(context: zmq.Context[zmq.Socket[bytes]], path: Path) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """A DEALER connected to the server at `path`, and its monitor. ConnectFailed says what is wrong and what to do."""
    try:
        _knock(path)
    except FileNotFoundError:
        raise ConnectFailed(
            f"there is no socket at {path}; start a server with `banyan serve --socket {path}`, or run without one"
        ) from None
    except ConnectionRefusedError as e:
        if stat.S_ISSOCK(path.stat().st_mode):
            raise ConnectFailed(f"the server of {path} is gone; start it again, or run without one") from e
        raise ConnectFailed(f"{path} is a file, not a socket") from e
    except PermissionError as e:
        raise ConnectFailed(f"{path} belongs to another user; only who started a server may use it") from e
    except OSError as e:
        raise ConnectFailed(f"cannot open {path}: {e.strerror or e}") from e
    ours = dealer(context)
    monitor = watch(ours)
    ours.connect(address(path))
    return ours, monitor


def beside(path: Path, kind: str) -> Path:
    """A path, never used before, for the socket of a child of the server at `path`: "e", an engine; "c", who tries
    constraints. A child of a server that was killed may look for its own for a while yet; where it found a PAIR of
    the next server, that would take nobody else, not even when it is gone (libzmq 4.3).
    """
    return path.with_name(f"{path.name}.{kind}-{secrets.token_hex(3)}")


def pair(context: zmq.Context[zmq.Socket[bytes]], path: Path) -> zmq.Socket[bytes]:
    """A PAIR bound to `path`, for one engine."""
    s = _socket(context, zmq.PAIR)
    s.setsockopt(zmq.SNDHWM, 0)  # an engine that is still loading takes nothing yet; orders wait here
    s.setsockopt(zmq.RCVHWM, 0)
    s.bind(address(path))
    return s


def watch(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """A socket that turns readable each time a connection of `socket` breaks. Call before connect or bind."""
    return socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)


def drain(monitor: zmq.Socket[bytes]) -> bool:
    """Read all events of a `watch`; True if there was one."""
    seen = False
    with contextlib.suppress(zmq.Again):
        while True:
            monitor.recv_multipart(zmq.NOBLOCK)
            seen = True
    return seen


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    s = context.socket(kind)
    s.setsockopt(zmq.LINGER, 0)
    if kind != zmq.DEALER:
        s.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
    return s
