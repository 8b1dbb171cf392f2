"""A change of weights while the server runs: its engines are replaced one at a time.

A program keeps the weights with which it began. New programs begin with the new weights as soon as an engine has loaded
them. So the last engine with the old weights stays until all programs that began with the old weights have ended. If
there is only one engine, a second one is added first.
"""

from __future__ import annotations

from collections.abc import Callable

from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.replicas import ReplicaProcess, Replicas, Then
from banyan.runtime.server.engine_link.requests import EngineRequests

LOADING = b"loading"
"""The fingerprint of an engine whose weights are not known yet. It gets no requests."""


class WeightsRoll:
    """One change of weights.

    model     the new model
    starting  the engine that loads the new weights now; None: no engine loads, and the next one is being emptied

    n_on: returns how many programs run on the weights with a given fingerprint. restart: restart(replica, model)
    replaces an engine by one with this model. add: starts one more engine, with the new model. remove: ends an engine
    for good. use_weights: makes new programs use the weights of a ready engine. before: the model before the change.
    then: called at the end of the change, with "" or an error."""

    def __init__(
        self,
        replicas: Replicas,
        requests: EngineRequests,
        model: str,
        before: str,
        then: Then,
        *,
        n_on: Callable[[bytes], int],
        restart: Callable[[ReplicaProcess, str], None],
        add: Callable[[Then], ReplicaProcess],
        remove: Callable[[ReplicaProcess], None],
        use_weights: Callable[[wire.Ready], None],
    ) -> None:
        """model, before: the new model and the one before. then: called at the end, with "" or an error. The other
        callbacks are explained at the class. Raises ConfigError if an engine is not ready or is being drained, or if a
        second engine is needed and cannot be added."""
        self.model, self._before, self._then = model, before, then
        self._replicas, self._requests = replicas, requests
        self._n_on, self._restart, self._remove, self._use_weights = n_on, restart, remove, use_weights
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
            self._extra = self.starting = add(lambda error: None)
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
                self._then("")
                return
            one = self._emptying = self._left.pop(0)
            one.is_rolled, self._old = True, one.route.weights
            if any(
                other.route.weights == self._old and other.route.is_open for other in self._replicas if other is not one
            ):
                self._requests.vacate(one.route)
        is_last = one.route.is_open
        if not one.route.is_empty or (is_last and self._n_on(self._old)):
            return
        self._emptying, one.is_rolled = None, False
        if self._extra is not None:
            self._remove(one)
            self.go_on()
            return
        self._start(one, self.model)

    def _give_up(self, last: ReplicaProcess) -> None:
        """End the change of weights without success: the engine that was added for it was the only one with the new
        weights, and is lost. last: the engine that remains, with the old weights. New programs use these again."""
        last.is_rolled = False
        if last.link.ready is not None:
            self._use_weights(last.link.ready)
        self._then("the engine that had the new weights is gone")

    def _start(self, one: ReplicaProcess, model: str) -> None:
        self._requests.routes.lost(one.route)
        one.route.is_open, one.route.is_ready, one.route.weights = True, False, LOADING
        self.starting = one
        self._restart(one, model)

    def fail(self, why: str) -> None:
        """End the change, because the engine that loads the new weights cannot start. That engine is restarted with the
        old weights, or removed if it was added for the change."""
        one = self.starting
        assert one is not None
        self.starting = None
        if one is self._extra:
            self._remove(one)
        else:
            one.n_failed_starts = 0
            one.route.weights = self._old
            self._restart(one, self._before)
        self._then(why)
