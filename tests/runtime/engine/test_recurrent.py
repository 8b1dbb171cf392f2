"""Models with a recurrent state in the engine: whatever is cached, forked, evicted or retracted, the output is that of
transformers."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from engine_oracle import GREEDY, N_OUT, Tiny, computed, text
from tiny_configs import tiny_config

from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.errors import OutOfMemory
from banyan.runtime.protocol.wire import Abort, Sampling
from forms import in_short, short_form

FAMILIES = {
    "falcon_h1": "long",
    "granitemoehybrid": "long",
    "jamba": "long",
    "lfm2": "long",
    "mamba": "long",
    "mamba2": "",
    "nemotron_h": "long",
    "qwen3_5": "long",
    "qwen3_5_text": "",
    "qwen3_next": "long",
}
"""Family of the table in docs/models.md -> the mark of its test. The other tests use `lfm2`."""


@pytest.fixture(scope="module")
def lfm2(tiny_model: Callable[..., Path], fake: ModuleType, reference: Callable[[Path], Any]) -> Tiny:
    return Tiny(tiny_model("lfm2"), fake, reference)


@pytest.mark.parametrize(
    ("step_tokens", "cache"),
    short_form(
        product([7, 32, 512], [True, False]),
        lambda step_tokens, cache: cache == (step_tokens != 512) and step_tokens != 7,
    ),
)
def test_cold_warm_and_forked_are_equal(lfm2: Tiny, step_tokens: int, cache: bool) -> None:
    e = lfm2.engine(step_tokens=step_tokens, cache=cache)
    root = text(40)
    prompts = [root, root + text(9, 1), root[:21] + text(5, 2), text(17, 3)]
    lfm2.run(e, prompts)
    lfm2.run(e, prompts)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.long] if mark else []) for name, mark in FAMILIES.items()]
)
def test_families_are_equal_cold_warm_and_forked(
    family: str, tiny: Any, tmp_path: Path, fake: ModuleType, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiny.TINY, family, tiny_config(family))
    own = Tiny(tiny.make_tiny(tmp_path / "model", family), fake, reference)
    e, root = own.engine(step_tokens=16), text(30)
    for prompts in ([root], [root], [root + own.expected(root) + [5]], [root[:19] + text(5, i) for i in range(3)]):
        own.run(e, prompts)
    cold = 30 + 3 * 5 + 4 * (N_OUT - 1)
    assert computed(e) < cold + 30  # without sharing, the prompts alone would be 30 + 30 + 37 + 3 * 24
    assert not e.drafting.drafters


def test_identical_prompt_computes_one_token(lfm2: Tiny) -> None:
    e, prompt = lfm2.engine(), text(45)
    lfm2.run(e, [prompt])
    before = computed(e)
    lfm2.run(e, [prompt])
    assert computed(e) - before == N_OUT  # one of the prompt, and all of the output but the last


def test_next_turn_continues_behind_the_output(lfm2: Tiny) -> None:
    e, prompt = lfm2.engine(), text(45)
    lfm2.run(e, [prompt])
    turn = prompt + lfm2.expected(prompt) + text(4, 1)
    before = computed(e)
    lfm2.run(e, [turn])
    assert computed(e) - before == 1 + 4 + N_OUT - 1  # the last token of the output had no KV yet


def test_forks_at_once_compute_their_prefix_once(lfm2: Tiny) -> None:
    e, root = lfm2.engine(), text(50)
    lfm2.run(e, [root + text(3 + i, 1 + i) for i in range(5)])
    assert computed(e) == 50 + sum(3 + i + N_OUT - 1 for i in range(5))


def test_third_text_finds_the_state_where_two_part(lfm2: Tiny) -> None:
    e, root = lfm2.engine(), text(50)
    lfm2.run(e, [root + text(20, 1)])
    lfm2.run(e, [root + text(20, 2)])  # finds pages, but no state at their end, so it keeps one there
    before = computed(e)
    lfm2.run(e, [root + text(20, 3)])
    assert computed(e) - before == 20 + N_OUT - 1


@pytest.mark.parametrize("n_slots", [2, 3])
def test_few_slots_limit_what_runs_and_evict(lfm2: Tiny, n_slots: int) -> None:
    e = lfm2.engine(n_slots)
    prompts = [text(20 + i, i) for i in range(6)]
    lfm2.run(e, prompts)
    lfm2.run(e, prompts)
    assert e.cache.states is not None
    assert e.cache.states.n_slots == n_slots == e.scheduler.max_running


def test_retracted_request_goes_on_from_its_state(lfm2: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)  # admit whatever fits now
    e = lfm2.engine(n_pages=7)
    lfm2.run(e, [text(31 + i, i) for i in range(4)])
    assert e.scheduler.counts["retractions"] > 0


def test_aborted_request_frees_its_slots(lfm2: Tiny) -> None:
    e, prompt = lfm2.engine(step_tokens=16), text(60)
    e.take(lfm2.fake.run(0, prompt, GREEDY))
    e.step()
    e.take(Abort(0))
    assert e.scheduler.is_idle
    e.scheduler.check()
    before = computed(e)
    lfm2.run(e, [prompt])
    assert computed(e) - before == 60 - 16 + N_OUT - 1  # what was computed stays


def test_prompt_that_ends_where_another_goes_on_keeps_its_slots(lfm2: Tiny) -> None:
    """The first request ends with its first token, while the second waits for the first one's whole prompt."""
    e, one = lfm2.engine(4), Sampling(temperature=0.0, max_tokens=1)
    for i in range(4):
        root = text(40, i)
        outputs = lfm2.fake.drive(e, [lfm2.fake.run(k, root + text(20 * k, 9), one) for k in range(2)], check=True)
        assert [outputs[k].ids for k in range(2)] == [lfm2.expected(root + text(20 * k, 9), 1) for k in range(2)]
    assert e.scheduler.counts["waits"] == 4
    lfm2.run(e, [text(20, 5)])


def test_failed_step_leaves_no_state(lfm2: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    e, prompt = lfm2.engine(step_tokens=16), text(40)
    with monkeypatch.context() as patch:
        e.take(lfm2.fake.run(0, prompt, GREEDY))
        e.step()
        patch.setattr(lfm2.model, "forward", None)
        e.step()
    assert len(e.failed) == 1
    e.failed.clear()
    e.scheduler.check()
    lfm2.run(e, [prompt])


def test_host_memory_brings_pages_back_to_their_states(lfm2: Tiny) -> None:
    e = lfm2.engine(64, n_pages=8, n_host=64)
    prompts = [text(60, i) for i in range(4)]
    lfm2.run(e, prompts)
    lfm2.run(e, prompts)
    assert e.cache.stats().n_host_hit_tokens > 0


@pytest.mark.parametrize("seed", in_short([0], range(3)))
def test_any_forks_evictions_and_retractions(lfm2: Tiny, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    rng = random.Random(seed)
    e = lfm2.engine(rng.randint(2, 9), n_pages=rng.randint(8, 14), n_host=rng.choice([0, 12]), page=8,
                    step_tokens=rng.choice([5, 16, 64]), max_running=4)  # fmt: skip
    lfm2.run_random_forks(e, rng, n_tail=12, longest=50)


def test_too_little_memory_for_states_is_named(lfm2: Tiny) -> None:
    with pytest.raises(OutOfMemory, match="raise `state_memory`"):
        lfm2.engine(1)
