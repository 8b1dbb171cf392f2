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

LOADING = b"loading"
"""The fingerprint of an engine whose weights are not known yet. It gets no requests."""


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
        self._questions, self._ray, self._counts, self.n_on = questions, ray, counts, n_on
        self._start, self._on_sockets, self._find_weights = start, on_sockets, find_weights
        self._on_weights, self.use_weights, self._offload, self._log = on_weights, use_weights, offload, log
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
        """End an engine for good, if that has not happened. If all engines that remain with the same weights are being
        drained, one of them takes programs again. error: given to those who wait for the engine; "": none."""
        if replica not in self._replicas:
            return
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
        before = self._replicas.model
        self._replicas.model = str(directory)
        try:
            self.roll = WeightsRoll(
                self, self._replicas, self._requests, directory, before or str(self._directory), then
            )
        except BaseException:
            self._replicas.model = before
            raise
        self._log("info", f"the weights are being changed to {self.roll.model}")

    def end_roll(self, roll: WeightsRoll, error: str = "") -> None:
        """End the change of weights. error: why it failed; "": all engines have the new weights."""
        self.roll = None
        if error:
            self._replicas.model = roll.before
            self._log("info", f"the weights are not changed: {error}")
        else:
            self._directory = roll.directory
            self._on_weights(roll.directory)
            self._log("info", f"all engines have {roll.model}")
        roll.then(error)

    def restart(self, replica: ReplicaProcess, model: str) -> None:
        """Replace an engine by one that has other weights."""
        replica.link.model = model
        self._questions.fail(replica.name, f"engine {replica.name} gets other weights")
        self._start(replica)
        self._questions.reload_adapters(replica)

    def add_for_roll(self) -> ReplicaProcess:
        """Start one more engine, with the new weights. ConfigError: it cannot be started."""
        if self._config.replicas == 0 or self._ray is not None:
            raise ConfigError("the only engine is on another machine; let another one join first")
        return self._add(lambda error: None)

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
        queued = self._requests.routes.fleet.queued_seconds
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


class WeightsRoll:
    """A change of weights while the server runs: its engines are replaced one at a time.

    A program keeps the weights with which it began. New programs begin with the new weights as soon as an engine has
    loaded them. So the last engine with the old weights stays until all programs that began with the old weights have
    ended. If there is only one engine, a second one is added first.

    directory, model  the directory of the new model
    before            the model before the change
    then              to be called at the end of the change, with "" or an error
    starting          the engine that loads the new weights now; None: no engine loads, and the next one is being
                      emptied
    """

    def __init__(
        self,
        changes: EngineChanges,
        replicas: Replicas,
        requests: EngineRequests,
        directory: Path,
        before: str,
        then: Then,
    ) -> None:
        """Raises ConfigError if an engine is not ready or is being drained, or if a second engine is needed and cannot
        be added."""
        self._changes, self._replicas, self._requests = changes, replicas, requests
        self.directory, self.model, self.before, self.then = directory, str(directory), before, then
        self._emptying: ReplicaProcess | None = None
        self._extra: ReplicaProcess | None = None
        self.starting: ReplicaProcess | None = None
        if not all(one.route.is_open and one.route.is_ready for one in replicas):
            raise ConfigError(
                "an engine starts, waits for its machine or is drained; change the weights when all are ready"
            )
        # engines may differ in their weights, if an earlier change stopped half-way
        self._newest = newest = requests.routes.weights
        self._left = sorted(replicas, key=lambda one: one.route.weights == newest)
        self._old = b""  # the weights of the engine that is being replaced
        if len(replicas) == 1:
            self._extra = self.starting = changes.add_for_roll()
            self._extra.route.weights = LOADING
        self.go_on()

    def is_first(self, replica: ReplicaProcess) -> bool:
        """Whether an engine, which may have joined during the change, is the first that has loaded the new weights."""
        is_known = self._requests.routes.weights != self._newest
        has_joined = replica.link.model == self.model and not replica.route.weights
        return not is_known and (replica is self.starting or has_joined)

    def go_on(self) -> None:
        """Do the steps of the weight change that are possible now. Called whenever an engine or a program has changed
        in a way that may make a step possible."""
        there = [*self._replicas]  # replicas that are not in this list were lost
        self._left = [one for one in self._left if one in there]
        self._emptying = self._emptying if self._emptying in there else None
        self.starting = self.starting if self.starting in there else None
        new = self._requests.routes.weights  # those of `starting`, if it is ready
        if self.starting is not None:
            if not self.starting.route.is_ready:
                return
            self._left = [one for one in self._left if one.route.weights != new]
            self.starting = None
        if self._extra is not None and not any(one.route.weights == new for one in there):
            self._give_up(there[0])
            return
        if (one := self._emptying) is None:
            if not self._left:
                self._changes.end_roll(self)
                return
            one = self._emptying = self._left.pop(0)
            one.is_rolled, self._old = True, one.route.weights
            if any(
                other.route.weights == self._old and other.route.is_open for other in self._replicas if other is not one
            ):
                self._requests.vacate(one.route)
        is_last = one.route.is_open
        if not one.route.is_empty or (is_last and self._changes.n_on(self._old)):
            return
        self._emptying, one.is_rolled = None, False
        if self._extra is not None:
            self._changes.remove(one)
            self.go_on()
            return
        self._requests.routes.lost(one.route)
        one.route.is_open, one.route.is_ready, one.route.weights = True, False, LOADING
        self.starting = one
        self._changes.restart(one, self.model)

    def _give_up(self, last: ReplicaProcess) -> None:
        """End the change of weights without success: the engine that was added for it was the only one with the new
        weights, and is lost. last: the engine that remains, with the old weights. New programs use these again."""
        last.is_rolled = False
        if last.link.ready is not None:
            self._changes.use_weights(last.link.ready)
        self._changes.end_roll(self, "the engine that had the new weights is gone")

    def fail(self, why: str) -> None:
        """End the change, because the engine that loads the new weights cannot start. That engine is restarted with the
        old weights, or removed if it was added for the change."""
        if (one := self.starting) is None:  # it failed in the same round of the loop for another reason
            return
        self.starting = None
        if one is self._extra:
            self._changes.remove(one)
        else:
            one.n_failed_starts = 0
            one.route.weights = self._old
            self._changes.restart(one, self.before)
        self._changes.end_roll(self, why)
