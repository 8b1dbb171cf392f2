"""Programs for simulate_fleet.py, and a run of them in virtual time.

The programs are those of serving_work.py, with its texts as tokens: few-shot questions behind one prefix (W1, of which
a program asks 2 to 64), conversations (W2), trees of thought (W3), agents (W4) and questions about a document (W6).
Long texts, those of 1,000 tokens and more (examples, tools, documents), come from a library: the popularity of the
n-th is proportional to 1 / n.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent))
from serving_work import Call, Source, agents, chat, few_shot, long_context, tree_of_thought
from simulate_fleet_engine import Request, Size, VirtualEngine, n_known

from banyan.runtime.fleet.index import BLOCK, block_digests
from banyan.runtime.fleet.placement import StepSeconds

LONG = 1000
SHARES = {"few-shot": 0.25, "chat": 0.25, "tree of thought": 0.03, "agent": 0.37, "documents": 0.1}
"""Of the programs. The programs of the first, third and last kind fork."""
FORKS = {"few-shot", "tree of thought", "documents"}
WAITS = {"chat": 600, "agent": 150}
"""The mean time that a user thinks or a tool takes, in steps of an engine; exponential."""


class Library(Source):
    """Texts of characters, each of which is a token. n_texts: in the library, of each length."""

    def __init__(self, seed: int, n_texts: int) -> None:
        super().__init__([], f"fleet {seed}")
        self.chance = Random(seed)
        self._characters = "".join(map(chr, self.chance.choices(range(0x100, 0xD800), k=1 << 20)))
        self._weights = list(accumulate(1 / (1 + i) for i in range(n_texts)))
        self._texts: dict[tuple[int, int], str] = {}

    def text(self, n: int) -> str:
        if n < LONG:
            return self._slice(n)
        key = n, self.chance.choices(range(len(self._weights)), cum_weights=self._weights)[0]
        if key not in self._texts:
            self._texts[key] = self._slice(n)
        return self._texts[key]

    def _slice(self, n: int) -> str:
        start = int(self.chance.random() * (len(self._characters) - n))
        return self._characters[start : start + n]

    def program(self, kind: str) -> list[Call]:
        """The calls that a program starts with."""
        match kind:
            case "few-shot":
                return few_shot(self)[: int(2 ** self.chance.uniform(1, 6))]
            case "chat":
                return chat(self)[:1]
            case "tree of thought":
                return tree_of_thought(self)
            case "agent":
                return agents(self)[:1]
            case _:
                return long_context(self)


class SimulatedProgram(NamedTuple):
    """trunk: the number of tokens that its first requests share, of `requests[0]`."""

    kind: str
    arrival: float
    trunk: int
    requests: list[Request]


def programs(seed: int, n: int, rate: float, n_texts: int, step: float) -> list[SimulatedProgram]:
    """n programs that arrive with `rate` per second. step: seconds of an engine's step."""
    library, known, now, found = Library(seed, n_texts), dict[bytes, bytes](), 0.0, []
    kinds = library.chance.choices(list(SHARES), weights=list(SHARES.values()), k=n)
    for i, kind in enumerate(kinds):
        now += library.chance.expovariate(rate)
        calls = library.program(kind)
        trunk = _n_common([call.text for call in calls]) if len(calls) > 1 else len(calls[0].text)
        mean = step * WAITS.get(kind, 0)

        def grow(call: Call, before: str, program: int = i, trunk: int = trunk, mean: float = mean) -> Request:
            prompt = before + call.text
            text = prompt + library._slice(call.n_out)
            digests = [known.setdefault(one, one) for one in block_digests(b"", text.encode("utf-32-le"))]
            wait = library.chance.expovariate(1 / mean) if before and mean else 0.0
            n_own = len(call.text) if before else len(call.text) - trunk
            request = Request(program, digests, len(prompt), n_own, call.n_out, wait)
            request.children = [grow(child, text) for child in call.children]
            for child in request.children:
                child.parent = request
            return request

        found.append(SimulatedProgram(kind, now, trunk, [grow(call, "") for call in calls]))
    for number, request in enumerate(every_request(found)):
        request.number = number
    return found


def _n_common(texts: list[str]) -> int:
    first, last = min(texts), max(texts)
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def every_request(work: list[SimulatedProgram]) -> Iterator[Request]:
    stack = [request for program in work for request in reversed(program.requests)]
    while stack:
        request = stack.pop()
        yield request
        stack += request.children


class Policy(Protocol):
    """Chooses engines. A subclass of Router, or ours."""

    def place(self, requests: list[Request], trunk: list[bytes], n_trunk: int) -> list[int]:
        """The engines of requests that start together, behind a trunk."""

    def first(self, request: Request, n_computed: int) -> None:
        """The request has its first token; so many tokens of its prompt were not cached."""

    def ended(self, request: Request) -> None: ...

    def stored(self, engine: int, digests: list[bytes]) -> None: ...

    def removed(self, engine: int, digests: list[bytes]) -> None: ...


class Figures(NamedTuple):
    """Of the programs that arrived after the first quarter.

    hits: the share of the prompts' tokens that were cached; of_oracle: relative to one cache that is infinite. forks:
    mean seconds of programs that fork; all: of all, without waits. ttft, ttft_p99: seconds to a request's first token.
    busy: the share of the engines' time, until the last arrival. us: microseconds of CPU of a placement, the median.
    """

    hits: float
    of_oracle: float
    forks: float
    all: float
    ttft: float
    ttft_p99: float
    busy: float
    us: float


class FleetRun:
    """A run of programs on engines, under one policy."""

    def __init__(
        self, work: list[SimulatedProgram], policy: Policy, n_engines: int, size: Size, step_time: StepSeconds
    ) -> None:
        self._work, self._policy = work, policy
        self._engines = [
            VirtualEngine(i, size, step_time, self._first, self._ended, policy.stored, policy.removed)
            for i in range(n_engines)
        ]
        self._events: list[tuple[float, int, VirtualEngine | Request | SimulatedProgram, int]] = []
        self._n_events = 0
        self._n_left = [0] * len(work)  # requests of a program that have not ended
        self._waited = [0.0] * len(work)
        self._took = [0.0] * len(work)
        self._ttft: list[float] = []
        self._known: set[bytes] = set()
        self._n_prompt = self._n_computed = self._n_oracle = 0
        self._placing: list[float] = []
        self._busy = 0.0
        self._dirty: set[VirtualEngine] = set()
        self._n_warm = len(work) // 4

    def figures(self) -> Figures:
        for program in self._work:
            self._at(program.arrival, program)
        while self._events:
            now, _, what, version = heappop(self._events)
            if isinstance(what, VirtualEngine):
                if version != what.version:
                    continue
                self._advance(what, now)
            elif isinstance(what, Request):
                self._start([what], now)
            else:
                self._n_left[what.requests[0].program] += len(what.requests)
                self._start(what.requests, now, what)
                if what is self._work[-1]:
                    self._busy = sum(engine.busy for engine in self._engines) / now / len(self._engines)
            for engine in self._dirty:
                engine.version += 1
                if (when := engine.next_event()) < float("inf"):
                    self._at(when, engine, engine.version)
            self._dirty.clear()
        took = self._took[self._n_warm :]
        forks = [took for took, one in zip(took, self._work[self._n_warm :], strict=True) if one.kind in FORKS]
        self._ttft.sort()
        return Figures(
            1 - self._n_computed / self._n_prompt,
            (self._n_prompt - self._n_computed) / self._n_oracle,
            sum(forks) / len(forks),
            sum(took) / len(took),
            sum(self._ttft) / len(self._ttft),
            self._ttft[int(0.99 * len(self._ttft))],
            self._busy,
            statistics.median(self._placing) * 1e6,
        )

    def _at(self, when: float, what: VirtualEngine | Request | SimulatedProgram, version: int = 0) -> None:
        self._n_events += 1
        heappush(self._events, (when, self._n_events, what, version))

    def _start(self, requests: list[Request], now: float, program: SimulatedProgram | None = None) -> None:
        parent = requests[0].parent
        if program is not None:
            n_trunk, trunk = program.trunk, requests[0].digests[: program.trunk // BLOCK]
        else:
            assert parent is not None
            n_trunk, trunk = parent.n_prompt + parent.n_out, parent.digests
        before = time.thread_time()  # of the CPU, so that other processes do not count
        engines = self._policy.place(requests, trunk, n_trunk)
        self._placing.append(time.thread_time() - before)
        for request, number in zip(requests, engines, strict=True):
            request.engine, request.started = number, now
            engine = self._engines[number]
            if engine not in self._dirty:
                self._advance(engine, now)
            engine.take(request)

    def _advance(self, engine: VirtualEngine, now: float) -> None:
        self._dirty.add(engine)
        engine.advance(now)

    def _first(self, request: Request, now: float, n_computed: int) -> None:
        self._policy.first(request, n_computed)
        n_before = n_known(request.digests, self._known)
        self._known.update(request.digests[n_before:])
        if request.program >= self._n_warm:
            self._ttft.append(now - request.started)
            self._n_prompt += request.n_prompt
            self._n_computed += n_computed
            self._n_oracle += min(BLOCK * min(n_before, len(request.prompt)), request.n_prompt - 1)

    def _ended(self, request: Request, now: float) -> None:
        self._policy.ended(request)
        i = request.program
        self._n_left[i] += len(request.children) - 1
        if not request.children:
            if not self._n_left[i]:
                self._took[i] = now - self._work[i].arrival - self._waited[i]
        elif wait := request.children[0].wait:
            self._waited[i] += wait
            self._at(now + wait, request.children[0])
        else:
            self._start(request.children, now)
