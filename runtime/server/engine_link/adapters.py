"""The adapters that gens can name, and those that the engines have loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from banyan.runtime.config import check_adapter_name
from banyan.runtime.errors import BadProgram, BanyanError, ConfigError
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.replica_process import ReplicaProcess

MAX_ADAPTERS = 1024
"""Maximum number of adapters that may have a name at the same time."""


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
            raise ConfigError(f"there are already {MAX_ADAPTERS} adapters, which is the maximum; unload one first")
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


class EngineAdapters:
    """Has the engines load and unload adapters, so that each engine has all that have a name.

    names: the adapters that have a name. ask: asks engines a question of the server's own. loads: returns, for each
    adapter that is being loaded, (its name, the names of the engines that have not loaded it yet). refuse(engine, why):
    ends an engine that cannot do what the others do. log: prints a line.
    """

    def __init__(
        self,
        names: AdapterNames,
        engines: Iterable[ReplicaProcess],
        ask: Callable[[wire.Ask, Sequence[ReplicaProcess]], None],
        loads: Callable[[], list[tuple[str, set[str]]]],
        refuse: Callable[[ReplicaProcess, str], None],
        log: Callable[[str], None],
    ) -> None:
        self._names, self._engines, self._ask, self._loads = names, engines, ask, loads
        self._refuse, self._log = refuse, log
        self._unnamed: set[bytes] = set()  # adapters to unload once no load is open: a load may name one of them

    def reload(self, engine: ReplicaProcess) -> None:
        """Have a new engine load the adapters. Called before requests are sent to it."""
        for name in self._names:
            self._ask(wire.Ask(0, "load_adapter", name=name, path=self._names.directory(name)), [engine])

    def remove(self, name: str) -> bytes:
        """Remove the name of an adapter. Returns the digest of the adapter if the engines can unload it now, else b"".
        BadProgram: there is no adapter of this name."""
        digest = self._names.remove(name)
        if self._loads():
            self._unnamed.add(digest)
            return b""
        return digest

    def unload_unnamed(self, dead: str = "") -> None:
        """Have the engines unload the loaded adapters that have no name. Does nothing while an adapter is being loaded,
        because it may be one of them and get a name. dead: the name of an engine that has died or is replaced; it is
        not asked."""
        if self._loads():
            return
        engines = [engine for engine in self._engines if engine.name != dead]
        digests, self._unnamed = self._unnamed - self._names.digests, set()
        for digest in digests - {b""}:
            self._ask(wire.Ask(0, "unload_adapter", name=digest.hex()), engines)

    def loaded(self, ask: wire.Ask, answers: Mapping[str, wire.Answer], is_ours: bool) -> tuple[bool, bytes]:
        """Handle the answers of all engines to "load_adapter". If all have loaded the same files, the adapter gets the
        name ask.name. answers: engine -> its answer. is_ours: the server asked, and had one engine load a known adapter
        again. Returns `ok` and `body` of the answer to the client."""
        before = self._names.digest(ask.name) if ask.name in self._names else b""
        digests = {one: bytes.fromhex(msgspec.json.decode(its.body)) for one, its in answers.items() if its.ok}
        ok, body = self._named(ask, answers, digests, is_ours)
        self._unnamed |= set(digests.values())  # those that got a name are kept
        if ok and self._names.digest(ask.name) != before:  # other engines died meanwhile, or loaded older files
            for engine in self._engines:
                if engine.name not in answers:
                    self._ask(ask, [engine])
        self.unload_unnamed()
        return ok, body

    def _named(
        self, ask: wire.Ask, answers: Mapping[str, wire.Answer], digests: Mapping[str, bytes], is_ours: bool
    ) -> tuple[bool, bytes]:
        """Give an adapter its name if possible. digests: engine -> digest of what it has loaded. The other arguments
        and the result are those of `loaded`."""
        name, answer = next((one for one in answers.items() if not one[1].ok), next(iter(answers.items())))
        if is_ours:
            if ask.name not in self._names:  # the adapter was unloaded meanwhile
                return False, b""
            is_same = digests.get(name) == self._names.digest(ask.name)
            if not is_same and (engine := self._odd_one(name, ask.name)) is not None:
                why = f"its files of adapter {ask.name!r} differ" if answer.ok else answer.body.decode()
                self._refuse(engine, f"engine {name} lacks what the others have: {why}")
                return False, b""
            if not answer.ok:  # the adapter's files are gone
                self._unnamed.add(self._names.remove(ask.name))
                self._log(answer.body.decode())
        else:
            try:
                self._names.check_new(ask.name)  # another client may have taken it
            except BanyanError as e:
                return False, e.message.encode()
            odd = next((one for one, digest in digests.items() if digest != digests.get(name)), "")
            if answer.ok and odd:
                return False, f"engine {odd}'s files of adapter {ask.name!r} differ from engine {name}'s".encode()
        if answer.ok:
            self._names.add(ask.name, ask.path, digests[name])
        return answer.ok, answer.body

    def _odd_one(self, name: str, adapter: str) -> ReplicaProcess | None:
        """Called if the engine `name` could not load an adapter, or its files of it differ from the others'. Returns
        this engine if it can be ended: it runs on another machine, whose files may differ, and another ready engine has
        the adapter and can take its programs. Otherwise returns None."""
        loading = {engine for one, engines in self._loads() if one == adapter for engine in engines}
        odd = next(one for one in self._engines if one.name == name)
        others = (one for one in self._engines if one is not odd and one.is_ready and one.is_open)
        is_there = any(one.weights == odd.weights and one.name not in loading for one in others)
        return odd if odd.link.host and is_there else None
