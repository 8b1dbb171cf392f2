"""The engine under load, in virtual time: the gain of the scheduling order, the working set and chunked prefill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from banyan.runtime.config import Config


@pytest.fixture(scope="module")
def load(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).parents[2] / "benchmarks" / "chaos_load.py")


def test_an_overload_costs_no_throughput_and_starves_nobody(load: ModuleType) -> None:
    found = load.overload(400)
    assert found.overloaded > 0.95 * found.peak
    assert found.worst < 3


def test_a_client_with_few_programs_does_not_wait_for_one_with_many(load: ModuleType) -> None:
    assert 2 * load.fairness("dfs", 150) < load.fairness("fcfs", 150)


def test_long_prompts_hold_up_decodes_by_a_chunk_at_most(load: ModuleType) -> None:
    gaps = load.latency()
    assert gaps.alone < gaps.beside <= gaps.alone + gaps.chunk
    small = load.latency(step_tokens=64)
    assert small.beside < gaps.beside, "smaller chunks, smaller gaps"


def test_agents_with_waits_gain_by_each_part_of_the_order(load: ModuleType) -> None:
    found = [load.agents(part, 48, 32, 0.5) for part in load.PARTS]
    computed = [one.computed for one in found]
    assert computed == sorted(set(computed), reverse=True), "each part saves something"
    assert found[0].mean > 1.3 * found[-1].mean
    assert found[-1].p99 <= found[0].p99


def test_the_default_is_the_order_that_wins(load: ModuleType) -> None:
    found = {name: load.agents(name, 48, 32, 0.5).mean for name in load.POLICIES}
    assert min(found, key=found.__getitem__) == f"schedule={Config().schedule}"


@pytest.mark.parametrize("has_turnover", [False, True])
def test_who_waits_costs_next_to_nothing(load: ModuleType, has_turnover: bool) -> None:
    few, many = (load.cpu_of_a_step(n, has_turnover) for n in (100, 3000))
    assert many < 2 * few


@pytest.mark.parametrize(("n_first", "n_last"), [(500, 1000), pytest.param(500, 2000, marks=pytest.mark.long)])
def test_the_loop_keeps_nothing_of_what_ended(
    load: ModuleType, monkeypatch: pytest.MonkeyPatch, n_first: int, n_last: int
) -> None:
    monkeypatch.setattr(
        "banyan.runtime.engine.scheduling.queue.N_KNOWN", 128
    )  # programs are remembered for a while; that fills
    first, last = load.memory(n_first, n_last)
    assert last < 1.05 * first
