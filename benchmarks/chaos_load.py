"""The engine's scheduler under load, in virtual time; used by chaos.py. Programs are as in simulate_work.py."""

from __future__ import annotations

import gc
import statistics
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import percentile
from simulate import STOP, Cost, Machine, ids
from simulate_work import Body, Crowd, Gen, State, Steps, Wait, words

from banyan.runtime.protocol.wire import Finish, ProgramEnded, Run, Sampling

GPU = Cost(step=10e-3, row=0.06e-3, read=1e-9)
"""A model of 8 GB on a GPU: a step takes 10 ms to read the weights, and 0.06 ms per row, so that about 160 rows double
its time."""


class Overload(NamedTuple):
    """peak, overloaded: generated tokens per virtual second, with a few programs at a time and with all at once. worst:
    the longest time of a program over the median, with all at once."""

    peak: float
    overloaded: float
    worst: float


def equal(chance: Random, n: int) -> list[Body]:
    """n programs of equal shape: 200 shared tokens and 60 of their own, an output of 30, 20 more tokens, and another
    output of 30."""
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
    """Compare n programs at once with a run of n_few programs at a time, which just keep the machine busy."""
    few = Machine(n_pages=1024, max_running=16, cost=GPU)
    bodies = equal(Random(1), 20 * n_few)
    Crowd(few, ((0.0, body) for body in bodies[:n_few]), backlog=bodies[n_few:]).run()
    many = Machine(n_pages=1024, max_running=16, cost=GPU)
    crowd = Crowd(many, ((0.0, body) for body in equal(Random(0), n)))
    crowd.run()
    many.scheduler.check()
    peak, overloaded = (m.scheduler.counts["generated_tokens"] / m.now for m in (few, many))
    took = crowd.took.values()
    return Overload(peak, overloaded, max(took) / statistics.median(took))


def cpu_of_a_step(n_waiting: int, has_turnover: bool) -> float:
    """The median of the first 5 values of `cpu_of_steps`."""
    return statistics.median(islice(cpu_of_steps(n_waiting, has_turnover), 5))


def cpu_of_steps(n_waiting: int, has_turnover: bool) -> Iterator[float]:
    """Yield the scheduler's CPU ms per step, as the mean of 40 steps at a time, with 64 running and n_waiting queued
    requests of 5 clients.

    With turnover, outputs have 16 tokens on average, so that a few requests end and start in each step; each program
    has three requests, and all share 200 tokens. Without turnover, all running requests decode.
    """
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
    while True:
        before = m.cpu
        for _ in range(40):
            m.step()
        yield 1000 * (m.cpu - before) / 40


def fairness(schedule: str, n: int) -> float:
    """The mean virtual seconds that 20 programs of one client take, which arrive while another client has n
    programs."""
    m = Machine(n_pages=2048, max_running=16, cost=GPU, schedule=schedule)
    chance = Random(0)
    started: dict[int, float] = {}
    took: list[float] = []
    rids = count()

    def send(client: int) -> None:
        rid = next(rids)
        m.lengths[rid] = 40
        if client:
            started[rid] = m.now
        m.take(Run(rid, words(chance, 150).tobytes(), Sampling(max_tokens=64), STOP, order=(rid,), client=client))

    for _ in range(n):
        send(0)
    for k in range(20):
        m.at(2.0 + 0.2 * k, lambda: send(1))
    m.on_finish = lambda finish: took.append(m.now - started[finish.rid]) if finish.rid in started else None
    m.run()
    return statistics.mean(took)


class Gaps(NamedTuple):
    """p99 of the virtual seconds between two tokens of a decode: alone, and beside long prompts. chunk: by how many
    seconds a step with a prefill chunk is longer than a step of decodes."""

    alone: float
    beside: float
    chunk: float


def latency(step_tokens: int = 512) -> Gaps:
    """Run 16 decodes alone, and then beside a prompt of 16,000 tokens every 2 seconds. Returns the gaps between
    tokens."""

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
        return percentile(gaps, 0.99), longest[0]

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
    """An agent that generates, waits for a tool and reads its result, 3 to 14 times."""
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
    """Run n agents, n_present of them at a time, with a cache of `share` of their working set. part: a key of PARTS or
    POLICIES. Returns the mean and p99 of the agents' times, and the number of computed tokens."""
    options = dict((PARTS | POLICIES)[part])
    has_set, foresees = options.pop("has_set", True), bool(options.pop("foresees", False))
    chance = Random(0)
    systems = [words(chance, 1500) for _ in range(4)]
    bodies = [agent(chance, systems, i) for i in range(n)]  # type: ignore[arg-type]

    def play(n_pages: int, is_measured: bool, **options: object) -> Crowd:
        m = Machine(n_pages=n_pages, max_running=16, cost=GPU, **options)  # type: ignore[arg-type]
        if not has_set:
            m.scheduler.admission = None
        first = ((0.0, body) for body in bodies[:n_present])
        crowd = Crowd(m, first, foresees, is_measured, backlog=bodies[n_present:])
        crowd.run()
        m.scheduler.check()
        return crowd

    n_texts = WORKING_SETS.get((n, n_present)) or play(1 << 16, True, schedule="fcfs").n_present
    WORKING_SETS[n, n_present] = n_texts
    crowd = play(int(share * n_texts) // 16, False, **options)
    took = list(crowd.took.values())
    return Agents(statistics.mean(took), percentile(took, 0.99), crowd.machine.scheduler.counts["computed_tokens"])


WORKING_SETS: dict[tuple[int, int], int] = {}


def memory(n_first: int, n_last: int) -> tuple[float, float]:
    """KiB of Python objects after n_first and after n_last steps, while programs come and go."""
    m = Machine(n_pages=128, max_running=16, cost=GPU)
    serial = count()
    chance = Random(0)

    def send() -> None:
        rid = next(serial)
        m.lengths[rid] = chance.randint(1, 4)
        m.take(Run(rid, ids(chance.choices(range(50), k=20)), Sampling(max_tokens=16), STOP, order=(rid,)))

    def end(finish: Finish) -> None:
        m.take(ProgramEnded(0, finish.rid))
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
    finally:
        tracemalloc.stop()
    return held[0], held[-1]
