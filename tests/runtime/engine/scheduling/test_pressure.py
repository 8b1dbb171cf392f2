"""The scheduler when pages, places for requests or time are short, on a simulated machine without torch or a clock."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from banyan.runtime.config import Schedule
from banyan.runtime.engine.scheduling import queue, scheduler
from banyan.runtime.protocol.wire import Abort, ProgramEnded, Run, Sampling
from forms import examples, in_short, short_form

SCHEDULES = get_args(Schedule)


@pytest.fixture(scope="session")
def simulate(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).parents[4] / "benchmarks" / "simulate.py")


def run(simulate: ModuleType, rid: int, tokens: Any, max_tokens: int = 16, **fields: Any) -> Run:
    return Run(rid, simulate.ids(tokens), Sampling(max_tokens=max_tokens), simulate.STOP, **fields)


# ---- random load ---------------------------------------------------------------------------------------------------

request = st.tuples(
    st.integers(0, 5),  # which of the last prompts it extends
    st.integers(1, 40),  # own tokens
    st.integers(0, 40),  # max_tokens
    st.integers(0, 40),  # output length until its stop id
    st.integers(0, 6),  # program
    st.integers(0, 2),  # client
    st.sampled_from([0, 0, 0, 1, -1]),  # priority
    st.integers(0, 5),  # steps before it arrives
    st.booleans(),  # aborted later
)


@examples(
    20,
    120,
    given(
        requests=st.lists(request, min_size=1, max_size=60),
        schedule=st.sampled_from(SCHEDULES),
        page=st.sampled_from([1, 4, 16]),
        n_slots=st.integers(96, 400),
        step_tokens=st.sampled_from([1, 7, 64, 512]),
        max_running=st.integers(1, 12),
        foresight=st.sampled_from([0.0, 1.0]),
    ),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_random_load_finishes_and_releases_all_pages(
    simulate: ModuleType, requests: Any, schedule: Any, page: int, n_slots: int, step_tokens: int, max_running: int,
    foresight: float,
) -> None:  # fmt: skip
    before, scheduler.FORESIGHT = scheduler.FORESIGHT, foresight
    try:
        m = simulate.Machine(
            n_pages=-(-n_slots // page), page=page, step_tokens=step_tokens, max_running=max_running, schedule=schedule
        )
        run_random_load(simulate, m, requests)
    finally:
        scheduler.FORESIGHT = before


def run_random_load(simulate: ModuleType, m: Any, requests: Any) -> None:
    ended: Counter[int] = Counter()
    n_output: Counter[int] = Counter()
    m.on_finish = lambda finish: ended.update([finish.rid])
    m.on_failed = lambda failed: ended.update([failed.program])

    def on_step(plan: Any, step: Any, seconds: float) -> None:
        assert sum(work.n_new for work in plan.works) <= m.scheduler.limits.step_tokens
        n_output.update(dict(zip(memoryview(step.rids).cast("q"), memoryview(step.counts).cast("i"), strict=True)))

    m.on_step = on_step
    texts = [[1, 2, 3]]
    for rid, (base, n_own, max_tokens, n_stop, program, client, priority, n_steps, is_aborted) in enumerate(requests):
        for _ in range(n_steps):
            m.step()
            m.scheduler.check()
        m.lengths[rid] = n_stop
        texts.append([*texts[-1 - min(base, len(texts) - 1)][:50], *[rid] * n_own])
        fields = {"order": (program, rid), "client": client, "priority": priority}
        m.take(run(simulate, rid, texts[-1], max_tokens, **fields))
        if is_aborted:
            m.take(Abort(rid // 2))
    for _ in range(20_000):
        if not m.step():
            break
    m.scheduler.check()
    assert ended == Counter(range(len(requests))), "each request ends exactly once"
    assert m.scheduler.is_idle
    assert m.cache.n_available == m.cache.n_pages
    for rid, (_, _, max_tokens, *_) in enumerate(requests):
        assert n_output[rid] <= max_tokens


@pytest.mark.parametrize("schedule", in_short(["dfs"], SCHEDULES))
def test_plans_depend_only_on_messages_and_times(
    simulate: ModuleType, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)

    def plans() -> list[Any]:
        rng, seen = random.Random(3), []
        m = simulate.Machine(n_pages=24, page=4, step_tokens=64, max_running=8, schedule=schedule)
        m.on_step = lambda plan, step, seconds: seen.append(
            ([(w.request.rid, *w[2:], tuple(w.lease.pages)) for w in plan.works], plan.copies, m.now)
        )
        for rid in range(120):
            tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 40))]
            order = run(simulate, rid, tokens, rng.randrange(30), client=rid % 3, order=(rid % 7,))
            m.at(5 * rng.random(), lambda order=order: m.take(order))
            if rng.random() < 0.2:
                abort = Abort(rng.randrange(120))
                m.at(5 * rng.random(), lambda abort=abort: m.take(abort))
        m.run()
        assert m.scheduler.counts["requests"] == 120
        assert m.scheduler.counts["retractions"] > 0
        return seen

    assert plans() == plans()


# ---- pages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 4, 16])
def test_retraction_recomputes_only_evicted_tokens(
    simulate: ModuleType, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    m = simulate.Machine(n_pages=480 // page, page=page, max_running=8)
    rng = random.Random(0)
    n_computed = 0
    for rid in range(40):
        n_prompt, n_out = rng.randrange(20, 60), rng.randrange(20, 100)
        m.lengths[rid] = n_out
        n_computed += n_prompt + n_out
        m.take(run(simulate, rid, [rid] * n_prompt, 100, order=(rid,)))
    m.run()
    counts = m.scheduler.counts
    assert counts["retractions"] > 10
    assert n_computed <= counts["computed_tokens"] <= n_computed + page * m.cache.stats().n_evicted_pages
    assert counts["computed_tokens"] - n_computed < 0.5 * counts["retractions"] * 80, (
        "most of the retracted tokens were still cached"
    )


def test_youngest_branch_is_retracted_first(simulate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    m = simulate.Machine(n_pages=10, page=16, max_running=8)
    ends: list[int] = []
    m.on_finish = lambda finish: ends.append(finish.rid)
    for rid in range(4):
        m.take(run(simulate, rid, [rid] * 20, 60, order=(rid // 2, rid % 2)))
    previous: set[int] = set()

    def on_step(plan: Any, step: Any, seconds: float) -> None:
        running = {r.rid for r in m.scheduler.running}
        for rid in previous - running - {f.rid for f in step.finished}:
            assert all(other < rid for other in running), f"{rid} was retracted before a younger one"
        previous.clear()
        previous.update(running)

    m.on_step = on_step
    m.run()
    assert ends == [0, 1, 2, 3]
    assert m.scheduler.counts["retractions"] > 0


def test_admission_learns_output_lengths(simulate: ModuleType) -> None:
    """All outputs have 40 of at most 400 tokens. After the first of them, many requests run at once, with few
    retractions."""
    m = simulate.Machine(n_pages=100, page=16, max_running=64)
    widths: list[int] = []
    m.on_step = lambda plan, step, seconds: widths.append(len(plan.works))
    m.on_finish = lambda finish: m.take(ProgramEnded(0, finish.rid))
    for rid in range(300):
        m.lengths[rid] = 40
        m.take(run(simulate, rid, [rid] * 30, 400, order=(rid,)))
    m.run()
    assert max(widths[:20]) <= 4, "no lengths are known yet"
    assert sorted(widths)[len(widths) // 2] >= 18, "a request takes five pages"
    assert m.scheduler.counts["retractions"] < 60
    assert not m.scheduler.waiting._programs, "an ended program leaves no account"


def test_large_request_is_not_starved_by_small_ones(simulate: ModuleType) -> None:
    m = simulate.Machine(n_pages=64, page=16, max_running=16)
    ended: list[int] = []
    n = 1

    def submit_next(finish: Any) -> None:
        nonlocal n
        ended.append(finish.rid)
        if n < 200:
            m.take(run(simulate, n, [n] * 60, 30, order=(n,)))
            n += 1

    m.on_finish = submit_next
    for _ in range(12):
        m.take(run(simulate, n, [n] * 60, 30, order=(n,)))
        n += 1
    for _ in range(3):
        m.step()
    m.take(run(simulate, 0, [9999] * 1000, 20, order=(20,)))
    m.run()
    assert ended.index(0) < 40


# ---- priority ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("short_of", ["places", "pages"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_higher_priority_preempts_lower(simulate: ModuleType, schedule: Schedule, short_of: str) -> None:
    places, pages = (4, 1000) if short_of == "places" else (64, 40)
    m = simulate.Machine(n_pages=pages, page=16, max_running=places, schedule=schedule)
    ends: dict[int, float] = {}
    m.on_finish = lambda finish: ends.update({finish.rid: m.now})
    for rid in range(12):
        m.take(run(simulate, rid, [rid] * 100, 60, order=(rid,)))
    for _ in range(10):
        m.step()
    m.take(run(simulate, 99, [99] * 100, 60, order=(99,), priority=1))
    running = [r.rid for r in m.scheduler.running]
    m.step()
    assert [r.rid for r in m.scheduler.running] == [99, *running[:-1]], "the last one is retracted at once"
    assert m.scheduler.counts["retractions"] == 1
    m.scheduler.check()
    m.run()
    assert len(ends) == 13


def test_nobody_is_preempted_for_a_request_that_is_not_admitted(simulate: ModuleType) -> None:
    m = simulate.Machine(n_pages=36, page=16, max_running=2)
    m.take(run(simulate, 0, [0] * 300, 4, order=(0,), priority=1))
    m.run()  # program 0 will need its text again
    for rid in (1, 2):
        m.take(run(simulate, rid, [rid] * 40, 60, order=(rid,)))
    m.step()
    m.take(run(simulate, 3, [3] * 200, 8, order=(3,), priority=1))
    for _ in range(5):
        m.step()
    assert [r.rid for r in m.scheduler.running] == [1, 2]
    assert m.scheduler.counts["retractions"] == 0
    m.take(ProgramEnded(0, 0))
    m.step()
    assert [r.rid for r in m.scheduler.running] == [3, 1]
    m.run()
    assert m.scheduler.is_idle


def test_preempted_request_is_not_expected_to_claim_pages(simulate: ModuleType) -> None:
    m = simulate.Machine(n_pages=40, page=16, max_running=3)
    for rid in (0, 1):
        m.take(run(simulate, rid, [rid] * 20, 160, order=(rid,)))
    m.step()
    for rid in (2, 3):  # in one plan, 2 takes the free place and 3 that of 1
        m.take(run(simulate, rid, [rid] * 20, 160, order=(rid,), priority=1))
    m.step()
    assert [r.rid for r in m.scheduler.running] == [2, 3, 0]
    assert m.scheduler.counts["retractions"] == 1, "without 1, there are pages for 0"


@pytest.mark.parametrize("schedule", in_short(["dfs"], SCHEDULES))
def test_low_priority_is_not_starved_by_higher_ones(simulate: ModuleType, schedule: Schedule) -> None:
    m = simulate.Machine(n_pages=1000, page=16, max_running=4, schedule=schedule)
    low_ends: list[float] = []
    n = 1

    def submit_next(finish: Any) -> None:
        nonlocal n
        if finish.rid == 0:
            low_ends.append(m.now)
        elif not low_ends:
            n += 1
            m.take(run(simulate, n, [n] * 20, 20, order=(n,), priority=5))

    m.on_finish = submit_next
    m.take(run(simulate, 0, [0] * 20, 20, order=(0,)))
    for _ in range(8):
        n += 1
        m.take(run(simulate, n, [n] * 20, 20, order=(n,), priority=5))
    m.run(limit=200_000)
    assert low_ends, "the low priority request never ended"
    assert low_ends[0] < 3 * queue.PATIENCE


# ---- fairness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "n"), short_form([("dfs", 700), ("dfs", 1000), ("fair", 1000)], lambda schedule, n: n == 700)
)
def test_small_client_does_not_wait_for_a_large_one(simulate: ModuleType, schedule: Schedule, n: int) -> None:
    m = simulate.Machine(n_pages=4000, page=16, max_running=16, schedule=schedule)
    ends: dict[int, float] = {}
    m.on_finish = lambda finish: ends.update({finish.rid: m.now})
    for rid in range(n):
        m.take(run(simulate, rid, [rid] * 100, 50, order=(rid,), client=0))
    few = range(n, n + n // 50)
    m.at(1.0, lambda: [m.take(run(simulate, r, [r] * 100, 50, order=(r,), client=1)) for r in few])
    m.run()
    assert max(ends[r] for r in few) < 0.1 * max(ends.values())


@pytest.mark.long
def test_two_clients_get_equal_shares_of_computed_tokens(simulate: ModuleType) -> None:
    m = simulate.Machine(n_pages=4000, page=16, max_running=16)
    for rid in range(2000):
        m.take(run(simulate, rid, [rid] * (40 if rid % 2 else 160), 50, order=(rid,), client=rid % 2))
    served = Counter[int]()
    m.on_step = lambda plan, step, seconds: served.update({w.request.run.client: w.n_new for w in plan.works})
    for _ in range(1500):
        m.step()
    shares = [account.n_served for account in m.scheduler.waiting._clients.values()]
    assert 0.9 < shares[0] / shares[1] < 1.1
