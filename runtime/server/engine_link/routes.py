"""Decides which engine computes which program.

A program is placed with its first request, because its prompt is known then. Its requests go to that engine, the home
of the program. The branches of a fork are placed together, with the first request of any of them, and may be split over
several engines. After the join, the program continues at home. A program or a branch is placed again if its engine is
drained, dies, or has a trial (it runs a request alone to find out whether the request crashes engines).
`fleet/placement.py` chooses the engine.

An engine may first pull the KV of a prefix from another engine (pulls.py). Some engines may only compute prompts: they
compute long prompts, whose KV the other engines then pull (disaggregated prefill)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from banyan.runtime.fleet.index import BLOCK, block_digests, blocks_of
from banyan.runtime.fleet.placement import (
    Branch,
    CoreShare,
    Demand,
    Fleet,
    PlannedPull,
    ProgramPlacement,
    PullSeconds,
    StepSeconds,
)
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_COUNT
from banyan.runtime.server.engine_link.pulls import Pulls
from banyan.runtime.server.engine_link.recovery import Trials

STEP = StepSeconds(0.0, 4e-5, 4e-5)
"""The assumed seconds of a step, until an engine has reported measured ones."""
N_DIGEST = 16
"""Bytes of a page's digest."""
MEMORY = 64
"""The expected length of an output is the mean of roughly this many of the latest outputs."""
PROMPTS = b"prompts"
"""The prefix of the fingerprint for engines that take prompts only."""
PATIENCE = 4
"""A pull is given up when it takes this many times as long as computing the prefix would. The factor is large because
the estimate is not exact on a busy machine."""
MAX_TEXTS = 1000
"""The most texts whose KV a drained engine hands over; this takes the server about 0.1 s."""


BookedWork = tuple[ProgramPlacement, int]
"""(placement, index of one of its branches)."""


class Route:
    """The way to one engine, and to the engine that replaces it when it dies.

    send       sends the engine a command
    trials     starts the requests; after a crash, first the requests that may have caused it, one at a time
    n_running  requests on the engine that have not ended
    is_ready   the engine has loaded its model
    is_open    the engine takes new programs; False: it is being drained
    is_prefill the engine computes prompts for other engines, and runs programs only if no other engine can
    kv         the format of the engine's pages; None: other engines cannot take them over
    cores      the CPU cores that the engine uses, and its machine; None: it computes on a GPU
    n_pulls    transfers of KV from the engine that have not ended
    weights    the fingerprint of the engine's weights; b"": not known yet
    others     the work that other servers have on the engine, if it is shared"""

    def __init__(
        self, name: str, send: Callable[[wire.EngineCommand], None], trials: Trials[Any], is_prefill: bool = False
    ) -> None:
        self.name, self.send, self.trials, self.is_prefill = name, send, trials, is_prefill
        self.n_running = self.n_pulls = 0
        self.is_ready = self.is_open = True
        self.kv: wire.KVFormat | None = None
        self.cores: CoreShare | None = None
        self.weights = b""
        self.others = wire.OtherWork()

    @property
    def is_empty(self) -> bool:
        """Whether the engine has nothing to do, so that it may end."""
        return not (self.n_running or self.n_pulls)

    @property
    def takes_programs(self) -> bool:
        return self.is_open and self.is_ready and not self.trials.is_busy


class PlacedProgram:
    """Where a program runs.

    home        the route of the program; None: it has not been placed yet
    branches    number of a state -> the route on which it was placed
    forks       branch that was not placed yet -> all branches of its fork
    booked      branch that was placed, but has no request so far -> its expected work
    routes      all routes that have had requests of the program
    n_given_up  how many of its requests failed because they had crashed several engines"""

    __slots__ = ("booked", "branches", "forks", "home", "n_given_up", "routes")

    def __init__(self) -> None:
        self.home: Route | None = None
        self.branches: dict[int, Route] = {}
        self.forks: dict[int, tuple[int, ...]] = {}
        self.booked: dict[int, BookedWork] = {}
        self.routes: set[Route] = set()
        self.n_given_up = 0


class Routes:
    """The routes to all engines of a server, and where each program with requests runs.

    all    the routes
    fleet  the engines that take programs, or only prompts, and their work
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        call_in: Callable[[float, Callable[[], None]], object] = lambda seconds, call: None,
    ) -> None:
        """clock: returns the current time in seconds. call_in: call_in(seconds, call) makes a call after that time."""
        self.all: list[Route] = []
        self._programs: dict[int, PlacedProgram] = {}  # by serial
        self.fleet = Fleet(STEP)
        self.pulls = Pulls(clock, call_in, self.fleet.pulled)
        self._in_fleet: dict[Route, bytes] = {}  # route -> its weights, preceded by PROMPTS if it takes prompts only
        self._booked: dict[int, BookedWork] = {}  # by rid
        self.weights = b""  # the weights for programs that begin now
        self.counts_work = False
        """Whether work is counted even if there is a single engine. Must be set before the first request."""
        self._n_out = float(MEMORY)  # expected tokens of an output

    def remove(self, route: Route) -> None:
        """Remove the route of an engine that is gone and has no requests left."""
        self.lost(route)
        self.all.remove(route)
        for placed in self._programs.values():
            placed.routes.discard(route)

    def lost(self, route: Route) -> None:
        """Remove an engine from the fleet, so that nothing is placed on it, and forget what its tree holds. The engine
        is added again, with an empty tree, at the next placement at which it takes programs."""
        if self._in_fleet.pop(route, None) is not None:
            self.fleet.remove(route.name)

    def others_take(self, route: Route) -> bool:
        """Whether another engine could take this engine's requests now."""
        others = (other for other in self.all if other is not route and other.weights == route.weights)
        return any(other.takes_programs for other in others)

    def measured(self, fixed: float, row: float) -> None:
        """Set the cost of an engine step: `fixed` seconds, and `row` seconds for each row; row 0.0: the cost is not
        known yet."""
        if row:
            self.fleet.step_time = StepSeconds(fixed, row, row)

    def set_others(self, route: Route, work: wire.OtherWork) -> None:
        """Set the work that other servers have on an engine."""
        route.others = work
        if route in self._in_fleet:
            n_out = work.n_running * round(self._n_out)
            self.fleet.set_others(route.name, work.n_prompt, n_out, work.n_running)

    def heard(self, route: Route, news: wire.TreeEvents, page: int) -> Iterator[None]:
        """Record what an engine has stored in its tree and evicted from it. A generator; each of its steps records one
        event. page: the number of tokens in a page."""
        if news.is_all:
            self.lost(route)  # forget what was known about it; `_join` adds it again at the next placement
            self._join()
        for event in news.events:
            digests = [event.digests[k : k + N_DIGEST] for k in range(0, len(event.digests), N_DIGEST)]
            if event.is_removed:
                self.fleet.removed(route.name, digests)
            else:
                self.fleet.stored(route.name, blocks_of(digests, event.first, page))
            yield

    def find(self, serial: int) -> PlacedProgram | None:
        return self._programs.get(serial)

    def forked(self, serial: int, children: tuple[int, ...]) -> None:
        """Record the branches of a fork. All of them are placed when the first request of any branch arrives. children:
        the numbers of the branches' states."""
        if len(self.all) > 1:
            placed = self._programs.setdefault(serial, PlacedProgram())
            placed.forks.update(dict.fromkeys(children, children))

    def place(self, run: wire.Run, weights: bytes = b"") -> Route:
        """Choose the route of a request. weights: its program's weights; b"": those of programs that begin now."""
        if (placed := self._programs.get(run.order[0])) is None:
            placed = self._programs[run.order[0]] = PlacedProgram()
        if len(self.all) == 1 and not self.counts_work:
            route = placed.home = self.all[0]
        else:
            route = self._place(run, placed, weights or self.weights)
        placed.routes.add(route)
        return route

    def _place(self, run: wire.Run, placed: PlacedProgram, weights: bytes) -> Route:
        takers = {route for route in self._join() if route.weights == weights}
        state = run.order[1]
        home, booked = placed.branches.get(state, placed.home), placed.booked.pop(state, None)
        if home is None or home not in takers or state in placed.forks:
            if booked is not None:
                self.fleet.end(*booked)
            self._choose(run, placed, placed.forks.get(state, (state,)), takers, weights)
            home, booked = placed.branches.get(state, placed.home), placed.booked.pop(state, None)
            assert home is not None
        elif booked is None:
            booked = self.fleet.keep(self._demand(run, 1, weights), home.name), 0
        if booked is not None:
            self._booked[run.rid] = booked
            self._prefill_elsewhere(run, home, *booked)
        return home

    def _join(self) -> set[Route]:
        """Tell the fleet which engines take programs now, and which take prompts only. Returns the routes that take
        programs."""
        there = [route for route in self.all if route.takes_programs]
        generate = {route.weights for route in there if not route.is_prefill}
        roles = {
            route: PROMPTS + route.weights if route.is_prefill and route.weights in generate else route.weights
            for route in there
        }
        for route, role in list(self._in_fleet.items()):
            if route.is_ready and not route.is_open and role == route.weights:
                self.fleet.drain(route.name)  # other engines may still pull from it
            elif roles.get(route) != role:
                self.lost(route)  # to the fleet it is lost: it has a trial, or another role
        for route, role in roles.items():
            if route not in self._in_fleet:
                self.fleet.add(route.name, role, route.cores)
                self._in_fleet[route] = role
                self.set_others(route, route.others)
        if self.fleet.pull_time is None and sum(route.kv is not None for route in self.all) > 1:
            self.fleet.pull_time = PullSeconds()
        return {route for route, role in roles.items() if role == route.weights}

    def _choose(
        self, run: wire.Run, placed: PlacedProgram, branches: tuple[int, ...], takers: set[Route], weights: bytes
    ) -> None:
        """Choose engines for a program, or for the branches of a fork, and record them in `placed`.

        branches: the numbers of the states to place: all branches of the fork, or one state. takers: the engines that
        take programs and have the weights `weights`."""
        if takers:
            placement = self.fleet.place(self._demand(run, len(branches), weights))
            by_name = {route.name: route for route in takers}
            chosen = [by_name[name] for name in placement.replicas]
            placed.booked.update({branch: (placement, i) for i, branch in enumerate(branches)})
            self._pull(run, placement.pulls)
        else:  # all engines are starting, or have a request on trial
            routes = [route for route in self.all if route.weights in (weights, b"")] or self.all
            routes = [route for route in routes if route.is_open] or routes
            chosen = [min(routes, key=lambda route: route.n_running)] * len(branches)
        if placed.home not in takers:
            placed.home = chosen[0]
        for branch, route in zip(branches, chosen, strict=True):
            placed.forks.pop(branch, None)
            placed.branches[branch] = route

    # ---- pulls -----------------------------------------------------------------------------------------------------

    def _pull(self, run: wire.Run, planned: Iterable[PlannedPull]) -> None:
        by_name = {route.name: route for route in self._in_fleet}
        for source, target, first, end in planned:
            seconds = PATIENCE * self.fleet.step_time.prompt * (end - first)
            self.pulls.start(run, by_name[source], by_name[target], first, end, seconds)

    def _prefill_elsewhere(self, run: wire.Run, target: Route, placement: ProgramPlacement, branch: int) -> None:
        """Let an engine that only computes prompts compute the part of a prompt that is not cached, and let `target`
        pull the KV from it.

        Does nothing if there is no such engine, or if the pull would take longer than computing that part on `target`.
        placement, branch: where the request's program was placed, and the index of the branch in it."""
        missing, pull, step = placement.left[branch][0], self.fleet.pull_time, self.fleet.step_time
        role = PROMPTS + target.weights
        if missing < BLOCK or pull is None or role not in self._in_fleet.values() or run.score_from >= 0:
            return
        if pull.wait + pull.token * missing >= step.prompt * missing:
            self.fleet.refused()
            return
        n = len(run.ids) // 4
        demand = Demand(block_digests(run.namespace, run.ids), n, (Branch(0, 0, 0),), role)
        work = self.fleet.place(demand)
        source = next(route for route in self._in_fleet if route.name == work.home)
        seconds = PATIENCE * (self.fleet.queued(work.home) + step.prompt * missing)
        started = self.pulls.start(run, source, target, n - missing, n, seconds, compute=True)
        if started is None:
            self.fleet.end(work)
            return
        started.then.append(lambda: self.fleet.end(work))
        self.fleet.computed(placement, branch, n_prompt=missing)

    def hand_over(self, route: Route, texts: Iterable[tuple[int, int, bytes, bytes]]) -> None:
        """Move the resting states of a drained engine to other engines, which pull their KV; at most MAX_TEXTS states.
        States that are not moved are placed again with their next request.

        texts: for each state, the serial of its program, its number, its namespace and its tokens."""
        takers = {one for one in self._join() if one.weights == route.weights}
        by_name = {one.name: one for one in takers}
        for serial, state, namespace, ids in islice(texts, MAX_TEXTS):
            placed = self._programs.get(serial)
            if placed is None or placed.branches.get(state, placed.home) is not route or not takers:
                continue
            run = wire.Run(0, ids, namespace=namespace)
            placement = self.fleet.place(self._demand(run, 1, route.weights))
            self.fleet.end(placement)
            self._pull(run, placement.pulls)
            if placement.pulls and state in placed.branches:
                placed.branches[state] = by_name[placement.home]
            elif placement.pulls:
                placed.home = by_name[placement.home]

    def _demand(self, run: wire.Run, n_branches: int, weights: bytes) -> Demand:
        n_out = min(run.sampling.max_tokens, round(self._n_out))
        branches = (Branch(0, n_out, n_out),) * n_branches
        return Demand(block_digests(run.namespace, run.ids), len(run.ids) // 4, branches, weights)

    def began(self, rid: int) -> None:
        """Record that a request has its first output token, which means that its prompt is computed."""
        if (booked := self._booked.get(rid)) is not None:
            self.fleet.computed(*booked, n_prompt=MAX_COUNT)

    def ended(self, rid: int, n_out: int) -> None:
        """Record that a request has ended, or leaves its route, with `n_out` output tokens."""
        if (booked := self._booked.pop(rid, None)) is not None:
            self.fleet.end(*booked)
            if n_out:  # otherwise it scored a text, or was moved or stopped before its first token
                self._n_out += (n_out - self._n_out) / MEMORY

    def hint(self, serial: int, command: wire.EngineCommand) -> None:
        """Send a hint about the KV of a program to the engines that have run its requests. If no engine has, or the
        program has ended, send it to all engines."""
        placed = self._programs.get(serial)
        for route in (placed and placed.routes) or self.all:
            route.send(command)

    def end(self, client: int, serial: int) -> None:
        """Forget a program that will start no more requests, and tell its engines that it has ended."""
        if (placed := self._programs.pop(serial, None)) is not None:
            for booked in placed.booked.values():
                self.fleet.end(*booked)
            for route in placed.routes:
                route.send(wire.ProgramEnded(client, serial))
