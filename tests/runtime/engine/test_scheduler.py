"""The scheduler, through an engine on the fake model: every answer is checked against the naive loop."""

from __future__ import annotations

import random
from array import array
from types import ModuleType
from typing import Any

import msgspec
import pytest

from banyan.runtime.wire import Abort, Sampling


def prompts(n: int, shared: int = 40, own: int = 5, seed: int = 0) -> list[list[int]]:
    """n prompts of one prefix."""
    chance = random.Random(seed)
    prefix = [chance.randrange(50) for _ in range(shared)]
    return [prefix + [chance.randrange(50) for _ in range(own)] for _ in range(n)]


def assert_greedy(fake: ModuleType, outputs: dict[int, Any], asked: dict[int, list[int]], n: int = 8) -> None:
    for rid, ids in asked.items():
        assert outputs[rid].failed is None
        assert outputs[rid].ids == fake.greedy(ids, n), f"request {rid}"
        assert outputs[rid].finish.reason == "length"
        assert outputs[rid].finish.n_prompt == len(ids)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("step_tokens", [7, 512])
def test_answers_equal_the_naive_loop(fake: ModuleType, cache: bool, page: int, step_tokens: int) -> None:
    asked = dict(enumerate(prompts(9)))
    e = fake.engine(page=page, step_tokens=step_tokens, max_running=5, cache=cache, n_pages=1024)
    outputs = fake.drive(e, [fake.run(rid, ids) for rid, ids in asked.items()], check=True)
    assert_greedy(fake, outputs, asked)


def test_requests_with_one_new_prefix_compute_it_once(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(8, shared=100, own=5)))
    for step_tokens in (32, 512):
        e = fake.engine(step_tokens=step_tokens)
        outputs = fake.drive(e, [fake.run(rid, ids, order=(0, rid)) for rid, ids in asked.items()], check=True)
        assert_greedy(fake, outputs, asked)
        assert e.scheduler.counts["computed_tokens"] == 100 + 8 * 5 + 8 * 7
        assert sum(o.finish.n_cached for o in outputs.values()) == 7 * 100


def test_equal_prompts_cost_one_prefill(fake: ModuleType) -> None:
    (ids,) = prompts(1, shared=60, own=0)
    e = fake.engine()
    fake.drive(e, [fake.run(rid, ids, Sampling(max_tokens=1), sample=rid) for rid in range(8)])
    assert e.scheduler.counts["computed_tokens"] == 60 + 7


def test_a_second_run_computes_one_prompt_token_per_request(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(6)))
    e = fake.engine()
    for _ in range(2):
        before = e.scheduler.counts["computed_tokens"]
        outputs = fake.drive(e, [fake.run(rid, ids) for rid, ids in asked.items()])
        assert_greedy(fake, outputs, asked)
    assert e.scheduler.counts["computed_tokens"] - before == 6 * 8
    assert [o.finish.n_cached for o in outputs.values()] == [44] * 6
