"""Layers with a sliding window in the engine: they keep the pages of their window and, whatever is cached, forked,
drafted, evicted or retracted, the output is that of transformers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from engine_oracle import N_OUT, Tiny, computed, text, two_branches

from banyan.runtime.engine.scheduling import scheduler
from forms import in_short, short_form

MODELS: dict[str, dict[str, Any]] = {
    "gemma3_text": {},  # a window of 8 in every second layer, in transformers' code
    "qwen2": {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1},  # in the last layer
    "mistral": {},  # 24 in all layers
}


@pytest.fixture(scope="module", params=MODELS)
def windowed(request: Any, tiny_model: Callable[..., Path], fake: ModuleType, reference: Callable[[Path], Any]) -> Tiny:
    return Tiny(tiny_model(request.param, **MODELS[request.param]), fake, reference)


@pytest.fixture(scope="module")
def qwen2(tiny_model: Callable[..., Path], fake: ModuleType, reference: Callable[[Path], Any]) -> Tiny:
    return Tiny(tiny_model("qwen2", **MODELS["qwen2"]), fake, reference)


@pytest.mark.parametrize(
    "options",
    in_short(
        [{"step_tokens": 7, "page": 4}],
        [{}, {"step_tokens": 7, "page": 4}, {"step_tokens": 200, "page": 16}, {"cache": False}],
    ),
    ids=str,
)
def test_cold_warm_and_forked_are_equal(windowed: Tiny, options: dict[str, Any]) -> None:
    e = windowed.windowed_engine(**options)
    root = text(90)
    prompts = [root, root + text(9, 1), root[:61] + text(25, 2), text(17, 3), text(8, 4)]
    windowed.run_cold_and_warm(e, prompts)


def test_running_request_keeps_its_window(qwen2: Tiny) -> None:
    e = qwen2.windowed_engine(context=512, n_pages=64)
    e.take(qwen2.fake.run(0, text(400)))
    full, windowed = [], []
    while not e.scheduler.is_idle:
        (lease,) = [request.lease for request in e.scheduler.running] or [None]
        if lease is not None and lease._n_computed == 400:
            full.append(len(lease.pages))
            windowed.append(len(lease.window.held))
        e.step()
    assert max(full) == 51
    assert max(windowed) == 3, "11 tokens, of which the first may begin and the last end inside a page"


def test_retracted_requests_start_again(qwen2: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)  # admit whatever fits now
    e = qwen2.windowed_engine(0, step_tokens=40, page=4)
    qwen2.run(e, [text(3, i) for i in range(17)])
    assert e.scheduler.counts["retractions"] > 0


def test_few_pages_limit_what_runs_together(qwen2: Tiny) -> None:
    e = qwen2.windowed_engine(0, step_tokens=40, page=4)
    qwen2.run(e, [text(3, i) for i in range(17)])
    assert e.scheduler.counts["retractions"] == 0


def test_evicted_window_is_computed_again(qwen2: Tiny) -> None:
    e = qwen2.windowed_engine(0)
    first = text(60)
    qwen2.run(e, [first])
    for i in range(1, 5):
        qwen2.run(e, [text(60, i)])
    before = computed(e)
    qwen2.run(e, [first])
    assert computed(e) - before == 60 + N_OUT - 1
    assert e.cache.tree.n_pages > 30, "the other layers' pages were there"


def test_draft_trees_are_moved_in_both_kinds_of_pages(qwen2: Tiny) -> None:
    e, prompt = qwen2.windowed_engine(step_tokens=40), text(30)
    whole = prompt + qwen2.expected(prompt, 20)

    qwen2.fake.use_drafts(e, two_branches(whole))
    moves: list[Any] = []
    copy_slots = e.model.copy_slots
    e.model.copy_slots = lambda paths: (moves.extend(paths), copy_slots(paths))  # type: ignore[method-assign]
    sampling = qwen2.fake.Sampling(temperature=0.0, max_tokens=20)
    outputs = qwen2.fake.drive(e, [qwen2.fake.run(0, prompt, sampling)], check=True)
    assert outputs[0].ids == whole[30:]
    assert any(sources[0] < 0 for sources, _ in moves)
    assert any(sources[0] >= 0 for sources, _ in moves)


@pytest.mark.parametrize("seed", short_form(((seed,) for seed in range(12)), lambda seed: seed < 1))
def test_any_forks_evictions_and_retractions(qwen2: Tiny, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    rng = random.Random(seed)
    sizes = rng.randint(0, 6), rng.choice([5, 16, 64]), rng.choice([4, 8])
    e = qwen2.windowed_engine(*sizes, n_pages=rng.randint(20, 40), max_running=4)
    qwen2.run_random_forks(e, rng)
