"""Local ZeroMQ sockets, and their limits.

A server listens with one ROUTER on ipc://<path>, each client has one DEALER, and an engine is connected by a PAIR. Only
the user who started the server can connect: the directory has mode 0700, and libzmq rejects peers of other users. It
also disconnects a peer whose message is larger than `max_message`.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import socket as sockets
import stat
import struct
from pathlib import Path

import zmq

from banyan.runtime.errors import ConfigError, ConnectFailed

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

HEARTBEAT = 1.0
"""Seconds between two Pings."""
MAX_MISSED = 5
"""How many Pings in a row the server may leave unanswered before the client considers the server lost."""
MAX_SILENT = 30
"""After this many heartbeats without a message, the server forgets a client. (The server notices the death of a
client's process immediately.)"""

_RECEIVE_LIMIT = 64  # most unread messages of one client in the server; further ones wait in the client
_SEND_LIMIT = 100_000  # messages queued for a client that does not read; then it is disconnected
_EVENT = struct.Struct("=Hi")  # an event of a `watch` socket: its kind and its value
_PATH_LIMIT = 107  # bytes of a Unix socket's path, without the final NUL


def address(path: Path) -> str:
    """The ZeroMQ address of a socket. ConfigError: the path is longer than Linux allows."""
    if len(os.fsencode(path)) > _PATH_LIMIT:
        raise ConfigError(f"the socket's path is too long for Linux ({_PATH_LIMIT} bytes): {path}")
    return f"ipc://{path}"


def private_directory(path: Path) -> None:
    """Create `path` and its missing parents with mode 0700. If `path` exists, check that only its owner, this user, can
    access it. ConfigError: it belongs to another user, others can access it, or it cannot be created."""
    try:
        for folder in (*reversed(path.parents), path):  # `parents=True` would give the parents the usual mode
            folder.mkdir(mode=0o700, exist_ok=True)
        status = path.stat()
    except OSError as e:
        raise ConfigError(f"the directory {path} cannot be created: {e.strerror}") from e
    if status.st_uid != os.getuid():
        raise ConfigError(f"{path} belongs to user {status.st_uid}; choose a directory of your own")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"other users may enter {path} (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"choose a new directory, or run `chmod 700 {path}`"
        )


class Lock:
    """An flock on a file beside a socket. The process that holds it may listen at the socket. The kernel releases the
    lock when that process ends in any way."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise _in_use(path) from None

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _in_use(path: Path) -> ConfigError:
    return ConfigError(f"a server already listens at {path}; join it with connect(), or choose another socket")


def _probe(path: Path) -> None:
    """Open and close a plain connection to a socket. Raises OSError, which says why, if nobody answers."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as s:
        s.settimeout(5.0)
        s.connect(str(path))


def listen(context: Context, path: Path, max_message: int) -> tuple[Socket, Lock]:
    """A ROUTER bound to `path`, and the lock of the path. The socket file of a dead server is replaced. ConfigError: a
    server listens there, or other users can access the path."""
    where = address(path)
    private_directory(path.parent)
    lock = Lock(path)
    try:
        if path.exists():
            if not stat.S_ISSOCK(path.stat().st_mode):
                raise ConfigError(f"{path} is a file, not a socket; choose another path for the socket")
            with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
                _probe(path)
                raise _in_use(path)
            path.unlink(missing_ok=True)
    except BaseException:
        lock.release()
        raise
    for stale in path.parent.glob(f"{glob.escape(path.name)}.[ec]-??????"):  # left by a server that was killed
        stale.unlink(missing_ok=True)
    socket = router(context, max_message)
    socket.bind(where)
    return socket, lock


def router(context: Context, max_message: int) -> Socket:
    """A ROUTER socket for a server, not bound yet. max_message: maximum number of bytes of a message. The socket also
    limits how many messages are queued for each client, and from each client."""
    s = _socket(context, zmq.ROUTER)
    s.setsockopt(zmq.MAXMSGSIZE, max_message)
    s.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a client that is gone is an error
    s.setsockopt(zmq.SNDHWM, _SEND_LIMIT)
    s.setsockopt(zmq.RCVHWM, _RECEIVE_LIMIT)
    return s


def dealer(context: Context) -> Socket:
    """A client's DEALER, not connected yet. It never reconnects: a restarted server does not know the old client."""
    s = _socket(context, zmq.DEALER)
    s.setsockopt(zmq.RECONNECT_IVL, -1)
    s.setsockopt(zmq.SNDHWM, 0)  # unlimited: submitted programs wait in the user's memory
    return s


def connect(context: Context, path: Path) -> tuple[Socket, Socket]:
    """A DEALER connected to the server at `path`, and its `watch` socket. ConnectFailed: the server cannot be reached;
    the message says what to do."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConnectFailed(f"{path} is a file, not a socket")
        _probe(path)
    except FileNotFoundError:
        raise ConnectFailed(
            f"there is no socket at {path}; start a server with `banyan serve --socket {path}`, or run without one"
        ) from None
    except ConnectionRefusedError as e:
        raise ConnectFailed(f"the server of {path} is gone; start it again, or run without one") from e
    except PermissionError as e:
        raise ConnectFailed(f"{path} belongs to another user; only the user who started a server may use it") from e
    except (OSError, ValueError) as e:  # ValueError: a null byte
        raise ConnectFailed(f"cannot open {path}: {getattr(e, 'strerror', None) or e}") from e
    socket = dealer(context)
    monitor = watch(socket)
    socket.connect(address(path))
    return socket, monitor


def child_path(path: Path, kind: str) -> Path:
    """A new path beside the server's socket, for the socket of a child process. kind: "e" engine, "c" preflight. The
    path is random, because the child of a killed server could connect to a PAIR at the same path, which would then
    accept no other peer (libzmq 4.3)."""
    return path.with_name(f"{path.name}.{kind}-{secrets.token_hex(3)}")


def pair(context: Context, path: Path) -> Socket:
    """A PAIR bound to `path`, for one child process."""
    s = _socket(context, zmq.PAIR)
    s.setsockopt(zmq.SNDHWM, 0)  # unlimited: commands wait here while the engine is loading
    s.setsockopt(zmq.RCVHWM, 0)
    s.bind(address(path))
    return s


def watch(socket: Socket) -> Socket:
    """A socket that becomes readable when `socket` has connected, and when one of its connections breaks. Call this
    function before connect or bind."""
    return socket.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)


def connected(monitor: Socket) -> tuple[int, int]:
    """Returns (file descriptor, inode) of a DEALER's connection, or (-1, 0) if the connection has broken already.
    monitor: the DEALER's `watch` socket, of which the first event is read."""
    number = _EVENT.unpack(monitor.recv_multipart()[0])[1]
    try:
        return number, os.fstat(number).st_ino
    except OSError:
        return -1, 0


def close_in_fork(connection: tuple[int, int]) -> None:
    """Close a file descriptor that a forked child has inherited, so that the server notices when the parent ends: a
    connection breaks once all copies of its file descriptor are closed. connection: the result of `connected`. Nothing
    is closed if the inode shows that the number belongs to another file by now."""
    number, inode = connection
    with contextlib.suppress(OSError):
        if os.fstat(number).st_ino == inode:
            os.close(number)


def drain(monitor: Socket) -> bool:
    """Read all events of a `watch` socket. Returns whether there was an event."""
    seen = False
    with contextlib.suppress(zmq.Again):
        while True:
            monitor.recv_multipart(zmq.NOBLOCK)
            seen = True
    return seen


def _socket(context: Context, kind: int) -> Socket:
    s = context.socket(kind)
    s.setsockopt(zmq.LINGER, 0)
    if kind != zmq.DEALER:
        s.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
    return s
