"""Encrypted tcp:// sockets for clients and engines on other machines, with CURVE.

The server has a key pair (`banyan keys DIR`), whose public key its peers must know. Clients are identified by the
access token that they send encrypted, and engine hosts by their own key pairs, whose public keys the server knows. In
all other respects, the sockets are like those of ipc.py.
"""

from __future__ import annotations

import os
import re
import socket as sockets
from pathlib import Path

import zmq
import zmq.auth

from banyan.runtime.config import SERVER_KEY, read_private, read_text, tcp, token_lines
from banyan.runtime.errors import ConfigError, ConnectFailed
from banyan.runtime.protocol import ipc

NAME = "server"
_KEY_LENGTH = 40  # characters of a key in Z85 encoding
_HEARTBEAT_MS = 1000  # heartbeats of libzmq, which detect a cable that was cut
_TIMEOUT_MS = 5000  # a connection without a heartbeat for this time is closed


def make_keys(folder: Path, name: str = NAME) -> tuple[Path, Path]:
    """Write a public and a secret key into a directory of mode 0700. Returns the two paths. ConfigError: the directory
    already contains keys of this name."""
    if not re.fullmatch(r"[\w.-]{1,64}", name):
        raise ConfigError(f"a name must have 1 to 64 letters, digits and ._-, but it is {name[:200]!r}")
    ipc.private_directory(folder)
    if (existing := folder / f"{name}.key_secret").exists():
        raise ConfigError(
            f"{existing} exists already; clients that use it could not connect with a new key; choose another directory"
        )
    old_umask = os.umask(0o077)
    try:
        public, secret = zmq.auth.create_certificates(folder, name)
        while zmq.auth.load_certificate(public)[0].startswith(b"-"):  # 1 in 85: `--server-key KEY` would be a flag
            public, secret = zmq.auth.create_certificates(folder, name)
    finally:
        os.umask(old_umask)
    return Path(public), Path(secret)


def read_keys(path: Path) -> tuple[bytes, bytes]:
    """(public, secret) of a server or an engine host, from the file with the secret key. ConfigError: the file cannot
    be read, or other users may read it."""
    read_private(path, "curve_key")
    try:
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as e:
        raise ConfigError(f"curve_key {path} cannot be read: {getattr(e, 'strerror', None) or e}") from e
    if secret is None:
        raise ConfigError(
            f"{path} has no secret key; secret keys are in files NAME.key_secret, such as {NAME}.key_secret"
        )
    return public, secret


def public_key(text: str) -> bytes:
    """A server's public key. text: the key itself, 40 characters, or the path of a file that contains it. ConfigError:
    `text` is neither, or is ""."""
    if not text:
        raise ConfigError(f"tcp:// needs the server's public key: give server_key, or set {SERVER_KEY}")
    if len(text) == _KEY_LENGTH and not Path(text).exists():
        return text.encode("ascii", "replace")
    try:
        return zmq.auth.load_certificate(Path(text))[0]
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise ConfigError(
            f"server_key is neither a key of {_KEY_LENGTH} characters nor a file with one: {text} ({why})"
        ) from e


def known_keys(path: Path) -> dict[bytes, str]:
    """Public key -> name, from a file with a line NAME KEY for each engine host. ConfigError: the file cannot be
    read."""
    lines = [words for _, words in token_lines(read_text(path, "engine_keys"))]
    if bad := next((words for words in lines if len(words) != 2 or len(words[1]) != _KEY_LENGTH), None):
        raise ConfigError(
            f"engine_keys {path}: {' '.join(bad)[:80]!r} is not a line NAME KEY; `banyan keys` prints such a line"
        )
    return {key.encode(): name for name, key in lines}


def listen(context: ipc.Context, address: str, keys: Path, max_message: int, option: str = "bind") -> ipc.Socket:
    """A ROUTER bound to tcp://HOST:PORT that accepts encrypted connections only. keys: the file with the server's
    secret key. option: the name of the option that gives the address, for the error. ConfigError: the server cannot
    listen there."""
    public, secret = read_keys(keys)
    router = ipc.router(context, max_message)
    router.curve_publickey, router.curve_secretkey, router.curve_server = public, secret, True
    _set_heartbeat(router)
    try:
        router.bind(address)
    except zmq.ZMQError as e:
        raise ConfigError(f"{option}: cannot listen at {address}: {e.strerror}") from e
    return router


def connect(context: ipc.Context, address: str, server_key: str, timeout: float) -> tuple[ipc.Socket, ipc.Socket]:
    """Like `ipc.connect`, for tcp://HOST:PORT. ConnectFailed is also raised if the key is missing or invalid."""
    try:
        public_key(server_key)  # a wrong key is an error, whether somebody listens or not
        sockets.create_connection(tcp(address), timeout).close()
        return open_connection(context, address, server_key)
    except ConfigError as e:
        raise ConnectFailed(f"{address}: {e.message}") from e
    except (OSError, UnicodeError) as e:  # UnicodeError: the host cannot be a name
        raise ConnectFailed(f"nobody listens at {address}: {getattr(e, 'strerror', None) or e}") from e


def open_connection(
    context: ipc.Context, address: str, server_key: str, keys: tuple[bytes, bytes] | None = None, events: int = 0
) -> tuple[ipc.Socket, ipc.Socket]:
    """Returns a DEALER for the server at `address`, and its monitor. Does not wait for the server: libzmq connects as
    soon as the server listens. server_key: see `public_key`. keys: (public, secret) of this process, if the server
    identifies peers by their keys. events: the libzmq events that the monitor reports; 0: those of `ipc.watch`.
    ConfigError: the key is invalid."""
    key = public_key(server_key)
    dealer = ipc.dealer(context)
    dealer.curve_publickey, dealer.curve_secretkey = keys or zmq.curve_keypair()
    try:
        dealer.curve_serverkey = key
    except zmq.ZMQError as e:
        dealer.close(0)
        raise ConfigError(f"server_key is not a key: {server_key}") from e
    _set_heartbeat(dealer)
    monitor = dealer.get_monitor_socket(events) if events else ipc.watch(dealer)
    dealer.connect(address)
    return dealer, monitor


def own_address(address: str) -> str:
    """The address of this machine on the network through which it reaches tcp://HOST:PORT. No packet is sent."""
    family, _, _, _, to = sockets.getaddrinfo(*tcp(address), type=sockets.SOCK_DGRAM)[0]
    with sockets.socket(family, sockets.SOCK_DGRAM) as socket:
        socket.connect(to)
        own: str = socket.getsockname()[0]
    return f"[{own}]" if ":" in own else own


def _set_heartbeat(socket: ipc.Socket) -> None:
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _TIMEOUT_MS)
