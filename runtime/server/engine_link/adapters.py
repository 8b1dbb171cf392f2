"""The adapters that gens can name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from banyan.runtime.config import check_adapter_name
from banyan.runtime.errors import BadProgram, ConfigError

MAX_ADAPTERS = 1024
"""The most adapters that may have a name at the same time."""


class NamedAdapter(NamedTuple):
    """An adapter with a name. directory: where the engine reads the adapter. digest: identifies the adapter in a Run
    and in root keys."""

    directory: str
    digest: bytes


class AdapterNames:
    """The server's adapters by name. Every tenant may use them."""

    def __init__(self) -> None:
        self._adapters: dict[str, NamedAdapter] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._adapters)

    @property
    def digests(self) -> set[bytes]:
        """The digests of all adapters that have a name."""
        return {one.digest for one in self._adapters.values()}

    def digest(self, name: str) -> bytes:
        """The digest of the adapter `name`; b"" if `name` is "". BadProgram: there is no such adapter."""
        return self._find(name).digest if name else b""

    def _find(self, name: str) -> NamedAdapter:
        if name not in self._adapters:
            there = f"the adapters are {', '.join(self._adapters)}" if self._adapters else (
                "this server has none; start it with --adapter NAME=DIR, or call load_adapter(name, directory)"
            )  # fmt: skip
            raise BadProgram(f"there is no adapter {name!r}; {there}")
        return self._adapters[name]

    def check_new(self, name: str) -> None:
        """Check the name of a new adapter. ConfigError: the name is invalid or taken, or MAX_ADAPTERS adapters have
        names."""
        check_adapter_name(name)
        if len(self._adapters) == MAX_ADAPTERS:
            raise ConfigError(f"there are already {MAX_ADAPTERS} adapters, the most that are allowed; unload one first")
        if name in self._adapters:
            raise ConfigError(f"there is an adapter {name!r} already; unload it first")

    def add(self, name: str, directory: str, digest: bytes) -> None:
        self._adapters[name] = NamedAdapter(directory, digest)

    def remove(self, name: str) -> bytes:
        """Remove the name of an adapter. Returns the adapter's digest if it has no other name, else b"". BadProgram:
        there is no adapter of this name."""
        digest = self._find(name).digest
        del self._adapters[name]
        return b"" if digest in self.digests else digest

    def directory(self, name: str) -> str:
        return self._adapters[name].directory
