"""The engines of a server: each is started again when it dies, and some are added or drained while the server runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from banyan.runtime.errors import BanyanError, ConfigError
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.link import EngineConnection
from banyan.runtime.server.engine_link.requests import EngineRequests
from banyan.runtime.server.engine_link.routes import Route

Then = Callable[[str], None]
"""Called once: with "" on success, else with an error message."""

MAX_REPLICAS = 256
"""The most engines of a server."""


class ReplicaProcess:
    """One engine, and the engines that replace it when it dies. name: a number that is unique in the server."""

    route: Route

    def __init__(self, name: str, link: EngineConnection) -> None:
        self.name, self.link = name, link
        self.began = time.monotonic()
        self.n_failed_starts = 0
        """How many engines in a row died before they were ready."""
        self.error: BanyanError | None = None
        """The error with which the engine could not start."""
        self.is_rolled = False
        """Whether the engine is drained because it gets other weights, and not because it will end."""
        self.then: list[Then] = []
        """Called when an engine that was added is ready, or a drained engine is gone."""

    @property
    def state(self) -> str:
        if self.link.is_gone:
            return "waiting"
        return "draining" if not self.route.is_open else "ready" if self.route.is_ready else "starting"

    def settle(self, error: str = "") -> None:
        """Call the callbacks in `then`, and forget them. error: their argument; "": success."""
        waiting, self.then = self.then, []
        for then in waiting:
            then(error)


class Replicas:
    """All engines of a server.

    model  the model that engines which start from now on load; "": the configuration's model

    start: start(name, is_first) starts an engine on this machine. is_first: True for the engines that start with the
    server, False for those added later. n: number of engines to start now. late: a connection without an engine yet,
    for the first host that joins from another machine; None: the server does not wait for one. call_soon: makes a call
    on the loop, from any thread.
    """

    def __init__(
        self,
        start: Callable[[str, bool], EngineConnection],
        n: int,
        late: EngineConnection | None,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._start, self._call_soon = start, call_soon
        self._ending: list[threading.Thread] = []
        self._replicas: list[ReplicaProcess] = []
        self._n_made = self._n_starts_before = 0
        self.model = ""
        try:
            for _ in range(n):
                self._make(lambda name: start(name, True))
            if late is not None:
                self._make(lambda _: late)
        except BaseException:
            self.close()
            raise

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
        replica.route = self._requests.add_engine(replica.link.send, replica.name)
        replica.route.is_ready = replica.link.ready is not None

    def add(self, then: Then) -> ReplicaProcess:
        """Start one more engine. then: called with "" when it is ready, else with an error. ConfigError: there are
        MAX_REPLICAS engines already, or one is being added."""
        if (new := next((one for one in self._replicas if one.then and one.route.is_open), None)) is not None:
            raise ConfigError(f"engine {new.name} is being added; add another when it is ready")
        replica = self._join(lambda name: self._start(name, False))
        replica.then.append(then)
        return replica

    def join(self, link: EngineConnection) -> ReplicaProcess:
        """Add an engine on another machine. ConfigError: there are MAX_REPLICAS engines already."""
        return self._join(lambda _: link)

    def _join(self, link: Callable[[str], EngineConnection]) -> ReplicaProcess:
        if len(self._replicas) == MAX_REPLICAS:
            raise ConfigError(f"there are already {MAX_REPLICAS} engines, the most that are allowed")
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
        others = (one for one in self._replicas if one is not replica and one.route.weights == replica.route.weights)
        if not any(other.route.is_open and other.route.is_ready for other in others):
            raise ConfigError(f"engine {name} is the only one that is ready; add another first")
        replica.then.append(then)
        self._requests.vacate(replica.route)
        return replica

    @property
    def drained(self) -> list[ReplicaProcess]:
        """The drained engines that have nothing left to do."""
        empty = (one for one in self._replicas if not one.route.is_open and one.route.is_empty)
        return [one for one in empty if not one.is_rolled]

    def remove(self, replica: ReplicaProcess, error: str = "") -> None:
        """End an engine for good. Its requests start again on other engines. Once its process has ended, the callbacks
        replica.then are called with `error`."""
        self._replicas = [one for one in self._replicas if one is not replica]
        self._n_starts_before += replica.link.n_starts
        replica.link.dismiss(error)
        replica.link.refuse()
        self._requests.remove_engine(replica.route)
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
