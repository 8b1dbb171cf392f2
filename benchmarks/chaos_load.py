"""The engine's scheduler under load, in virtual time: for chaos.py. Programs are those of simulate_work.py."""

from __future__ import annotations

import gc
import statistics
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from simulate import STOP, Cost, Machine, ids
from simulate_work import Body, Crowd, Gen, State, Steps, Wait, words

from banyan.runtime.protocol.wire import Finish, Over, Run, Sampling

GPU = Cost(step=10e-3, row=0.06e-3, read=1e-9)
"""A model of 8 GB on a GPU: the weights are read in 10 ms; up to 160 rows a step cost next to nothing more."""


class Timed(Crowd):
    """Programs, and how long each took, from the time it came. beside: (time, program) that begins when it says so."""

    def __init__(self, machine: Machine, bodies: Iterable[tuple[float, Body]], **options: bool) -> None:
        bodies = list(bodies)
        self.born = dict(enumerate(start for start, _ in bodies))
        self.took: dict[int, float] = {}
        super().__init__(machine, bodies, **options)

    def _end(self, program: object) -> None:
        serial: int = program.serial  # type: ignore[attr-defined]
        self.took[serial] = self.machine.now - self.born[serial]
        super()._end(program)  # type: ignore[arg-type]


def p99(values: Iterable[float]) -> float:
    some = sorted(values)
    return some[min(len(some) - 1, int(0.99 * len(some)))]


class Overload(NamedTuple):
    """peak, overloaded: tokens a second of virtual time. worst: the longest that a program took, over the median."""

    peak: float
    overloaded: float
    worst: float


def equal(chance: Random, n: int) -> list[Body]:
    """Programs of equal work: 200 tokens that all have, 60 of their own, two outputs of 30."""
    system = words(chance, 200)

    def one() -> Body:
        own, more = words(chance, 60), words(chance, 20)

        def body(state: State) -> Steps:
            state.ids += system + own
            yield Gen(30)
            state.ids += more
            yield Gen(30)

        return body

    return [one() for _ in range(n)]


def overload(n: int, n_few: int = 32) -> Overload:
    """n programs at once, beside as many as just keep the machine busy."""
    peak = closed(n_few)
    many = Machine(n_pages=1024, max_running=16, cost=GPU)
    crowd = Timed(many, ((0.0, body) for body in equal(Random(0), n)))
    many.run()
    many.scheduler.check()
    took = crowd.took.values()
    return Overload(peak, many.scheduler.counts["generated_tokens"] / many.now, max(took) / statistics.median(took))


def closed(n_present: int) -> float:
    """Tokens a second where always so many programs are there."""
    m = Machine(n_pages=1024, max_running=16, cost=GPU)
    left = iter(equal(Random(1), 20 * n_present))

    class Closed(Crowd):
        def _end(self, program: object) -> None:
            super()._end(program)  # type: ignore[arg-type]
            if (body := next(left, None)) is not None:
                self._begin(next(serials), body)

    serials = count(n_present)
    Closed(m, [(0.0, next(left)) for _ in range(n_present)])
    m.run()
    return m.scheduler.counts["generated_tokens"] / m.now


def cpu_of_a_step(n_waiting: int, has_turnover: bool) -> float:
    """ms of the scheduler's CPU time in a step of up to 64 requests with so many waiting, of 5 clients: the median of 5
    rounds. With turnover outputs have 16 tokens in the mean, so that a few end and start in each step; their programs
    have three requests each, and all share 200 tokens. Else all decode."""
    m = Machine(n_pages=64 * 32, max_running=64, cost=GPU)
    chance, serial = Random(0), count()
    shared = words(chance, 200 if has_turnover else 0)

    def send() -> None:
        rid = next(serial)
        m.lengths[rid] = chance.randint(1, 32) if has_turnover else 1 << 20
        prompt = shared + words(chance, 60)
        order = rid // 3, rid % 3
        m.take(Run(rid, prompt.tobytes(), Sampling(max_tokens=400), STOP, order=order, client=rid % 5))

    m.on_finish = lambda finish: send()
    for _ in range(64 + n_waiting):
        send()
    for _ in range(60):
        m.step()
    rounds = []
    for _ in range(5):
        before = m.cpu
        for _ in range(40):
            m.step()
        rounds.append(1000 * (m.cpu - before) / 40)
    return statistics.median(rounds)


def fairness(schedule: str, n: int) -> float:
    """Seconds that a client's 20 programs take in the mean, which come beside another's n."""
    m = Machine(n_pages=2048, max_running=16, cost=GPU, schedule=schedule)
    chance = Random(0)
    born: dict[int, float] = {}
    took: list[float] = []
    rids = count()

    def send(client: int) -> None:
        rid = next(rids)
        m.lengths[rid] = 40
        if client:
            born[rid] = m.now
        m.take(Run(rid, words(chance, 150).tobytes(), Sampling(max_tokens=64), STOP, order=(rid,), client=client))

    for _ in range(n):
        send(0)
    for k in range(20):
        m.at(2.0 + 0.2 * k, lambda: send(1))
    m.on_finish = lambda finish: took.append(m.now - born[finish.rid]) if finish.rid in born else None
    m.run()
    return statistics.mean(took)


class Gaps(NamedTuple):
    """Seconds between two tokens of a running decode, p99: alone, beside long prompts; and what a chunk's step takes
    longer than one of decodes."""

    alone: float
    beside: float
    chunk: float


def latency(step_tokens: int = 512) -> Gaps:
    """16 decodes, and a prompt of 16,000 tokens every other second."""

    def play(n_long: int) -> tuple[float, float]:
        m = Machine(n_pages=8192, max_running=64, cost=GPU, step_tokens=step_tokens)
        chance, last, gaps, longest = Random(0), dict[int, float](), list[float](), [0.0]

        def on_step(plan: object, step: object, seconds: float) -> None:
            longest[0] = max(longest[0], seconds)
            for rid in memoryview(step.rids).cast("q"):  # type: ignore[attr-defined]
                if rid < 16:
                    if rid in last:
                        gaps.append(m.now - last[rid])
                    last[rid] = m.now

        m.on_step = on_step  # type: ignore[assignment]
        for rid in range(16):
            m.lengths[rid] = 900
            m.take(Run(rid, words(chance, 100).tobytes(), Sampling(max_tokens=1000), STOP, order=(rid,)))
        for k in range(n_long):
            m.lengths[100 + k] = 4
            run = Run(100 + k, words(chance, 16_000).tobytes(), Sampling(max_tokens=8), STOP, order=(100 + k,))
            m.at(1.0 + 2.0 * k, lambda run=run: m.take(run))  # type: ignore[misc]
        m.run()
        return p99(gaps), longest[0]

    (alone, usual), (beside, longest) = play(0), play(4)
    return Gaps(alone, beside, longest - min(usual, alone))


PARTS: dict[str, dict[str, object]] = {
    "fcfs + LRU": {"schedule": "fcfs"},
    "dfs": {"schedule": "dfs", "has_set": False},
    "dfs + working set": {"schedule": "dfs"},
    "dfs + working set + waits foreseen": {"schedule": "dfs", "foresees": True},
}
POLICIES: dict[str, dict[str, object]] = {
    f"schedule={name}": {"schedule": name, "foresees": True} for name in ("dfs", "fcfs", "lpm", "fair")
}


def agent(chance: Random, systems: list[list[int]], i: int) -> Body:
    """One that thinks, waits for a tool and reads what that says, 3 to 14 times."""
    rounds = [
        (chance.randint(20, 120), words(chance, chance.randint(200, 1500)), chance.lognormvariate(0.3, 1.2))
        for _ in range(chance.choice((3, 4, 5, 6, 8, 10, 14)))
    ]
    own = words(chance, chance.randint(500, 2000))

    def body(state: State) -> Steps:
        state.ids += systems[i % len(systems)] + own  # type: ignore[operator]
        for k, (n_out, seen, seconds) in enumerate(rounds):
            if k:
                yield Wait(seconds)
                state.ids += seen
            yield Gen(n_out)

    return body


class Agents(NamedTuple):
    mean: float
    p99: float
    computed: int


def agents(part: str, n: int, n_present: int, share: float) -> Agents:
    """n agents, so many of them at a time, in a cache of `share` of what those have in their texts at the most."""
    options = dict((PARTS | POLICIES)[part])
    has_set, foresees = options.pop("has_set", True), bool(options.pop("foresees", False))
    chance = Random(0)
    systems = [words(chance, 1500) for _ in range(4)]
    bodies = [agent(chance, systems, i) for i in range(n)]  # type: ignore[arg-type]

    def play(n_pages: int, is_measured: bool, **options: object) -> Timed:
        m = Machine(n_pages=n_pages, max_running=16, cost=GPU, **options)  # type: ignore[arg-type]
        if not has_set:
            m.scheduler.begun = None
        left, serials = iter(bodies[n_present:]), count(n_present)

        class Closed(Timed):
            def _end(self, program: object) -> None:
                super()._end(program)
                if (body := next(left, None)) is not None:
                    serial = next(serials)
                    self.born[serial] = self.machine.now
                    self._begin(serial, body)

        crowd = Closed(m, ((0.0, body) for body in bodies[:n_present]), foresees=foresees, is_measured=is_measured)
        crowd.run()
        m.scheduler.check()
        return crowd

    n_texts = WORKING_SETS.get((n, n_present)) or play(1 << 16, True, schedule="fcfs").n_present
    WORKING_SETS[n, n_present] = n_texts
    crowd = play(int(share * n_texts) // 16, False, **options)
    took = list(crowd.took.values())
    return Agents(statistics.mean(took), p99(took), crowd.machine.scheduler.counts["computed_tokens"])


WORKING_SETS: dict[tuple[int, int], int] = {}


def memory(n_first: int, n_last: int, note: Callable[[str], None] = lambda text: None) -> tuple[float, float]:
    """KiB that Python holds after so many steps of the loop, while programs come and go."""
    m = Machine(n_pages=128, max_running=16, cost=GPU)
    serial = count()
    chance = Random(0)

    def send() -> None:
        rid = next(serial)
        m.lengths[rid] = chance.randint(1, 4)
        m.take(Run(rid, ids(chance.choices(range(50), k=20)), Sampling(max_tokens=16), STOP, order=(rid,)))

    def end(finish: Finish) -> None:
        m.take(Over(0, finish.rid))
        send()

    m.on_finish = end
    for _ in range(24):
        send()
    held: list[float] = []
    tracemalloc.start()
    try:
        for k in range(1, n_last + 1):
            m.step()
            if k in (n_first, n_last):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0] / 1024)
                note(f"{k} steps: {held[-1]:.0f} KiB")
    finally:
        tracemalloc.stop()
    return held[0], held[-1]
