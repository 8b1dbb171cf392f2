"""Simulates the engine's scheduler and radix tree without a model, in virtual time.

A step takes the time that `Cost` computes for it; tokens are hashes of (request, position). Everything else is as in an
engine: the same scheduler, the same tree, the same orders and reports.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from banyan.radix_cache.cache import Cache
from banyan.runtime.engine.scheduling.kv_hints import KVHintReceiver
from banyan.runtime.engine.scheduling.request import Plan, Result
from banyan.runtime.engine.scheduling.scheduler import Scheduler
from banyan.runtime.engine.scheduling.validate import EngineLimits
from banyan.runtime.protocol.wire import (
    Abort,
    EngineCommand,
    EvictFirst,
    Failed,
    Finish,
    Hold,
    ProgramEnded,
    Release,
    Run,
    Step,
)

VOCABULARY = 1 << 20


class Cost(NamedTuple):
    """The seconds of a step: fixed, per new token, and per pair of a new token and a token of its context. The defaults
    are those of the pocket model on one core of an AMD EPYC."""

    step: float = 2e-3
    row: float = 0.25e-3
    read: float = 0.6e-6

    def of(self, plan: Plan) -> float:
        seconds = self.step
        for work in plan.works:
            seconds += work.n_new * (self.row + self.read * (work.start + work.n_new / 2))
        return seconds


def token(rid: int, position: int) -> int:
    """The token that a request generates at a position."""
    return (rid * 2654435761 + position * 40503) % VOCABULARY


class Machine:
    """A scheduler in virtual time.

    now       virtual seconds since the start
    busy      virtual seconds that were spent in steps
    cpu       real CPU seconds that the scheduler took
    n_steps   number of steps
    lengths   rid -> the number of tokens after which the request stops by itself
    """

    def __init__(
        self,
        *,
        n_pages: int,
        page: int = 16,
        context: int = 1 << 20,
        max_running: int = 64,
        step_tokens: int = 512,
        cost: Cost | None = None,
        cache: bool = True,
        policy: str = "lru",
        **options: object,
    ) -> None:
        self.cache = Cache(n_pages, page, cache, policy)
        limits = EngineLimits(context, VOCABULARY + 1, max_running, step_tokens)
        self.scheduler = Scheduler(self.cache, limits, **options)  # type: ignore[arg-type]
        self.kv_hints = KVHintReceiver(self.cache)
        self.cost = cost or Cost()
        self.now = self.busy = self.cpu = 0.0
        self.n_steps = 0
        self.lengths: dict[int, int] = {}
        self.on_finish: Callable[[Finish], None] = lambda finish: None
        self.on_failed: Callable[[Failed], None] = lambda failed: None
        self.on_step: Callable[[Plan, Step, float], None] = lambda plan, step, seconds: None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call `action` at virtual time `when`."""
        heappush(self._events, (when, next(self._numbers), action))

    def take(self, order: EngineCommand) -> None:
        before = time.thread_time()
        if isinstance(order, Hold | Release | EvictFirst):
            self.kv_hints.take(order, self.now)
        elif isinstance(order, Run | Abort | ProgramEnded):
            self.scheduler.take(order)
        self.cpu += time.thread_time() - before

    def step(self) -> bool:
        """Run one step, or advance the time to the next event. Returns False if nothing is left to do."""
        while self._events and self._events[0][0] <= self.now:
            heappop(self._events)[2]()
        before = time.thread_time()
        plan = self.scheduler.plan(self.now)
        self.cpu += time.thread_time() - before
        seconds = 0.0
        if plan is not None:
            result, seconds = self.compute(plan), self.cost.of(plan)
            before = time.thread_time()
            self.scheduler.commit(plan, result)
            self.cpu += time.thread_time() - before
            self.n_steps += 1
        before = time.thread_time()
        report, failed = self.scheduler.report()
        self.cpu += time.thread_time() - before
        self.now += seconds
        self.busy += seconds
        if plan is not None:
            self.on_step(plan, report, seconds)
        for finish in report.finished:
            self.lengths.pop(finish.rid, None)
            self.on_finish(finish)
        for one in failed:
            self.on_failed(one)
        if plan is None and not report.finished and not failed:
            if not self._events:
                return False
            self.now = max(self.now, self._events[0][0])
        return True

    def compute(self, plan: Plan) -> Result:
        """Return the result of a step, with made-up tokens in place of the model's."""
        ids = []
        for work in plan.works:
            if work.draws:
                request = work.request
                is_over = request.n_out >= self.lengths.get(request.rid, 1 << 30)
                ids.append(VOCABULARY if is_over else token(request.rid, request.n_total))
        scores = {w.request.rid: [-1.0] * w.n_scored for w in plan.works if w.n_scored}
        nothing: dict[str, Any] = {field: {} for field in Result._fields}  # logprobs and the like
        return Result(**nothing | {"ids": ids, "scores": scores})

    def run(self, limit: int = 1 << 60) -> None:
        """Step until nothing is left to do. TimeoutError after `limit` steps."""
        for _ in range(limit):
            if not self.step():
                return
        raise TimeoutError(f"not done after {limit} steps: {self.scheduler.stats()}")


STOP = array("i", [VOCABULARY]).tobytes()
"""The `stop_ids` of all requests: the token with which the model ends an output."""


def ids(tokens: Iterable[int]) -> bytes:
    return array("i", tokens).tobytes()
