"""API keys: a file says who may use the HTTP interface. Each name in the file is a tenant of the server."""

from __future__ import annotations

import hmac
import ipaddress
import sys
import time
from collections.abc import Collection, Mapping
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlsplit

from banyan.runtime.config import MAX_KEY, api_keys
from banyan.runtime.errors import ConfigError
from banyan.runtime.gateway.errors import HTTPError

CHECK_SECONDS = 1.0
"""A file of keys is looked at for changes at most once in this time."""


class Keys:
    """The API keys of a file, which is read again after it has changed. Each of its lines is NAME:KEY, and a name may
    have several keys. Only digests of the keys are kept in memory."""

    def __init__(self, path: Path | None = None) -> None:
        """path: the file; None: the server needs no keys. ConfigError: the file is invalid."""
        self._path = path
        self._names: dict[bytes, str] = {}  # digest of a key -> the name on its line
        if path is not None:
            self._stamp, self._checked = _stamp(path), time.monotonic()
            self._names = _read(path)

    def identify(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the tenant whose API key is in the headers; "": the server needs no keys. HTTPError: the key is
        missing or wrong."""
        if self._path is None:
            return ""
        self._update(self._path)
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer":
            given = headers.get(b"x-api-key", b"")
        digest, found = _digest(given.strip()), ""
        for known, name in self._names.items():  # does not stop at the matching key, so that the time is constant
            if hmac.compare_digest(digest, known):
                found = name
        if not found:
            text = "the API key is wrong" if given else "this server needs an API key: Authorization: Bearer KEY"
            raise HTTPError(401, text, code="invalid_api_key")
        return found

    def _update(self, path: Path) -> None:
        """Read the file if it has changed. If it is invalid now, the keys stay as they are, and stderr says why."""
        if (now := time.monotonic()) - self._checked < CHECK_SECONDS:
            return
        self._checked = now
        if (stamp := _stamp(path)) != self._stamp:
            self._stamp = stamp
            try:
                self._names = _read(path)
            except ConfigError as e:
                print(f"banyan: the API keys stay as they are: {e}", file=sys.stderr, flush=True)


def _read(path: Path) -> dict[bytes, str]:
    return {_digest(key.encode()): name for key, name in api_keys(path).items()}


def check_site(headers: Mapping[bytes, bytes], origins: Collection[str]) -> None:
    """Refuse a request that a browser sends for a page of another site. Raises HTTPError. Called if there are no keys.

    The header Host is checked because pages of a site that points its own name at this machine (DNS rebinding) have the
    same origin as this server, and could read the responses. The header Origin is checked because any page may send a
    POST, although it cannot read the response. origins: the sites whose pages may send requests.
    """
    host = headers.get(b"host", b"").decode("latin-1")
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if host and name != "localhost" and not name.endswith(".localhost"):
            ipaddress.ip_address(name)
    except ValueError:
        why = f"without API keys, requests to {host[:200]!r} are refused; use 127.0.0.1, or API keys"
        raise HTTPError(403, why) from None
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin and origin.partition("://")[2] != host and not {origin, "*"} & set(origins):
        raise HTTPError(403, f"pages of {origin[:200]!r} may not call this server; --http-cors allows it")


def _stamp(path: Path) -> tuple[int, ...]:
    """What differs after a file was written, replaced or had its mode changed; (): it is not there."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(key: bytes) -> bytes:
    return blake2b(key[: MAX_KEY + 1], digest_size=32, person=b"banyan api key").digest()
