"""One engine of a server: its connection, and what the server knows of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from banyan.runtime.errors import BanyanError
from banyan.runtime.fleet.placement import CoreShare
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.link import EngineConnection
from banyan.runtime.server.engine_link.recovery import Trials

Then = Callable[[str], None]
"""Called once: with "" on success, else with an error message."""


class ReplicaProcess:
    """One engine, and the engines that replace it when it dies.

    name             a number that is unique in the server
    link             the connection to the engine
    send             sends the engine a command
    trials           starts the requests; after a crash, first the requests that may have caused it, one at a time
    n_running        requests on the engine that have not ended
    n_pulls          transfers of KV from the engine that have not ended
    is_open          the engine takes new programs; False: it is being drained
    is_rolled        the engine is drained because it gets other weights, and not because it will end
    is_prefill       the engine computes prompts for other engines, and runs programs only if no other engine can
    kv               the format of the engine's pages; None: other engines cannot take them over
    cores            the CPU cores that the engine uses, and its machine; None: it computes on a GPU
    weights          the fingerprint of the engine's weights; b"": not known yet
    others           the work that other servers have on the engine, if it is shared
    began            when the replica was made, on the monotonic clock
    n_failed_starts  how many engines in a row died before they were ready
    error            the error with which the engine could not start
    then             called when an engine that was added is ready, or a drained engine is gone
    """

    trials: Trials[Any]

    def __init__(self, name: str, link: EngineConnection) -> None:
        self.name, self.link, self.send = name, link, link.send
        self.n_running = self.n_pulls = self.n_failed_starts = 0
        self.is_open, self.is_rolled, self.is_prefill = True, False, False
        self.kv: wire.KVFormat | None = None
        self.cores: CoreShare | None = None
        self.weights = b""
        self.others = wire.OtherWork()
        self.began = time.monotonic()
        self.error: BanyanError | None = None
        self.then: list[Then] = []

    @property
    def is_ready(self) -> bool:
        """Whether the engine has loaded its model."""
        return self.link.ready is not None

    @property
    def is_empty(self) -> bool:
        """Whether the engine has nothing to do, so that it may end."""
        return not (self.n_running or self.n_pulls)

    @property
    def takes_programs(self) -> bool:
        return self.is_open and self.is_ready and not self.trials.is_busy

    @property
    def state(self) -> str:
        if self.link.is_gone:
            return "waiting"
        return "draining" if not self.is_open else "ready" if self.is_ready else "starting"

    def settle(self, error: str = "") -> None:
        """Call the callbacks in `then`, and forget them. error: their argument; "": success."""
        waiting, self.then = self.then, []
        for then in waiting:
            then(error)
