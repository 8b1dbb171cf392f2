"""tcp:// for clients on other machines: encrypted by CURVE, or not at all.

The server has a pair of keys (`banyan keys DIR`); who wants to join has to know the public one, so that nobody else can
answer in the server's place. Who the client is says its token, inside the encryption; its own keys are made for one
connection. The sockets are those of ipc.py otherwise.
"""

from __future__ import annotations

import os
import socket as sockets
import stat
from pathlib import Path

import zmq
import zmq.auth

from banyan.runtime.config import SERVER_KEY, tcp
from banyan.runtime.errors import ConfigError, ConnectFailed
from banyan.runtime.protocol import ipc

NAME = "server"
_Z85 = 40  # characters of a key, as text
_BEAT = 1000  # ms between two signs of life on a connection, for cables that are cut
_GONE = 5000  # ms without one, after which the other side is gone


def make_keys(folder: Path) -> tuple[Path, Path]:
    """Files with a public and a secret key, in a directory of mode 0700. ConfigError: there are keys already."""
    ipc.private_directory(folder)
    if (there := folder / f"{NAME}.key_secret").exists():
        raise ConfigError(
            f"{there} is there already; whoever joins by it would be locked out. Choose another directory"
        )
    before = os.umask(0o077)
    try:
        public, secret = zmq.auth.create_certificates(folder, NAME)
        while zmq.auth.load_certificate(public)[0].startswith(b"-"):  # one of 85: as `--server-key KEY` it is a flag
            public, secret = zmq.auth.create_certificates(folder, NAME)
    finally:
        os.umask(before)
    return Path(public), Path(secret)


def read_keys(path: Path) -> tuple[bytes, bytes]:
    """(public, secret) of a server, from the file with the secret one. ConfigError: it is none, or others may read."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"others may read the secret key in {path}; run `chmod 600 {path}`")
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as e:
        if isinstance(e, ConfigError):
            raise
        raise ConfigError(f"curve_key {path} cannot be read: {getattr(e, 'strerror', None) or e}") from e
    if secret is None:
        raise ConfigError(f"{path} holds no secret key; the server's is in {NAME}.key_secret")
    return public, secret


def public_key(text: str) -> bytes:
    """A server's public key, as 40 characters or as the file that holds it. ConfigError: it is neither."""
    if len(text) == _Z85 and not Path(text).exists():
        return text.encode("ascii", "replace")
    try:
        return zmq.auth.load_certificate(Path(text))[0]
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise ConfigError(
            f"server_key is neither a key of {_Z85} characters nor a file with one: {text} ({why})"
        ) from e


def listen(context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Path, max_message: int) -> zmq.Socket[bytes]:
    """A ROUTER bound to tcp://HOST:PORT that takes nobody without encryption. ConfigError: it cannot be."""
    public, secret = read_keys(keys)
    router = ipc.router(context, max_message)
    router.curve_publickey, router.curve_secretkey, router.curve_server = public, secret, True
    _keep_alive(router)
    try:
        router.bind(address)
    except zmq.ZMQError as e:
        raise ConfigError(f"bind: cannot listen at {address}: {e.strerror}") from e
    return router


def reach(
    context: zmq.Context[zmq.Socket[bytes]], address: str, server_key: str, timeout: float
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """As ipc.reach, for the server at tcp://HOST:PORT. ConnectFailed also where the key is lacking or none."""
    try:
        host, port = tcp(address)
        if not server_key:
            raise ConfigError(f"it wants the server's public key: connect(..., server_key=...), or {SERVER_KEY}")
        key = public_key(server_key)
        sockets.create_connection((host, port), timeout).close()
    except ConfigError as e:
        raise ConnectFailed(f"{address}: {e.message}") from e
    except OSError as e:
        raise ConnectFailed(f"nobody listens at {address}: {e.strerror or e}") from e
    dealer = ipc.dealer(context)
    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    try:
        dealer.curve_serverkey = key
    except zmq.ZMQError as e:
        dealer.close(0)
        raise ConnectFailed(f"{address}: server_key is no key: {server_key}") from e
    _keep_alive(dealer)
    monitor = ipc.watch(dealer)
    dealer.connect(address)
    return dealer, monitor


def _keep_alive(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _BEAT)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _GONE)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _GONE)
