"""Policies for simulate_fleet.py: ours, and those of other routers.

The other policies place each request by itself, by its text, as routers do. They use the same kind of index as ours,
with pages where ours has blocks of 64 tokens. Unlike a real router's, the index learns immediately what an engine
stored and evicted, so these policies do better here than their originals.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from simulate_fleet_engine import Request

from banyan.runtime.fleet.index import BLOCK, PrefixIndex, blocks_of
from banyan.runtime.fleet.placement import Branch, Demand, Fleet, ProgramPlacement, StepSeconds

WEIGHTS = b"weights"


class Ours:
    """Banyan's policy: the server's `Fleet` places whole programs and forks. sees: which requests of a program are
    known when it starts: "all", with all forks to come, or only the "next" ones. page: tokens of a page, which has one
    digest."""

    def __init__(self, n_engines: int, step_time: StepSeconds, page: int = BLOCK, sees: str = "all") -> None:
        self._fleet, self._page, self._sees = Fleet(step_time), page, sees
        for i in range(n_engines):
            self._fleet.add(str(i), WEIGHTS)
        self._n_left: dict[tuple[int, int], int] = {}  # requests of a branch of a placement that have not ended

    def place(self, requests: list[Request], trunk: list[bytes], n_trunk: int) -> list[int]:
        parent = requests[0].parent
        if parent is not None and self._sees == "all":  # was placed with its parent
            for request in requests:
                request.placed = parent.placed
            return [parent.engine] * len(requests)
        branches = [self._branch(request) for request in requests]
        placement = self._fleet.place(Demand(blocks_of(trunk, 0, self._page), n_trunk, branches, WEIGHTS))
        for i, request in enumerate(requests):
            request.placed = placement, i
        return [int(name) for name in placement.replicas]

    def _branch(self, request: Request) -> Branch:
        """The work of a request and, if they are known, of all its descendants."""
        if self._sees != "all" or not request.children:
            return Branch(request.n_own, request.n_out, request.n_out)
        below = [self._branch(child) for child in request.children]
        return Branch(
            request.n_own + sum(one.n_prompt for one in below),
            request.n_out + sum(one.n_out for one in below),
            request.n_out + max(one.n_steps for one in below),
        )

    def first(self, request: Request, n_computed: int) -> None:
        placement, i = _placed(request)
        self._fleet.computed(placement, i, n_prompt=n_computed)

    def ended(self, request: Request) -> None:
        placement, i = _placed(request)
        self._fleet.computed(placement, i, n_out=request.n_out)
        if self._sees != "all":
            self._fleet.end(placement, i)
            return
        key = id(placement), i
        left = self._n_left.pop(key, 1) - 1 + len(request.children)
        if left:
            self._n_left[key] = left
        else:
            self._fleet.end(placement, i)

    def stored(self, engine: int, digests: list[bytes], first: int) -> None:
        self._fleet.stored(str(engine), blocks_of(digests, first, self._page))

    def removed(self, engine: int, digests: list[bytes]) -> None:
        self._fleet.removed(str(engine), digests)


def _placed(request: Request) -> tuple[ProgramPlacement, int]:
    placed = request.placed
    assert isinstance(placed, tuple)
    return placed


class Router:
    """Places requests one by one. Load is the number of requests that run or wait in an engine."""

    def __init__(self, n_engines: int) -> None:
        self.n = n_engines
        self.loads = [0.0] * n_engines
        self.all = (1 << n_engines) - 1
        self.index = PrefixIndex()
        self._order: list[tuple[float, int, int]] = [(0.0, 0, i) for i in range(n_engines)]
        self._keys = list(self._order)
        self._n_placed = 0

    def place(self, requests: list[Request], trunk: list[bytes], n_trunk: int) -> list[int]:
        return [self._place(request) for request in requests]

    def _place(self, request: Request) -> int:
        prompt = request.prompt
        holders = self.index.holders(prompt, self.all)
        n_found, best = (holders[0][0], self.least(holders[0][1])) if holders else (0, -1)
        engine = self.choose(request, n_found, best)
        self.index.stored(1 << engine, prompt)
        self.add(engine, self.work(request, n_found, engine))
        return engine

    def work(self, request: Request, n_found: int, engine: int) -> float:
        """The load that a request adds."""
        return 1.0

    def choose(self, request: Request, n_found: int, best: int) -> int:
        """The engine for a request. n_found: pages of the longest prefix of its prompt that any engine has. best: the
        least loaded engine that has this prefix; -1: none."""
        raise NotImplementedError

    def least(self, among: int) -> int:
        """The least loaded engine of the bit mask `among`; of equals, the one whose last request is the oldest."""
        if among.bit_count() ** 2 < self.n:
            few = []
            while among:
                few.append(among.bit_length() - 1)
                among ^= 1 << few[-1]
            return min(few, key=self._keys.__getitem__)
        return next(i for _, _, i in self._order if among >> i & 1)

    @property
    def lightest(self) -> int:
        return self._order[0][2]

    @property
    def highest_load(self) -> float:
        return self._order[-1][0]

    def add(self, engine: int, load: float) -> None:
        self.loads[engine] += load
        del self._order[bisect_left(self._order, self._keys[engine])]
        if load > 0:
            self._n_placed += 1
        turn = self._n_placed if load > 0 else self._keys[engine][1]
        self._keys[engine] = self.loads[engine], turn, engine
        insort(self._order, self._keys[engine])

    def first(self, request: Request, n_computed: int) -> None:
        """Note that a request got its first token. n_computed: tokens of its prompt that were not cached."""

    def ended(self, request: Request) -> None:
        self.add(request.engine, -1.0)

    def stored(self, engine: int, digests: Sequence[bytes], first: int) -> None:
        self.index.stored(1 << engine, digests)

    def removed(self, engine: int, digests: Sequence[bytes]) -> None:
        self.index.removed(1 << engine, digests)


class RoundRobin(Router):
    def _place(self, request: Request) -> int:
        self._n_placed += 1
        return self._n_placed % self.n

    def ended(self, request: Request) -> None:
        pass

    def stored(self, engine: int, digests: Sequence[bytes], first: int) -> None:
        pass

    def removed(self, engine: int, digests: Sequence[bytes]) -> None:
        pass


class LeastLoaded(Router):
    def choose(self, request: Request, n_found: int, best: int) -> int:
        return self.lightest


class SGLang(Router):
    """SGLang's router. While the loads are balanced: the engine with the longest match, if the match is more than
    `threshold` of the prompt, else the engine with the smallest tree. While they are not: the least loaded engine."""

    def __init__(self, n_engines: int, threshold: float, absolute: int, relative: float) -> None:
        super().__init__(n_engines)
        self._threshold, self._absolute, self._relative = threshold, absolute, relative
        self._trees = [(0, i) for i in range(n_engines)]
        self._sizes = [0] * n_engines

    def choose(self, request: Request, n_found: int, best: int) -> int:
        high, low = self.highest_load, self.loads[self.lightest]
        if high - low > self._absolute and high > self._relative * low:
            return self.lightest
        if request.page * n_found > self._threshold * request.n_prompt:
            return best
        return self._trees[0][1]

    def _place(self, request: Request) -> int:
        engine = super()._place(request)
        del self._trees[bisect_left(self._trees, (self._sizes[engine], engine))]
        self._sizes[engine] += request.n_own  # the tokens added to its tree; nothing is evicted within minutes
        insort(self._trees, (self._sizes[engine], engine))
        return engine


class Gate(Router):
    """SGLang's per-request gate: the engine with the longest match, unless its requests outnumber those of the least
    loaded engine by more than `gate`."""

    def __init__(self, n_engines: int, gate: int) -> None:
        super().__init__(n_engines)
        self._gate = gate

    def choose(self, request: Request, n_found: int, best: int) -> int:
        if best < 0 or self.loads[best] > self.loads[self.lightest] + self._gate:
            return self.lightest
        return best


class Preble(Router):
    """Preble's rule, which chooses between the engine with the longest match and the least loaded one. If the match is
    more than half of the prompt: the former, unless its load is more than `imbalance` times the least load plus the
    request's work. Otherwise: the one with the lower sum of load and recomputation. Load is seconds of work."""

    def __init__(self, n_engines: int, step_time: StepSeconds, imbalance: float) -> None:
        super().__init__(n_engines)
        self._time, self._imbalance = step_time, imbalance
        self._work: dict[int, float] = {}

    def choose(self, request: Request, n_found: int, best: int) -> int:
        lightest = self.lightest
        if best < 0:
            return lightest
        if 2 * request.page * n_found > request.n_prompt:
            own = self._time.prompt * request.n_own + self._time.decode * request.n_out
            is_fair = self.loads[best] <= self._imbalance * self.loads[lightest] + own
            return best if is_fair else lightest
        saved = self._time.prompt * request.page * n_found
        return best if self.loads[best] - saved <= self.loads[lightest] else lightest

    def work(self, request: Request, n_found: int, engine: int) -> float:
        has_it = bool(self.index.holders(request.prompt[:n_found], 1 << engine)) if n_found else False
        missing = request.n_prompt - request.page * n_found * has_it
        work = self._work[request.number] = self._time.prompt * missing + self._time.decode * request.n_out
        return work

    def ended(self, request: Request) -> None:
        self.add(request.engine, -self._work.pop(request.number))
