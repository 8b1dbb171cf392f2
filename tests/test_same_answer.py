"""The same answer by every road: greedy output does not depend on how the engine came to it.

The truth is the naive loop over transformers' own model, in float32, without any cache. The roads: tree on or off,
chunks of 7 or 64 tokens or whole prompts, 1 to 8 requests in a step, pages of 1 or 16 slots, prompts alone or forked
from one another, a tree that is cold or that knows all, and pools so small that requests are retracted again and again.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from banyan.runtime import config as configs
from banyan.runtime.config import Resolved
from banyan.runtime.engine import scheduler
from banyan.runtime.engine.worker import Engine
from banyan.runtime.model.load import Model, load
from banyan.runtime.wire import Run, Sampling

N_OUT = 12
WHOLE = 512

Text = tuple[int, ...]


def texts(vocab: int) -> list[Text]:
    """Eight prompts: two alone, six that fork at different depths, on and off page borders; one is another's prefix."""
    chance = random.Random(7)

    def some(n: int) -> Text:
        return tuple(chance.randrange(3, vocab) for _ in range(n))

    root = some(37)
    left, right = root + some(11), root + some(20)
    return [some(5), some(70), left, left + some(3), left + some(16), right + some(1), right + some(1), root[:33]]


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> Model:
    return load(tiny_model("llama"))


@pytest.fixture(scope="module")
def truth(tiny_model: Callable[..., Path], reference: Callable[[Path], Any], model: Model) -> dict[Text, list[int]]:
    return naive(reference(tiny_model("llama")), model.spec.vocab_size)


def naive(oracle: Any, vocab: int) -> dict[Text, list[int]]:
    """What the naive loop says after each text."""
    said = {}
    for text in texts(vocab):
        ids = list(text)
        for _ in range(N_OUT):
            with torch.inference_mode():
                ids.append(int(oracle(torch.tensor([ids])).logits[0, -1].argmax()))
        said[text] = ids[len(text) :]
    return said


def engine(model: Model, n_pages: int = 0, **options: Any) -> Engine:
    config = configs.make(**options)
    n_pages = n_pages or 2048 // config.page
    resolved = Resolved(device="cpu", dtype="float32", context=256, n_pages=n_pages, threads=1, decisions=())
    return Engine(config, model, resolved)


def answers(e: Engine, some: Iterable[Text]) -> dict[Text, list[int]]:
    """Run all at once, and check the engine's books."""
    by_rid = dict(enumerate(some))
    for rid, text in by_rid.items():
        sampling = Sampling(max_tokens=N_OUT, temperature=0.0)
        e.take(Run(rid, array("i", text).tobytes(), sampling, order=(0, rid)))
    said: dict[Text, list[int]] = {text: [] for text in by_rid.values()}
    while not e.scheduler.is_idle:
        step = e.step()
        for rid, token in zip(array("q", step.rids), array("i", step.ids), strict=True):
            said[by_rid[rid]].append(token)
    assert not e.failed
    e.scheduler.check()
    return said


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("step_tokens", [7, 64, WHOLE])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no-cache"])
def test_the_tree_chunks_and_pages(
    model: Model, truth: dict[Text, list[int]], page: int, step_tokens: int, cache: bool
) -> None:
    e = engine(model, page=page, step_tokens=step_tokens, cache=cache)
    assert answers(e, truth) == truth, "cold"
    computed = e.scheduler.counts["computed_tokens"]
    assert answers(e, truth) == truth, "warm"
    again = e.scheduler.counts["computed_tokens"] - computed
    assert again == (len(truth) * N_OUT if cache else computed)  # one prompt token each, and N_OUT - 1 of the output


@pytest.mark.parametrize("batch", range(1, 9))
def test_the_batch(model: Model, truth: dict[Text, list[int]], batch: int) -> None:
    assert answers(engine(model, max_running=batch), truth) == truth


@pytest.mark.parametrize("step_tokens", [7, WHOLE])
def test_alone_or_forked(model: Model, truth: dict[Text, list[int]], step_tokens: int) -> None:
    forked = engine(model, step_tokens=step_tokens)
    for text, said in truth.items():
        assert answers(engine(model, step_tokens=step_tokens), [text]) == {text: said}, "alone"
        assert answers(forked, [text]) == {text: said}, "one after the other, over the same tree"
        longer = (*text, *said[:-1])
        (token,) = {tuple(x) for x in answers(forked, [longer]).values()}
        assert token[0] == said[-1], "an answer that became a prompt"


@pytest.mark.parametrize("page", [1, 16])
def test_short_of_pages(model: Model, truth: dict[Text, list[int]], page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)  # start what fits now, whatever comes
    longest = max(map(len, truth)) + N_OUT
    e = engine(model, n_pages=-(-longest // page) + 32 // page, page=page)
    assert answers(e, truth) == truth
    assert answers(e, truth) == truth
    assert e.scheduler.counts["retractions"] > 0


@pytest.mark.parametrize("family", ["mistral", "qwen3", "gemma2"])  # a window; norms of q and k; transformers' own code
def test_other_families(tiny_model: Callable[..., Path], reference: Callable[[Path], Any], family: str) -> None:
    other = load(tiny_model(family))
    said = naive(reference(tiny_model(family)), other.spec.vocab_size)
    e = engine(other, step_tokens=23, max_running=5)
    assert answers(e, said) == said, "cold"
    assert answers(e, said) == said, "warm"
