"""The simulated fleet: its engines compute what a person computes, and our placement beats the others in small."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.fleet.placement import StepSeconds

FOLDER = Path(__file__).parents[2] / "benchmarks"
TIME = StepSeconds(1e-3, 1e-4, 1e-4)


@pytest.fixture(scope="module")
def fleet(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(FOLDER / "simulate_fleet.py")


class Ends:
    """An engine, and when its requests got their first token and ended."""

    def __init__(self, modules: Any, n_blocks: int = 100, max_running: int = 64) -> None:
        self.first: dict[int, tuple[float, int]] = {}
        self.ended: dict[int, float] = {}
        self.removed: list[bytes] = []
        self.engine = modules.VirtualEngine(
            0,
            modules.Size(n_blocks, max_running, 512),
            TIME,
            lambda request, now, n: self.first.update({request.number: (now, n)}),
            lambda request, now: self.ended.update({request.number: now}),
            lambda engine, digests: None,
            lambda engine, digests: self.removed.extend(digests),
        )

    def run(self, *requests: Any) -> None:
        for number, request in enumerate(requests):
            request.number = number
            self.engine.take(request)
        while (when := self.engine.next_event()) < float("inf"):
            self.engine.advance(when)


@pytest.fixture(scope="module")
def modules(fleet: ModuleType) -> Any:
    return sys.modules["simulate_fleet_engine"]


def blocks(text: str, n: int) -> list[bytes]:
    return [f"{text} {i}".encode() for i in range(n)]


def test_an_engine_shares_steps_and_finds_prefixes(modules: Any) -> None:
    one = Ends(modules)
    # 512 tokens a step: 512 x 0.1 ms + 1 ms; then 10 decodes of 1.1 ms.
    one.run(modules.Request(0, blocks("a", 8), 512, 512, 10, 0.0))
    assert one.first == {0: (pytest.approx(0.0522), 512)}
    assert one.ended == {0: pytest.approx(0.0522 + 10 * 1.1e-3)}
    two = Ends(modules)
    # The second computes one token of its prompt, then both decode together.
    two.run(*(modules.Request(0, blocks("a", 8), 512, 512, 10, 0.0) for _ in range(2)))
    assert [n for _, n in two.first.values()] == [512, 1]
    assert two.ended[1] == pytest.approx(0.0522 + 10 * 1.2e-3, rel=0.02)


def test_an_engine_evicts_the_longest_unused_blocks_and_runs_so_many(modules: Any) -> None:
    small = Ends(modules, n_blocks=10, max_running=1)
    texts = ["a", "b", "a", "c"]
    small.run(*(modules.Request(0, blocks(text, 4), 256, 256, 5, 0.0) for text in texts))
    assert [n for _, n in small.first.values()] == [256, 256, 1, 256]
    assert small.removed == blocks("b", 4)[:1:-1], "from the end of the text that was used first"
    assert list(small.ended) == [0, 1, 2, 3]
    assert small.first[1][0] > small.ended[0]


def test_our_placement_is_better_in_small(fleet: ModuleType) -> None:
    """As in `--quick`, with 1 seed and fewer policies: fork programs and cached tokens."""
    work = fleet.programs(0, 160, 6.0 * 20, 20, fleet.POCKET.fixed)
    settings = fleet.policies(20, fleet.POCKET)
    run = {
        name: fleet.FleetRun(work, settings[name][setting](), 20, fleet.Size(), fleet.POCKET).figures()
        for name, setting in (("ours", ""), ("least loaded", ""), ("SGLang's router", "0.3, 64, 1.5"))
    }
    ours = run.pop("ours")
    assert ours.of_oracle > 0.9
    for other in run.values():
        assert ours.forks < other.forks
        assert ours.of_oracle > other.of_oracle
    assert fleet.interval([2.0, 2.0, 2.0]) == pytest.approx((2.0, 2.0, 2.0))
