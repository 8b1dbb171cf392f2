"""Programs for simulate_fleet.py, and a run of them in virtual time.

The programs are those of serving_work.py: few-shot questions after one prefix (W1, of which a program asks 2 to 64),
conversations (W2), trees of thought (W3), agents (W4) and questions about a document (W6). Texts of 1,000 tokens and
more (examples, tools, documents) come from a library: the popularity of the n-th is proportional to 1 / n.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from serving_work import Call, Source, agents, chat, few_shot, long_context, tree_of_thought
from simulate_fleet_engine import Request, Size, Turn, VirtualEngine, n_known
from simulate_fleet_policies import Ours, Router

from banyan.radix_cache.digests import prefix_digests
from banyan.runtime.fleet.index import BLOCK
from banyan.runtime.fleet.placement import StepSeconds

LONG = 1000
SHARES = {"few-shot": 0.25, "chat": 0.25, "tree of thought": 0.03, "agent": 0.37, "documents": 0.1}
"""Kind -> share of the programs."""
WAITS = {"chat": 600, "agent": 150}
"""Mean time that a user thinks or a tool takes, in engine steps; exponentially distributed."""


class Library(Source):
    """A source of texts in which each character is a token. n_texts: how many long texts of each length the library
    has."""

    def __init__(self, seed: int, n_texts: int) -> None:
        super().__init__([], f"fleet {seed}")
        self.chance = Random(seed)
        self._characters = "".join(map(chr, self.chance.choices(range(0x100, 0xD800), k=1 << 20)))
        self._weights = list(accumulate(1 / (1 + i) for i in range(n_texts)))
        self._texts: dict[tuple[int, int], str] = {}

    def text(self, n: int) -> str:
        if n < LONG:
            return self.new(n)
        key = n, self.chance.choices(range(len(self._weights)), cum_weights=self._weights)[0]
        if key not in self._texts:
            self._texts[key] = self.new(n)
        return self._texts[key]

    def new(self, n: int) -> str:
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
    kind: str
    arrival: float
    turns: list[Turn]

    @property
    def starts(self) -> list[Turn]:
        """The turns that begin when the program arrives."""
        return [turn for turn in self.turns if not turn.n_before]

    @property
    def is_fork(self) -> bool:
        """Whether the program begins with several requests."""
        return sum(len(turn.requests) for turn in self.starts) > 1


def programs(seed: int, n: int, rate: float, n_texts: int, step: float) -> list[SimulatedProgram]:
    """n programs that arrive with `rate` per second. step: seconds of an engine's step."""
    library, known, now, found = Library(seed, n_texts), dict[bytes, bytes](), 0.0, []
    kinds = library.chance.choices(list(SHARES), weights=list(SHARES.values()), k=n)
    for i, kind in enumerate(kinds):
        now += library.chance.expovariate(rate)
        calls = library.program(kind)
        trunk = n_common([call.text for call in calls]) if len(calls) > 1 else len(calls[0].text)
        mean = step * WAITS.get(kind, 0)
        program = SimulatedProgram(kind, now, [Turn(i, 0.0, 0)])

        def grow(
            call: Call,
            before: Request | None = None,
            text: str = "",
            program: SimulatedProgram = program,
            trunk: int = trunk,
            mean: float = mean,
        ) -> None:
            prompt = text + call.text
            text = prompt + library.new(call.n_out)
            n_own = len(call.text) if before else len(call.text) - trunk
            request = Request(program.turns[0].program, digests_of(text, known), len(prompt), n_own, call.n_out)
            if before is None:
                program.turns[0].requests.append(request)
            elif mean:
                before.turn = Turn(request.program, library.chance.expovariate(1 / mean), 1)
                before.turn.requests.append(request)
                program.turns.append(before.turn)
            else:
                request.parent = before
                before.children.append(request)
            for child in call.children:
                grow(child, request, text)

        for call in calls:
            grow(call)
        found.append(program)
    return numbered(found)


def digests_of(text: str, known: dict[bytes, bytes], page: int = BLOCK) -> list[bytes]:
    digests = prefix_digests(b"", text.encode("utf-32-le"), 0, 4 * page)
    return [known.setdefault(one, one) for one in digests[1:]]


def numbered(work: list[SimulatedProgram]) -> list[SimulatedProgram]:
    for number, request in enumerate(every_request(work)):
        request.number = number
    return work


def n_common(texts: list[str] | list[tuple[int, ...]]) -> int:
    """The length of the longest common prefix of all texts, in tokens."""
    first, last = min(texts), max(texts)
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def every_request(work: list[SimulatedProgram]) -> Iterator[Request]:
    for turn in (turn for program in work for turn in program.turns):
        stack = turn.requests[::-1]
        while stack:
            request = stack.pop()
            yield request
            stack += request.children


class Figures(NamedTuple):
    """The figures of a run, for the programs that arrived after the first quarter.

    hits        share of prompt tokens that were cached
    of_oracle   cached tokens, relative to those that one infinite cache would have
    forks, all  mean seconds of programs that fork, and of all programs, without their waits
    ttft        mean seconds to a request's first token; ttft_p99: their 99th percentile
    busy        share of time that engines spent in steps, until the last arrival
    us          median CPU microseconds of a placement
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
        self, work: list[SimulatedProgram], policy: Ours | Router, n_engines: int, size: Size, step_time: StepSeconds
    ) -> None:
        self._work, self._policy = work, policy
        self._engines = [
            VirtualEngine(i, size, step_time, self._first, self._ended, policy.stored, policy.removed)
            for i in range(n_engines)
        ]
        self._events: list[tuple[float, int, VirtualEngine | Turn | SimulatedProgram, int]] = []
        self._n_events = 0
        self._n_left = Counter(request.program for request in every_request(work))  # requests still to end
        self._before: dict[Turn, int] = {}  # how many events each turn still waits for
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
            elif isinstance(what, Turn):
                self._begin(what, now)
            else:
                for turn in what.starts:
                    self._begin(turn, now)
                if what is self._work[-1]:
                    self._busy = sum(engine.busy for engine in self._engines) / now / len(self._engines)
            for engine in self._dirty:
                engine.version += 1
                if (when := engine.next_event()) < float("inf"):
                    self._at(when, engine, engine.version)
            self._dirty.clear()
        took = self._took[self._n_warm :]
        forks = [took for took, one in zip(took, self._work[self._n_warm :], strict=True) if one.is_fork]
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

    def _at(self, when: float, what: VirtualEngine | Turn | SimulatedProgram, version: int = 0) -> None:
        self._n_events += 1
        heappush(self._events, (when, self._n_events, what, version))

    def _begin(self, turn: Turn, now: float) -> None:
        self._start(turn.requests, now)
        if turn.then is not None:
            self._passed(turn.then, now)

    def _passed(self, turn: Turn, now: float) -> None:
        """Note that one of the events that `turn` waits for has happened. After the last one, schedule the turn."""
        self._before[turn] = left = self._before.get(turn, turn.n_before) - 1
        if not left:
            self._waited[turn.program] += turn.wait
            self._at(now + turn.wait, turn)

    def _start(self, requests: list[Request], now: float) -> None:
        n_trunk = requests[0].n_prompt - requests[0].n_own
        trunk = requests[0].digests[: n_trunk // requests[0].page]
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
            self._n_oracle += min(request.page * min(n_before, len(request.prompt)), request.n_prompt - 1)

    def _ended(self, request: Request, now: float) -> None:
        self._policy.ended(request)
        i = request.program
        self._n_left[i] -= 1
        if not self._n_left[i]:
            self._took[i] = now - self._work[i].arrival - self._waited[i]
        if request.children:
            self._start(request.children, now)
        if request.turn is not None:
            self._passed(request.turn, now)
