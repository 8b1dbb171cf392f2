"""HTTP bodies that carry the messages of the socket: each message follows its length, 4 bytes in little-endian
order."""

from __future__ import annotations

from collections.abc import Iterable

from banyan.runtime.errors import BadMessage

SCHEMES = ("http://", "https://")
PATH = "/v1/programs"
KIND = "application/x-banyan"
"""The content type of such a body."""
SESSION = "x-banyan-session"
"""The header of the response to POST PATH that holds the session id: further messages go to PATH/SESSION."""
MAX_BODY = 32 << 20
"""Maximum number of bytes of a request's body that the HTTP server reads."""
MAX_MESSAGE = MAX_BODY - 4
_LENGTH = 4


def server_url(url: str) -> str:
    """The URL of a server, to which PATH is appended. Removes the /v1 that clients of OpenAI's API write."""
    return url.rstrip("/").removesuffix("/v1")


def pack(messages: Iterable[bytes]) -> bytes:
    """Returns an HTTP body that carries these messages."""
    return b"".join(part for data in messages for part in (len(data).to_bytes(_LENGTH, "little"), data))


def take(buffer: bytearray) -> list[bytes]:
    """Remove all whole messages from the front of `buffer`, the part of an HTTP body that has arrived. Returns these
    messages."""
    found: list[bytes] = []
    at = 0
    while (start := at + _LENGTH) <= len(buffer):
        end = start + int.from_bytes(buffer[at:start], "little")
        if end > len(buffer):
            break
        found.append(bytes(buffer[start:end]))
        at = end
    del buffer[:at]
    return found


def unpack(body: bytes) -> list[bytes]:
    """Returns the messages that an HTTP body carries. BadMessage: the body ends in the middle of a message."""
    buffer = bytearray(body)
    found = take(buffer)
    if buffer:
        raise BadMessage(f"the last {len(buffer)} bytes of the body are not a whole message")
    return found
