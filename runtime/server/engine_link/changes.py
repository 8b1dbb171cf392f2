"""Changes the engines of a running server: adds and drains them, scales their number by the load, and changes their
weights."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from banyan.runtime.config import Config, check
from banyan.runtime.errors import BanyanError, ConfigError
from banyan.runtime.fleet.scaling import FleetLoad, LoadScaler
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.link import NO_PROCESS, EngineConnection
from banyan.runtime.server.engine_link.questions import Questions
from banyan.runtime.server.engine_link.ray_engines import RayEngines
from banyan.runtime.server.engine_link.replicas import ReplicaProcess, Replicas, Then
from banyan.runtime.server.engine_link.requests import EngineRequests
from banyan.runtime.server.engine_link.roll import WeightsRoll


class EngineChanges:
    """Makes all changes of a server's engines, except the replacement of engines that die.

    roll   the change of weights in progress; None: there is none

    directory: the model's directory. ray: starts engines on a Ray cluster; None: the server starts engines itself, or
    they join from other machines. start: replaces the engine of a replica by a new one. counts: how many requests and
    programs have ended, and how many of them met their service levels (`Goodput.counts`). n_on: returns how many
    programs run on weights with a given fingerprint. on_sockets: called when an engine was added or removed.
    find_weights: returns the directory of a model, or raises if its weights cannot replace those in use. on_weights:
    called with the model's directory when all engines have the new weights. use_weights: has new programs use the
    weights of a ready engine. offload(work, then): runs `work` on a thread, and then `then` on the loop, with its
    result or exception. log: log(level, line) prints a line.
    """

    def __init__(
        self,
        config: Config,
        directory: Path,
        replicas: Replicas,
        requests: EngineRequests,
        questions: Questions,
        *,
        ray: RayEngines | None,
        start: Callable[[ReplicaProcess], None],
        counts: Mapping[str, int],
        n_on: Callable[[bytes], int],
        on_sockets: Callable[[], None],
        find_weights: Callable[[str], Path],
        on_weights: Callable[[Path], None],
        use_weights: Callable[[wire.Ready], None],
        offload: Callable[[Callable[[], Any], Callable[[Any], None]], None],
        log: Callable[[Any, str], None],
    ) -> None:
        self._config, self._directory, self._replicas, self._requests = config, directory, replicas, requests
        self._questions, self._ray, self._counts, self._n_on = questions, ray, counts, n_on
        self._start, self._on_sockets, self._find_weights = start, on_sockets, find_weights
        self._on_weights, self._use_weights, self._offload, self._log = on_weights, use_weights, offload, log
        self._scaler = LoadScaler(config.min_replicas, config.max_replicas) if config.max_replicas else None
        self._awaited: deque[Then] = deque()  # callbacks of engines that have not joined yet
        self.roll: WeightsRoll | None = None

    def change(self, ask: wire.Ask, then: Then) -> None:
        """Add or drain an engine, or change the weights, as `ask` says. then: called at the end of the change, with ""
        or an error. ConfigError: the change is not possible now."""
        if self.roll is not None:
            raise ConfigError(f"the weights are being changed to {self.roll.model}; wait until all engines have them")
        if ask.what == "roll":
            self._look_at_weights(ask.path, then)
        elif ask.what == "drain":
            self._replicas.drain(ask.name, then)
            self._log("info", f"engine {ask.name} is drained")
            self._end_drained()
        elif self._ray is not None:
            self._awaited.append(then)
            self._ray.add()
        else:
            check(msgspec.structs.replace(self._config, replicas=len(self._replicas) + 1))
            self._log("info", f"engine {self._add(then).name} is added")

    def _add(self, then: Then) -> ReplicaProcess:
        try:
            replica = self._replicas.add(then)
        except NO_PROCESS as e:
            raise ConfigError(f"no engine can be started now: {e}") from e
        self._questions.reload_adapters(replica)
        self._on_sockets()
        return replica

    def join(self, link: EngineConnection) -> None:
        """Add the engine of a host that has connected, as a new replica. Called if no existing replica waits for a
        host. ConfigError: there are too many engines."""
        replica = self._replicas.join(link)
        self._questions.reload_adapters(replica)
        self._on_sockets()
        if self._awaited:
            replica.then.append(self._awaited.popleft())

    def started(self, replica: ReplicaProcess) -> None:
        """Called when an engine is ready. Tells the scaling how long the engine took to start."""
        if self._scaler is not None and replica.link.n_starts == 1:
            self._scaler.started(time.monotonic() - replica.began)

    def remove(self, replica: ReplicaProcess, error: str = "") -> None:
        """End an engine for good. If all engines that remain with the same weights are being drained, one of them takes
        programs again. error: given to those who wait for the engine; "": none."""
        self._log("info", f"engine {replica.name} is gone")
        others = [one for one in self._replicas if one is not replica]
        for one in others:
            like = (other for other in others if other.route.weights == one.route.weights)
            if not (one.is_rolled or any(other.route.is_open for other in like)):
                self._requests.routes.lost(one.route)  # nothing is placed on it until it is added again
                one.route.is_open = True
                one.settle(f"engine {replica.name} is gone, so engine {one.name} stays")
        self._replicas.remove(replica, error)
        self._questions.fail(replica.name, f"engine {replica.name} is gone")
        self._on_sockets()

    def go_on(self) -> None:
        """Remove the drained engines that have nothing left to do, and take the next step of a change of weights if it
        is possible now. Called after events that may make it possible, such as the end of a program."""
        self._end_drained()
        if self.roll is not None:
            self.roll.go_on()

    def _end_drained(self) -> None:
        for replica in self._replicas.drained:
            self.remove(replica)

    # ---- other weights ---------------------------------------------------------------------------------------------

    def _look_at_weights(self, model: str, then: Then) -> None:
        """Find the model `model` on a thread, and then start to change all engines to its weights. then: called at the
        end of the change, with "" or an error."""

        def start(found: Path | Exception) -> None:
            try:
                if isinstance(found, Exception):
                    raise found
                if self.roll is not None:
                    raise ConfigError(f"the weights are being changed to {self.roll.model}")
                self._start_roll(found, then)
            except Exception as e:
                then(e.message if isinstance(e, BanyanError) else repr(e))

        self._offload(partial(self._find_weights, model), start)

    def _start_roll(self, directory: Path, then: Then) -> None:
        """Start to change all engines, one after the other, to the weights of the model in `directory`. then: called at
        the end, with "" or an error. ConfigError: the change is not possible now."""
        before, model = self._replicas.model, str(directory)

        def end(error: str) -> None:
            self.roll = None
            if error:
                self._replicas.model = before or str(self._directory)
            else:
                self._directory = directory
                self._on_weights(directory)
            self._log("info", f"the weights are not changed: {error}" if error else f"all engines have {model}")
            then(error)

        def restart(replica: ReplicaProcess, model: str) -> None:
            replica.link.model = model
            self._questions.fail(replica.name, f"engine {replica.name} gets other weights")
            self._start(replica)
            self._questions.reload_adapters(replica)

        def add(then: Then) -> ReplicaProcess:
            if self._config.replicas == 0 or self._ray is not None:
                raise ConfigError("the only engine is on another machine; let another one join first")
            return self._add(then)

        self._replicas.model = model
        try:
            self.roll = WeightsRoll(
                self._replicas, self._requests, model, before or str(self._directory), end, restart=restart, add=add,
                remove=self.remove, n_on=self._n_on, use_weights=self._use_weights,
            )  # fmt: skip
        except BaseException:
            self._replicas.model = before
            raise
        self._log("info", f"the weights are being changed to {model}")

    # ---- load ------------------------------------------------------------------------------------------------------

    def scale(self) -> None:
        """Add or remove an engine, if the load requires it and the number of engines is not fixed. Called at each
        heartbeat."""
        if self._scaler is None or self.roll is not None:
            return
        counts = self._counts
        n_done = counts["requests"] + counts["programs"]
        takers = [one for one in self._replicas if one.route.is_open and one.route.is_ready]
        n_coming = sum(one.route.is_open and not one.route.is_ready for one in self._replicas) + len(self._awaited)
        n_good = counts["good_requests"] + counts["good_programs"]
        queued = self._requests.routes.queued_seconds
        load = FleetLoad(len(takers), n_coming, queued, n_done, n_done - n_good)
        change = self._scaler.decide(time.monotonic(), load)
        if not change:
            return

        def then(error: str) -> None:
            if error:
                self._log("quiet", f"the number of engines is not changed: {error}")

        try:
            if change > 0:
                self._log("info", f"{queued:.1f} s of work are queued for {len(takers)} engines; adding one")
                self.change(wire.Ask(0, "add"), then)
            else:
                # An engine that takes prompts only comes last: it has no requests of its own, however useful it is.
                least = min(takers, key=lambda one: (one.route.is_prefill, one.route.n_running))
                self._log("info", f"engine {least.name} is not needed; draining it")
                self._replicas.drain(least.name, then)
                self._end_drained()
        except BanyanError as e:
            then(e.message)
