"""The engine under load in virtual time: throughput, fairness, latency and scheduling order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from banyan.runtime.config import Config


@pytest.fixture(scope="module")
def load(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).parents[2] / "benchmarks" / "chaos_load.py")


def test_load_while_the_decodes_are_alone_does_not_lower_the_rise(module_at: Callable[[Path], ModuleType]) -> None:
    latency = module_at(Path(__file__).parents[2] / "benchmarks" / "chaos_latency.py")
    assert latency.least([(1.0, 2.0, 1.0, 2.0, 1.0), (3.0, 2.0, 3.0, 2.0, 1.0)]) == (1.0, 2.0, 1.0)


@pytest.mark.long
def test_overload_keeps_throughput_and_starves_no_program(load: ModuleType) -> None:
    result = load.overload(400)
    assert result.overloaded > 0.95 * result.peak
    assert result.worst < 3


def test_client_with_few_programs_does_not_wait_for_a_client_with_many(load: ModuleType) -> None:
    assert 2 * load.fairness("dfs", 150) < load.fairness("fcfs", 150)


@pytest.mark.long
def test_long_prompts_delay_decodes_by_at_most_one_chunk(load: ModuleType) -> None:
    gaps = load.latency()
    assert gaps.alone < gaps.beside <= gaps.alone + gaps.chunk
    small_chunks = load.latency(step_tokens=64)
    assert small_chunks.beside < gaps.beside, "smaller chunks, smaller gaps"


@pytest.mark.long
def test_each_part_of_the_order_reduces_computed_tokens(load: ModuleType) -> None:
    results = [load.agents(part, 48, 32, 0.5) for part in load.PARTS]
    computed = [result.computed for result in results]
    assert computed == sorted(set(computed), reverse=True), "each part reduces the computed tokens"
    assert results[0].mean > 1.3 * results[-1].mean
    assert results[-1].p99 <= results[0].p99


@pytest.mark.long
def test_default_order_has_the_lowest_mean_latency(load: ModuleType) -> None:
    result = {name: load.agents(name, 48, 32, 0.5).mean for name in load.POLICIES}
    assert min(result, key=result.__getitem__) == f"schedule={Config().schedule}"


@pytest.mark.long
@pytest.mark.parametrize("has_turnover", [False, True])
def test_cpu_time_of_a_step_is_independent_of_the_queue(load: ModuleType, has_turnover: bool) -> None:
    """Short and long queue take turns, and the minimum of each counts: a processor may be half as fast for a second."""
    few, many = (load.cpu_of_steps(n, has_turnover) for n in (100, 3000))
    rounds = [(next(few), next(many)) for _ in range(6)]
    assert min(many for _, many in rounds) < 2 * min(few for few, _ in rounds)


@pytest.mark.long
@pytest.mark.parametrize(("n_first", "n_last"), [(300, 450), (500, 2000)])
def test_memory_of_the_loop_does_not_grow(
    load: ModuleType, monkeypatch: pytest.MonkeyPatch, n_first: int, n_last: int
) -> None:
    monkeypatch.setattr("banyan.runtime.engine.scheduling.queue.N_KNOWN", 128)  # fills the memory of recent programs
    first, last = load.memory(n_first, n_last)
    assert last < 1.05 * first
