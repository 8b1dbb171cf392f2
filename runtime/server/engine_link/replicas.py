"""The engines of a server: each is started again when it dies, and some are added or drained while the server runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import zmq

from banyan.runtime.config import Config, tcp
from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.link import EngineConnection, EngineLink, later_config
from banyan.runtime.server.engine_link.remote import EngineHosts, RemoteLink
from banyan.runtime.server.engine_link.replica_process import ReplicaProcess, Then
from banyan.runtime.server.engine_link.requests import EngineRequests

MAX_REPLICAS = 256
"""Maximum number of engines of a server."""

ANY_HOST = ("0.0.0.0", "::")
"""If `engines_at` has one of these hosts, engines on this machine do not know the address at which others reach them,
so the others pull no KV from them."""


class Replicas:
    """All engines of a server.

    model     the model that engines which start from now on load; "": the configuration's model
    standard  the report of the engine with which others must agree; its `page` is 0 until one was ready

    directory: of the model. command: the command that starts an engine. hosts: the engine hosts of other machines;
    None: none can join. call_soon: makes a call on the loop, from any thread.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        config: Config,
        directory: Path,
        command: Sequence[str],
        hosts: EngineHosts | None,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """Start the engines that the configuration has on this machine. If there are none, wait for the first host that
        joins."""
        self._context, self._config, self._command = context, config, command
        self._directory, self._hosts, self._call_soon = directory, hosts, call_soon
        self._ending: list[threading.Thread] = []
        self._replicas: list[ReplicaProcess] = []
        self._n_made = self._n_starts_before = 0
        self.model = ""
        self.standard = wire.Ready(0, 0, 0)
        try:
            for _ in range(n := 0 if config.ray else config.replicas):
                self._make(lambda name: self._start(name, is_first=True))
            if not n:
                self._make(lambda _: self._remote_link())
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, is_first: bool) -> EngineLink:
        """Start an engine on this machine. Returns the connection to it. name: the replica's number, as text. is_first:
        whether the engine starts together with the server; False: it was added later."""
        config = msgspec.structs.replace(self._config, model=str(self._directory))
        if name != "0" and config.host_file:
            config = msgspec.structs.replace(config, host_file=f"{config.host_file}.{name}")
        command = self._command if name == "0" else (*self._command, "--replica", name)
        host = tcp(self._config.engines_at)[0] if self._config.engines_at else ""
        if host and host not in ANY_HOST:
            command = (*command, "--host", f"[{host}]" if ":" in host else host)
        if not is_first:
            config = msgspec.structs.replace(config, model=self.model or config.model)
            config = later_config(msgspec.structs.replace(config, replicas=max(1, config.replicas)), self.ready)
        return EngineLink(self._context, config, Path(config.socket), command)

    def _remote_link(self) -> RemoteLink:
        """Make a connection for an engine on another machine that has not joined yet."""
        hosts = self._hosts
        assert hosts is not None

        def options() -> Config:
            # After the first engine was ready, the server tells each new engine which adapters to load.
            adapters = {} if self.standard.page else self._config.adapters
            return msgspec.structs.replace(
                self._config, adapters=adapters, bind="", curve_key="", engines_at="", engine_keys="", token_file="",
                metrics="", traces="", replicas=1,
            )  # fmt: skip

        link = RemoteLink(hosts.send, options, self._config.engine_timeout)
        link.model = self.model
        return link

    def __iter__(self) -> Iterator[ReplicaProcess]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    def _make(self, link: Callable[[str], EngineConnection]) -> ReplicaProcess:
        """Add a replica. link: makes the connection for a given name."""
        replica = ReplicaProcess(str(self._n_made), link(str(self._n_made)))
        self._replicas = [*self._replicas, replica]  # a new list, because the loop may be iterating over the old one
        self._n_made += 1
        return replica

    def connect(self, requests: EngineRequests, vocabulary: wire.SetVocabulary) -> None:
        """Give all engines the vocabulary, and register them with `requests`, which sends requests to them. Called
        once, while the engines start."""
        self._requests, self._vocabulary = requests, vocabulary
        for replica in self._replicas:
            self._connect(replica)

    def _connect(self, replica: ReplicaProcess) -> None:
        replica.link.set_vocabulary(self._vocabulary)
        self._requests.add_engine(replica)

    def add(self, then: Then) -> ReplicaProcess:
        """Start one more engine. then: called with "" when it is ready, else with an error. ConfigError: there are
        MAX_REPLICAS engines already, or one is being added."""
        if (new := next((one for one in self._replicas if one.then and one.is_open), None)) is not None:
            raise ConfigError(f"engine {new.name} is being added; add another when it is ready")
        replica = self._join(lambda name: self._start(name, is_first=False))
        replica.then.append(then)
        return replica

    def join(self) -> ReplicaProcess:
        """Add an engine on another machine, whose host has connected. ConfigError: there are MAX_REPLICAS engines
        already."""
        return self._join(lambda _: self._remote_link())

    def _join(self, link: Callable[[str], EngineConnection]) -> ReplicaProcess:
        if len(self._replicas) == MAX_REPLICAS:
            raise ConfigError(f"there are already {MAX_REPLICAS} engines, which is the maximum")
        replica = self._make(link)
        self._connect(replica)
        return replica

    def drain(self, name: str, then: Then) -> ReplicaProcess:
        """Place no more programs in an engine, and move its requests that have no output yet to other engines. then:
        called with "" once the engine has ended, else with an error. ConfigError: there is no such engine, or no other
        engine takes programs."""
        replica = next((replica for replica in self._replicas if replica.name == name), None)
        if replica is None:
            raise ConfigError(f"unknown engine {name!r}; choose one of {', '.join(one.name for one in self._replicas)}")
        others = (one for one in self._replicas if one is not replica and one.weights == replica.weights)
        if not any(other.is_open and other.is_ready for other in others):
            raise ConfigError(f"engine {name} is the only one that is ready; add another first")
        replica.then.append(then)
        self._requests.vacate(replica)
        return replica

    @property
    def drained(self) -> list[ReplicaProcess]:
        """The drained engines that have nothing left to do."""
        empty = (one for one in self._replicas if not one.is_open and one.is_empty)
        return [one for one in empty if not one.is_rolled]

    def remove(self, replica: ReplicaProcess, error: str = "") -> None:
        """End an engine for good. Its requests start again on other engines. Once its process has ended, the callbacks
        replica.then are called with `error`."""
        self._replicas = [one for one in self._replicas if one is not replica]
        self._n_starts_before += replica.link.n_starts
        replica.link.dismiss(error)
        replica.link.refuse()
        self._requests.remove_engine(replica)
        self._end(replica, lambda: self._call_soon(partial(replica.settle, error)))

    def _end(self, replica: ReplicaProcess, then: Callable[[], None]) -> None:
        """Close the connection to an engine that is not used any more, on a thread, because a process may take seconds
        to end. then: called on that thread."""

        def end() -> None:
            replica.link.close()
            then()

        self._ending = [*filter(threading.Thread.is_alive, self._ending), threading.Thread(target=end)]
        self._ending[-1].start()

    def close(self) -> None:
        """End all engines, at the same time."""
        for replica in self._replicas:
            self._end(replica, lambda: None)
        for thread in self._ending:
            thread.join()

    @property
    def ready(self) -> wire.Ready | None:
        """The Ready message of an engine that is ready; None: no engine is ready."""
        return next((one.link.ready for one in self._replicas if one.link.ready is not None), None)

    @property
    def is_busy(self) -> bool:
        """Whether reports have arrived that are not handled yet."""
        return any(replica.link.is_busy for replica in self._replicas)

    @property
    def n_starts(self) -> int:
        """How many engine processes have been started so far, including those that have ended."""
        return self._n_starts_before + sum(replica.link.n_starts for replica in self._replicas)
