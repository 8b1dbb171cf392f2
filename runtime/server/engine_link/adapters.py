"""The adapters that gens can name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from banyan.runtime.config import check_adapter_name
from banyan.runtime.errors import BadProgram, ConfigError


class NamedAdapter(NamedTuple):
    """directory: where the engine reads it. digest: names it in a Run, and in root keys."""

    directory: str
    digest: bytes


class AdapterNames:
    """Name -> adapter. They are those of the server: every tenant may use them."""

    def __init__(self) -> None:
        self._known: dict[str, NamedAdapter] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def digest(self, name: str) -> bytes:
        """The digest of an adapter; b"" for "". BadProgram: there is no such adapter."""
        if not name:
            return b""
        if name not in self._known:
            there = f"there are {', '.join(self._known)}" if self._known else (
                "this server has none; start it with --adapter NAME=DIR, or call load_adapter(name, directory)"
            )  # fmt: skip
            raise BadProgram(f"there is no adapter {name!r}; {there}")
        return self._known[name].digest

    def check_new(self, name: str) -> None:
        """ConfigError: the name is invalid, or taken."""
        check_adapter_name(name)
        if name in self._known:
            raise ConfigError(f"there is an adapter {name!r} already; unload it first")

    def add(self, name: str, directory: str, digest: bytes) -> None:
        self._known[name] = NamedAdapter(directory, digest)

    def remove(self, name: str) -> bytes:
        """The digest of the adapter, which this name does not stand for any more; b"": another name does. BadProgram:
        there is no such adapter."""
        digest = self.digest(name)
        del self._known[name]
        return b"" if any(other.digest == digest for other in self._known.values()) else digest

    def directory(self, name: str) -> str:
        return self._known[name].directory
