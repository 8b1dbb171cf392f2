"""Which engine computes which program.

A program is placed with its first request, whose prompt is known then, and all its requests go to that engine: its
home. The branches of a fork are placed with the first request of one of them, and may be split over several engines;
what follows the join is computed at home again. A program or a branch is placed anew when its engine is drained, dies,
or has a request on trial. `fleet/placement.py` chooses; with one engine there is nothing to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from banyan.runtime.fleet.index import block_digests, blocks_of
from banyan.runtime.fleet.placement import Branch, Demand, Fleet, ProgramPlacement, StepSeconds
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_COUNT
from banyan.runtime.server.engine_link.recovery import Trials

STEP = StepSeconds(0.0, 4e-5, 4e-5)
"""Until an engine has told how long its steps take."""
N_DIGEST = 16
"""Bytes of a page's digest."""
MEMORY = 64
"""The expected length of an output covers roughly the last so many outputs."""


BookedWork = tuple[ProgramPlacement, int]
"""A placement, and which of its branches."""


class Route:
    """The way to one engine, and to those that replace it when it dies.

    send       gives it a command
    trials     starts its requests; after a crash the suspects first, each alone
    n_running  requests there that have not ended
    is_ready   the engine has loaded its model
    is_open    it takes programs; False: it is drained
    weights    the fingerprint of the engine's weights; b"": it has not told yet
    """

    def __init__(self, name: str, send: Callable[[wire.EngineCommand], None], trials: Trials[Any]) -> None:
        self.name, self.send, self.trials = name, send, trials
        self.n_running = 0
        self.is_ready = self.is_open = True
        self.weights = b""

    @property
    def takes_programs(self) -> bool:
        return self.is_open and self.is_ready and not self.trials.is_busy


class PlacedProgram:
    """Where a program runs.

    home        None: it has not been placed yet
    branches    state -> its route, if that is not home
    forks       branch that has no request yet -> all branches of its fork
    booked      branch that was placed and has no request yet -> its work
    routes       all that had requests of it
    n_given_up  requests that were given up
    """

    __slots__ = ("booked", "branches", "forks", "home", "n_given_up", "routes")

    def __init__(self) -> None:
        self.home: Route | None = None
        self.branches: dict[int, Route] = {}
        self.forks: dict[int, tuple[int, ...]] = {}
        self.booked: dict[int, BookedWork] = {}
        self.routes: set[Route] = set()
        self.n_given_up = 0


class Routes:
    """All routes, and the programs that have requests."""

    def __init__(self) -> None:
        self.all: list[Route] = []
        self._programs: dict[int, PlacedProgram] = {}  # by serial
        self._fleet = Fleet(STEP)
        self._in_fleet: set[Route] = set()
        self._booked: dict[int, BookedWork] = {}  # by rid
        self.weights = b""  # those of programs that begin now
        self.counts_work = False
        """Whether the work of a single engine is counted too. Must be set before the first request."""
        self._n_out = float(MEMORY)  # expected tokens of an output

    def add(self, route: Route) -> None:
        self.all.append(route)

    def remove(self, route: Route) -> None:
        """The engine is gone, and none of its requests is left."""
        self.lost(route)
        self.all.remove(route)
        for placed in self._programs.values():
            placed.routes.discard(route)

    def lost(self, route: Route) -> None:
        """The engine has died, and with it what it had cached."""
        if route in self._in_fleet:
            self._in_fleet.remove(route)
            self._fleet.remove(route.name)

    def others_take(self, route: Route) -> bool:
        """Whether another engine could take the requests of this one now."""
        others = (other for other in self.all if other is not route and other.weights == route.weights)
        return any(other.takes_programs for other in others)

    def measured(self, seconds: float, n_tokens: int) -> None:
        """A step of so many tokens takes an engine so long."""
        if seconds:
            self._fleet.step_time = StepSeconds(0.0, seconds / n_tokens, seconds / n_tokens)

    def heard(self, route: Route, news: wire.TreeEvents, page: int) -> Iterator[None]:
        """What an engine has stored and evicted, in pages of so many tokens, one event at a time."""
        if news.is_all:
            self.lost(route)  # what was known of it; it comes back with the next placement
            self._join()
        for event in news.events:
            digests = [event.digests[k : k + N_DIGEST] for k in range(0, len(event.digests), N_DIGEST)]
            if event.is_removed:
                self._fleet.removed(route.name, digests)
            else:
                self._fleet.stored(route.name, blocks_of(digests, event.first, page))
            yield

    @property
    def queued_seconds(self) -> float:
        """Of work that was placed and is not done. A token counts as its part of the largest step."""
        return self._fleet.queued_seconds

    def find(self, serial: int) -> PlacedProgram | None:
        return self._programs.get(serial)

    def forked(self, serial: int, children: tuple[int, ...]) -> None:
        """A state of a program was forked."""
        if len(self.all) > 1:
            placed = self._programs.setdefault(serial, PlacedProgram())
            placed.forks.update(dict.fromkeys(children, children))

    def place(self, run: wire.Run, weights: bytes = b"") -> Route:
        """The route of a request. weights: of its program; b"": those of programs that begin now."""
        if (placed := self._programs.get(run.order[0]) if run.order else None) is None:
            placed = PlacedProgram()
            if run.order:
                self._programs[run.order[0]] = placed
        if len(self.all) == 1 and not self.counts_work:
            route = placed.home = self.all[0]
        else:
            route = self._place(run, placed, weights or self.weights)
        placed.routes.add(route)
        return route

    def _place(self, run: wire.Run, placed: PlacedProgram, weights: bytes) -> Route:
        takers = {route for route in self._join() if route.weights == weights}
        state = run.order[1] if len(run.order) > 1 else 0
        home, booked = placed.branches.get(state, placed.home), placed.booked.pop(state, None)
        if home is None or home not in takers or state in placed.forks:
            if booked is not None:
                self._fleet.end(*booked)
            self._choose(run, placed, placed.forks.get(state, (state,)), takers, weights)
            home, booked = placed.branches.get(state, placed.home), placed.booked.pop(state, None)
            assert home is not None
        elif booked is None:
            booked = self._fleet.keep(self._demand(run, 1, weights), home.name), 0
        if booked is not None:
            self._booked[run.rid] = booked
        return home

    def _join(self) -> set[Route]:
        """Tell the fleet which engines take programs now. Returns them."""
        takers = {route for route in self.all if route.takes_programs}
        for route in self._in_fleet - takers:
            self.lost(route)  # for the fleet: it is drained, or has a trial
        for route in self.all:
            if route in takers and route not in self._in_fleet:
                self._fleet.add(route.name, route.weights)
        self._in_fleet = takers
        return takers

    def _choose(
        self, run: wire.Run, placed: PlacedProgram, branches: tuple[int, ...], takers: set[Route], weights: bytes
    ) -> None:
        """Place a program, or the branches of a fork. branches: those of the fork, or the one state. takers: the
        engines with these weights that take programs."""
        if takers:
            placement = self._fleet.place(self._demand(run, len(branches), weights))
            by_name = {route.name: route for route in takers}
            chosen = [by_name[name] for name in placement.replicas]
            placed.booked.update({branch: (placement, i) for i, branch in enumerate(branches)})
        else:  # all engines start, or have a request on trial
            routes = [route for route in self.all if route.weights in (weights, b"")] or self.all
            routes = [route for route in routes if route.is_open] or routes
            chosen = [min(routes, key=lambda route: route.n_running)] * len(branches)
        if placed.home not in takers:
            placed.home = chosen[0]
        for branch, route in zip(branches, chosen, strict=True):
            placed.forks.pop(branch, None)
            placed.branches[branch] = route

    def _demand(self, run: wire.Run, n_branches: int, weights: bytes) -> Demand:
        n_out = min(run.sampling.max_tokens, round(self._n_out))
        branches = (Branch(0, n_out, n_out),) * n_branches
        return Demand(block_digests(run.namespace, run.ids), len(run.ids) // 4, branches, weights)

    def began(self, rid: int) -> None:
        """A request has its first token."""
        if (booked := self._booked.get(rid)) is not None:
            self._fleet.computed(*booked, n_prompt=MAX_COUNT)

    def ended(self, rid: int, n_out: int) -> None:
        """A request has ended, or leaves its route, with so many tokens."""
        if (booked := self._booked.pop(rid, None)) is not None:
            self._fleet.end(*booked)
            self._n_out += (n_out - self._n_out) / MEMORY

    def hint(self, serial: int, command: wire.EngineCommand) -> None:
        """Send a hint about the KV of a program to the engines that have computed for it; if none has yet, or the
        program has ended, to all."""
        placed = self._programs.get(serial)
        for route in (placed and placed.routes) or self.all:
            route.send(command)

    def end(self, client: int, serial: int) -> None:
        """The program will start no more requests."""
        if (placed := self._programs.pop(serial, None)) is not None:
            for booked in placed.booked.values():
                self._fleet.end(*booked)
            for route in placed.routes:
                route.send(wire.ProgramEnded(client, serial))
