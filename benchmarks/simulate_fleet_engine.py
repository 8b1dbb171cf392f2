"""Virtual engines for simulate_fleet.py: continuous batching in virtual time, and a cache of pages with LRU eviction.

Between two events the engine's steps are alike, so its decodes and the prompt that it computes advance at constant
rates: an event costs microseconds, whatever the number of steps.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Container
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from banyan.runtime.fleet.index import BLOCK
from banyan.runtime.fleet.placement import StepSeconds


class Size(NamedTuple):
    """Limits of an engine. n_pages: pages of KV, by default 65,536 tokens. The other fields are options of the
    configuration."""

    n_pages: int = 65_536 // BLOCK
    max_running: int = 64
    step_tokens: int = 512


class Request:
    """One generation. `engine`, `started` and `placed` are set by each run.

    program     the number of its program
    digests     digests of the pages of its whole text, prompt and output
    prompt      digests of the pages of its prompt
    page        tokens of a page
    n_prompt    tokens of the prompt
    n_own       tokens of the prompt after its parent's text, or after the program's trunk
    n_out       tokens of the output
    children    the requests of the fork that starts when this request, their parent, has ended
    turn        the turn that waits for the end of this request
    """

    __slots__ = ("children", "digests", "engine", "n_out", "n_own", "n_prompt", "number", "page", "parent", "placed",
                 "program", "prompt", "started", "turn")  # fmt: skip

    def __init__(
        self, program: int, digests: list[bytes], n_prompt: int, n_own: int, n_out: int, page: int = BLOCK
    ) -> None:
        self.program, self.digests, self.page = program, digests, page
        self.prompt = digests[: n_prompt // page]
        self.n_prompt, self.n_own, self.n_out = n_prompt, n_own, n_out
        self.children: list[Request] = []
        self.parent: Request | None = None
        self.turn: Turn | None = None
        self.number = 0
        self.engine, self.started = -1, 0.0
        self.placed: object = None


class Turn:
    """Requests that a client starts together, after a common prefix, the trunk.

    program    the number of its program
    wait       seconds that a tool or a user takes, after the events that the turn waits for
    n_before   how many events the turn waits for: ends of requests, and the start of the turn before it; 0: the turn
               starts with the program
    then       the next turn, which waits for the start of this one, but need not wait for its end
    """

    __slots__ = ("n_before", "program", "requests", "then", "wait")

    def __init__(self, program: int, wait: float, n_before: int) -> None:
        self.program, self.wait, self.n_before = program, wait, n_before
        self.requests: list[Request] = []
        self.then: Turn | None = None


class VirtualEngine:
    """One replica. on_first: called at a request's first token, with the number of its prompt tokens that were
    computed. on_end: called when a request has ended. stored: called with the digests of new pages of a text, and the
    index of the first of them in the text. removed: called with the digests of evicted pages."""

    __slots__ = ("_cache", "_left", "_missing", "_prefill", "_running", "_size", "_step_time", "_turn", "_waiting",
                 "busy", "now", "number", "on_end", "on_first", "removed", "stored", "version")  # fmt: skip

    def __init__(
        self,
        number: int,
        size: Size,
        step_time: StepSeconds,
        on_first: Callable[[Request, float, int], None],
        on_end: Callable[[Request, float], None],
        stored: Callable[[int, list[bytes], int], None],
        removed: Callable[[int, list[bytes]], None],
    ) -> None:
        self.number, self._size, self._step_time = number, size, step_time
        self.on_first, self.on_end, self.stored, self.removed = on_first, on_end, stored, removed
        self.now = self.busy = 0.0
        self.version = 0  # number of its newest event; older events are void
        self._cache: OrderedDict[bytes, None] = OrderedDict()
        self._waiting: deque[Request] = deque()
        self._prefill: Request | None = None
        self._missing, self._left = 0, 0.0  # of _prefill: tokens that were not cached, and tokens left to compute
        self._turn = 0.0  # decode steps so far
        self._running: list[tuple[float, int, Request]] = []  # a heap of (value of _turn when it ends, ...)

    def take(self, request: Request) -> None:
        self._waiting.append(request)

    def next_event(self) -> float:
        """The time at which the next prefill or request ends; infinity: nothing runs."""
        if self._prefill is None:
            self._next_prefill()
        step, chunk = self._step()
        when = float("inf")
        if self._running:
            when = (self._running[0][0] - self._turn) * step
        if self._prefill is not None:
            when = min(when, self._left / chunk * step)
        return self.now + max(when, 0.0)

    def advance(self, now: float) -> None:
        """Compute until `now`, which must not be after the next event of this engine."""
        elapsed, self.now = now - self.now, now
        if self._prefill is None and not self._running:
            return
        self.busy += elapsed
        step, chunk = self._step()
        n_steps = elapsed / step
        self._turn += n_steps
        self._left -= n_steps * chunk
        while self._running and self._running[0][0] <= self._turn + 1e-6:
            request = heappop(self._running)[2]
            self._keep(request.digests, n_known(request.digests, self._cache))
            self.on_end(request, now)
        if self._prefill is not None and self._left <= 1e-6:
            request, self._prefill = self._prefill, None
            self.on_first(request, now, self._missing)
            heappush(self._running, (self._turn + request.n_out, request.number, request))

    def _step(self) -> tuple[float, int]:
        """The seconds of a step with the requests that run now, and how many prompt tokens such a step computes."""
        n, (fixed, prompt, decode) = len(self._running), self._step_time
        chunk = 0 if self._prefill is None else self._size.step_tokens - n
        return fixed + decode * n + prompt * chunk, chunk

    def _next_prefill(self) -> None:
        """Start the next request in order of arrival, if fewer than max_running run."""
        if not self._waiting or len(self._running) >= self._size.max_running:
            return
        request = self._prefill = self._waiting.popleft()
        prompt = request.prompt
        n_found = n_known(prompt, self._cache)
        self._missing = request.n_prompt - min(request.page * n_found, request.n_prompt - 1)
        self._left = float(self._missing)
        self._keep(prompt, n_found)

    def _keep(self, digests: list[bytes], n_found: int) -> None:
        """Mark a text's pages as used and store those after the first n_found. Evicts the least recently used pages."""
        cache = self._cache
        for digest in reversed(digests):  # a text is evicted from its end
            cache[digest] = None
            cache.move_to_end(digest)
        if n_found < len(digests):
            self.stored(self.number, digests[n_found:], n_found)
        if len(cache) > self._size.n_pages:
            self.removed(self.number, [cache.popitem(last=False)[0] for _ in range(len(cache) - self._size.n_pages)])


def n_known(digests: list[bytes], known: Container[bytes]) -> int:
    """How many of a text's pages are known. A page is known only if all pages before it are."""
    low, high = 0, len(digests)
    while low < high:
        middle = (low + high) // 2
        if digests[middle] in known:
            low = middle + 1
        else:
            high = middle
    return low
