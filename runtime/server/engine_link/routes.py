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

from banyan.runtime.fleet.index import BLOCK, block_digests, blocks_of
from banyan.runtime.fleet.placement import (
    Branch,
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
from banyan.runtime.server.engine_link.replica_process import ReplicaProcess

STEP = StepSeconds(0.0, 4e-5, 4e-5)
"""The assumed seconds of a step, until an engine has reported measured ones."""
N_DIGEST = 16
"""Bytes of a page's digest."""
MEMORY = 64
"""The expected length of an output is the mean of roughly this many of the latest outputs."""
PROMPTS = b"prompts"
"""The prefix of the fingerprint for engines that take prompts only."""
PATIENCE = 4
"""A pull is abandoned when it takes this many times as long as computing the prefix would. The factor is large because
the estimate is not exact on a busy machine."""
MAX_TEXTS = 1000
"""Maximum number of texts whose KV a drained engine hands over; this takes the server about 0.1 s."""


BookedWork = tuple[ProgramPlacement, int]
"""(placement, index of one of its branches)."""


class PlacedProgram:
    """Where a program runs.

    home        the engine of the program; None: it has not been placed yet
    branches    number of a state -> the engine on which it was placed
    forks       branch that was not placed yet -> all branches of its fork
    booked      branch that was placed, but has no request so far -> its expected work
    replicas    all engines that have had requests of the program
    n_given_up  how many of its requests failed because they had crashed several engines"""

    __slots__ = ("booked", "branches", "forks", "home", "n_given_up", "replicas")

    def __init__(self) -> None:
        self.home: ReplicaProcess | None = None
        self.branches: dict[int, ReplicaProcess] = {}
        self.forks: dict[int, tuple[int, ...]] = {}
        self.booked: dict[int, BookedWork] = {}
        self.replicas: set[ReplicaProcess] = set()
        self.n_given_up = 0


class Routes:
    """Where each program with requests runs.

    all    all engines of the server
    fleet  the engines that take programs, or only prompts, and their work
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        call_in: Callable[[float, Callable[[], None]], object] = lambda seconds, call: None,
    ) -> None:
        """clock: returns the current time in seconds. call_in: call_in(seconds, call) makes a call after that time."""
        self.all: list[ReplicaProcess] = []
        self._programs: dict[int, PlacedProgram] = {}  # by serial
        self.fleet = Fleet(STEP)
        self.pulls = Pulls(clock, call_in, self.fleet.pulled)
        self._in_fleet: dict[ReplicaProcess, bytes] = {}  # -> its weights, preceded by PROMPTS if it takes prompts only
        self._booked: dict[int, BookedWork] = {}  # by rid
        self.weights = b""  # the weights for programs that begin now
        self.counts_work = False
        """Whether work is counted even if there is a single engine. Must be set before the first request."""
        self._n_out = float(MEMORY)  # expected tokens of an output

    def remove(self, replica: ReplicaProcess) -> None:
        """Remove an engine that is gone and has no requests left."""
        self.lost(replica)
        self.all.remove(replica)
        for placed in self._programs.values():
            placed.replicas.discard(replica)

    def lost(self, replica: ReplicaProcess) -> None:
        """Remove an engine from the fleet, so that nothing is placed on it, and forget what its tree holds. The engine
        is added again, with an empty tree, at the next placement at which it takes programs."""
        if self._in_fleet.pop(replica, None) is not None:
            self.fleet.remove(replica.name)

    def others_take(self, replica: ReplicaProcess) -> bool:
        """Whether another engine could take this engine's requests now."""
        others = (other for other in self.all if other is not replica and other.weights == replica.weights)
        return any(other.takes_programs for other in others)

    def measured(self, fixed: float, row: float) -> None:
        """Set the cost of an engine step: `fixed` seconds, and `row` seconds for each row; row 0.0: the cost is not
        known yet."""
        if row:
            self.fleet.step_time = StepSeconds(fixed, row, row)

    def set_others(self, replica: ReplicaProcess, work: wire.OtherWork) -> None:
        """Set the work that other servers have on an engine."""
        replica.others = work
        if replica in self._in_fleet:
            n_out = work.n_running * round(self._n_out)
            self.fleet.set_others(replica.name, work.n_prompt, n_out, work.n_running)

    def heard(self, replica: ReplicaProcess, news: wire.TreeEvents, page: int) -> Iterator[None]:
        """Record what an engine has stored in its tree and evicted from it. A generator; each of its steps records one
        event. page: the number of tokens in a page."""
        if news.is_all:
            self.lost(replica)  # forget what was known about it; `_join` adds it again at the next placement
            self._join()
        for event in news.events:
            digests = [event.digests[k : k + N_DIGEST] for k in range(0, len(event.digests), N_DIGEST)]
            if event.is_removed:
                self.fleet.removed(replica.name, digests)
            else:
                self.fleet.stored(replica.name, blocks_of(digests, event.first, page))
            yield

    def find(self, serial: int) -> PlacedProgram | None:
        return self._programs.get(serial)

    def forked(self, serial: int, children: tuple[int, ...]) -> None:
        """Record the branches of a fork. All of them are placed when the first request of any branch arrives. children:
        the numbers of the branches' states."""
        if len(self.all) > 1:
            placed = self._programs.setdefault(serial, PlacedProgram())
            placed.forks.update(dict.fromkeys(children, children))

    def place(self, run: wire.Run, weights: bytes = b"") -> ReplicaProcess:
        """Choose the engine of a request. weights: its program's weights; b"": those of programs that begin now."""
        if (placed := self._programs.get(run.order[0])) is None:
            placed = self._programs[run.order[0]] = PlacedProgram()
        if len(self.all) == 1 and not self.counts_work:
            replica = placed.home = self.all[0]
        else:
            replica = self._place(run, placed, weights or self.weights)
        placed.replicas.add(replica)
        return replica

    def _place(self, run: wire.Run, placed: PlacedProgram, weights: bytes) -> ReplicaProcess:
        takers = {replica for replica in self._join() if replica.weights == weights}
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

    def _join(self) -> set[ReplicaProcess]:
        """Tell the fleet which engines take programs now, and which take prompts only. Returns the engines that take
        programs."""
        there = [one for one in self.all if one.takes_programs]
        generate = {one.weights for one in there if not one.is_prefill}
        roles = {
            one: PROMPTS + one.weights if one.is_prefill and one.weights in generate else one.weights for one in there
        }
        for replica, role in list(self._in_fleet.items()):
            if replica.is_ready and not replica.is_open and role == replica.weights:
                self.fleet.drain(replica.name)  # other engines may still pull from it
            elif roles.get(replica) != role:
                self.lost(replica)  # to the fleet it is lost: it has a trial, or another role
        for replica, role in roles.items():
            if replica not in self._in_fleet:
                self.fleet.add(replica.name, role, replica.cores)
                self._in_fleet[replica] = role
                self.set_others(replica, replica.others)
        if self.fleet.pull_time is None and sum(replica.kv is not None for replica in self.all) > 1:
            self.fleet.pull_time = PullSeconds()
        return {replica for replica, role in roles.items() if role == replica.weights}

    def _choose(
        self,
        run: wire.Run,
        placed: PlacedProgram,
        branches: tuple[int, ...],
        takers: set[ReplicaProcess],
        weights: bytes,
    ) -> None:
        """Choose engines for a program, or for the branches of a fork, and record them in `placed`.

        branches: the numbers of the states to place: all branches of the fork, or one state. takers: the engines that
        take programs and have the weights `weights`."""
        if takers:
            placement = self.fleet.place(self._demand(run, len(branches), weights))
            by_name = {replica.name: replica for replica in takers}
            chosen = [by_name[name] for name in placement.replicas]
            placed.booked.update({branch: (placement, i) for i, branch in enumerate(branches)})
            self._pull(run, placement.pulls)
        else:  # all engines are starting, or have a request on trial
            engines = [replica for replica in self.all if replica.weights in (weights, b"")] or self.all
            engines = [replica for replica in engines if replica.is_open] or engines
            chosen = [min(engines, key=lambda replica: replica.n_running)] * len(branches)
        if placed.home not in takers:
            placed.home = chosen[0]
        for branch, replica in zip(branches, chosen, strict=True):
            placed.forks.pop(branch, None)
            placed.branches[branch] = replica

    # ---- pulls -----------------------------------------------------------------------------------------------------

    def _pull(self, run: wire.Run, planned: Iterable[PlannedPull]) -> None:
        by_name = {replica.name: replica for replica in self._in_fleet}
        for source, target, first, end in planned:
            seconds = PATIENCE * self.fleet.step_time.prompt * (end - first)
            self.pulls.start(run, by_name[source], by_name[target], first, end, seconds)

    def _prefill_elsewhere(
        self, run: wire.Run, target: ReplicaProcess, placement: ProgramPlacement, branch: int
    ) -> None:
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
        source = next(replica for replica in self._in_fleet if replica.name == work.home)
        seconds = PATIENCE * (self.fleet.queued(work.home) + step.prompt * missing)
        started = self.pulls.start(run, source, target, n - missing, n, seconds, compute=True)
        if started is None:
            self.fleet.end(work)
            return
        started.then.append(lambda: self.fleet.end(work))
        self.fleet.computed(placement, branch, n_prompt=missing)

    def hand_over(self, replica: ReplicaProcess, texts: Iterable[tuple[int, int, bytes, bytes]]) -> None:
        """Move the resting states of a drained engine to other engines, which pull their KV; at most MAX_TEXTS states.
        States that are not moved are placed again with their next request.

        texts: for each state, the serial of its program, its number, its namespace and its tokens."""
        takers = {one for one in self._join() if one.weights == replica.weights}
        by_name = {one.name: one for one in takers}
        for serial, state, namespace, ids in islice(texts, MAX_TEXTS):
            placed = self._programs.get(serial)
            if placed is None or placed.branches.get(state, placed.home) is not replica or not takers:
                continue
            run = wire.Run(0, ids, namespace=namespace)
            placement = self.fleet.place(self._demand(run, 1, replica.weights))
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
        """Record that a request has ended, or leaves its replica, with `n_out` output tokens."""
        if (booked := self._booked.pop(rid, None)) is not None:
            self.fleet.end(*booked)
            if n_out:  # otherwise it scored a text, or was moved or stopped before its first token
                self._n_out += (n_out - self._n_out) / MEMORY

    def hint(self, serial: int, command: wire.EngineCommand) -> None:
        """Send a hint about the KV of a program to the engines that have run its requests. If no engine has, or the
        program has ended, send it to all engines."""
        placed = self._programs.get(serial)
        for replica in (placed and placed.replicas) or self.all:
            replica.send(command)

    def end(self, client: int, serial: int) -> None:
        """Forget a program that will start no more requests, and tell its engines that it has ended."""
        if (placed := self._programs.pop(serial, None)) is not None:
            for booked in placed.booked.values():
                self.fleet.end(*booked)
            for replica in placed.replicas:
                replica.send(wire.ProgramEnded(client, serial))
