"""The simulator: its optimum, and the hit rates of the scheduler and the tree of the engine."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from forms import short_form

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def work(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(FOLDER / "simulate_work.py")


@pytest.fixture(scope="module")
def hits(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(FOLDER / "simulate_hits.py")


@pytest.fixture(scope="module")
def day(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(FOLDER / "simulate_day.py")


SMALL = {"few-shot": 60, "chat": 12, "tree of thought": 6, "agents": 8, "agents with tool waits": 8}


def test_optimum_equals_a_dictionary_of_all_prefixes(work: ModuleType) -> None:
    prompts: list[tuple[int, ...]] = []
    texts: list[tuple[int, ...]] = []

    def ask(state: Any, ids: list[int], n: int) -> Any:
        state.ids += array("i", ids)
        prompts.append(tuple(state.ids))
        yield work.Gen(n)
        texts.append(tuple(state.ids))

    def forking(state: Any) -> Any:
        yield from ask(state, [1, 2, 3], 2)
        yield work.Fork([lambda s: ask(s, [7, 8, 9], 3), lambda s: ask(s, [7, 8, 4], 1)])
        yield from ask(state, [5], 4)

    bodies = [forking, lambda s: ask(s, [1, 2, 3], 1), lambda s: ask(s, [1, 2], 1), forking]
    best = work.Optimum(bodies)
    known_prefixes: set[tuple[int, ...]] = set()
    n_found = 0
    for prompt, text in zip(prompts, texts, strict=True):
        n_found += max(n for n in range(len(prompt)) if not n or prompt[:n] in known_prefixes)
        known_prefixes |= {text[:n] for n in range(1, len(text) + 1)}
    assert (best.n_prompt, best.n_found, best.n_all) == (sum(map(len, prompts)), n_found, len(known_prefixes))


def test_state_waits_for_children_and_tools(work: ModuleType) -> None:
    machine = work.Machine(n_pages=100)
    events: list[tuple[str, float]] = []

    def child(n: int) -> Any:
        def body(state: Any) -> Any:
            yield work.Gen(n)
            events.append((f"generated {n}", machine.now))

        return body

    def parent(state: Any) -> Any:
        state.ids += array("i", [1, 2, 3])
        yield work.Fork([child(40), child(5)])
        yield work.Wait(50.0, "search")
        events.append(("waited", machine.now))
        yield work.Gen(1)

    crowd = work.Crowd(machine, [(3.0, parent)], foresees=True)
    crowd.run()
    assert [name for name, _ in events] == ["generated 5", "generated 40", "waited"]
    assert events[2][1] == pytest.approx(events[1][1] + 50.0)
    assert not crowd.present
    assert not machine.cache.hints
    machine.scheduler.check()


@pytest.mark.parametrize(
    ("is_online", "shape"),
    short_form(
        product([False, True], SMALL), lambda is_online, shape: is_online == (shape == "agents with tool waits")
    ),
)
def test_unbounded_cache_reaches_the_optimum(hits: ModuleType, shape: str, is_online: bool) -> None:
    arguments = shape, is_online, SMALL[shape]
    best = hits.Optimum(hits.bodies(*arguments))
    outcome = hits.play(hits.bodies(*arguments), 2 * best.n_all, "aware", seconds=20.0 * is_online)
    assert outcome.hit_rate == pytest.approx(best.hit_rate, rel=2e-3)
    assert outcome.hit_rate <= best.hit_rate


def test_small_cache_is_below_the_optimum(hits: ModuleType) -> None:
    arguments = "chat", False, 12
    best = hits.Optimum(hits.bodies(*arguments))
    assert hits.play(hits.bodies(*arguments), best.n_all // 4, "lru", schedule="fcfs").hit_rate < 0.9 * best.hit_rate


def test_shared_prefix_is_counted_once(work: ModuleType) -> None:
    texts = [[1, 2, 3], [1, 2, 3, 4], [1, 5], [1, 2, 3]]
    assert work.n_distinct(array("i", text).tobytes() for text in texts) == 5


def test_programs_are_reproducible_by_seed(hits: ModuleType) -> None:
    first, second, other = (hits.Optimum(hits.bodies("agents", False, 4, seed)) for seed in (0, 0, 1))
    assert (first.n_prompt, first.n_found) == (second.n_prompt, second.n_found) != (other.n_prompt, other.n_found)
    assert Random("agents 0").random() != Random("agents 1").random()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_half_of_the_working_set_reaches_96_percent_of_the_optimum(hits: ModuleType) -> None:
    percentages = []
    for name in hits.SHAPES:
        shape = hits.Shape(name, False, hits.N[name])
        shape.play(0.5, "aware")
        percentages.append(shape.of_optimum(0.5, "aware"))
    assert statistics.mean(percentages) >= 96, percentages


@pytest.mark.long
@pytest.mark.timeout(600)
def test_aware_policy_recomputes_at_most_three_quarters_of_lru(hits: ModuleType) -> None:
    shape = hits.Shape(hits.WAITS, True, hits.N[hits.WAITS])
    for policy in ("lru", "aware"):
        shape.play(0.5, policy)
    assert 0 < shape.recomputed(0.5, "aware") <= 0.75 * shape.recomputed(0.5, "lru")


@pytest.mark.parametrize("n", ["0", "25000"])
def test_number_of_requests_that_are_no_whole_tenths_is_refused(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], n: str
) -> None:
    monkeypatch.setattr("sys.argv", ["simulate_day.py", "--quick", "--requests", n])
    monkeypatch.setattr(day, "Day", None)
    with pytest.raises(SystemExit):
        day.main()
    assert "--requests must be a multiple of 10,000" in capsys.readouterr().err


@pytest.mark.long
def test_simulated_day_does_not_grow_memory_or_time(day: ModuleType) -> None:
    tenths = day.Day(20_000, scale=0.02).tenths()
    first, last = tenths[3], tenths[-1]
    assert last.n_nodes < 1.5 * first.n_nodes
    assert last.memory - first.memory < 4 * 2**20
    assert last.us < 3 * first.us
    assert 0.2 < last.hit_rate < 1
