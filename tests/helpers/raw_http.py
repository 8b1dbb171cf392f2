"""HTTP over a plain socket, for requests that no client library would send."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit


def connect(url: str, timeout: float = 30.0) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout)


def encode(path: str, body: Any, headers: str = "", method: str = "POST") -> bytes:
    """The bytes of a request. body: bytes, or an object that is encoded as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n{headers}\r\n".encode() + data
    )


def exchange(url: str, data: bytes, timeout: float = 30.0) -> bytes:
    """Send `data`, and return all bytes until the server closes the connection; b"" if the connection is reset."""
    with connect(url, timeout) as sock:
        try:
            sock.sendall(data)
            found = b""
            while chunk := sock.recv(1 << 16):
                found += chunk
        except ConnectionError:
            return b""
        return found


def status(answer: bytes) -> int:
    """The status of a response; 0: there is none."""
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[0] == b"HTTP/1.1" else 0


def post(url: str, path: str, body: Any, headers: str = "", method: str = "POST") -> tuple[int, bytes]:
    """Send a request. Returns (status, body)."""
    answer = exchange(url, encode(path, body, f"{headers}connection: close\r\n", method))
    return status(answer), answer.partition(b"\r\n\r\n")[2]
