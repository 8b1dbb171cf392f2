"""Attention sinks in the engine: whatever is cached, forked, drafted, evicted or retracted, the output is that of a
plain StreamingLLM, which keeps the first and the last tokens of a text and numbers them without a gap."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from engine_oracle import N_OUT, Tiny, computed, text, two_branches
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels.native import build
from banyan.kernels.ops import ragged
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.errors import Unsupported
from banyan.runtime.model.load import load
from forms import short_form

WINDOW, SINKS, CONTEXT = 20, 4, 700  # the model was trained for 512 tokens


class Streaming:
    """StreamingLLM as its paper describes it (Xiao et al., 2023), one token after the other. In each layer, it keeps
    keys that are not rotated, evicts those between the sinks and the window, and rotates the remaining keys and the
    query by their places in the cache. The weights are those of transformers' Llama."""

    def __init__(self, model: Any) -> None:
        self.model, self.c = model.model, model.config
        self.head = model.lm_head
        self.dim = self.c.hidden_size // self.c.num_attention_heads
        self.inv_freq = 10000.0 ** -(torch.arange(0, self.dim, 2).double() / self.dim)
        empty = torch.zeros(0, self.c.num_key_value_heads, self.dim)
        self.known: dict[tuple[int, ...], Any] = {(): ([(empty, empty) for _ in self.model.layers], empty)}

    def rotated(self, x: Tensor) -> Tensor:
        """x [places, heads, dim], rotated by its places."""
        angles = (torch.arange(len(x)).double()[:, None, None] * self.inv_freq).float()
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        """The logits of all tokens. The longest known prefix is not computed again."""
        assert not use_cache
        ids = tuple(input_ids[0].tolist())
        n = next(n for n in range(len(ids), -1, -1) if ids[:n] in self.known)
        for end in range(n + 1, len(ids) + 1):
            self.known[ids[:end]] = self.step(ids[end - 1], self.known[ids[: end - 1]][0])
        return SimpleNamespace(logits=torch.cat([self.known[ids[:end]][1] for end in range(1, len(ids) + 1)])[None])

    def step(self, token: int, before: list[tuple[Tensor, Tensor]]) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """The keys and values of each layer after a token, and the token's logits [1, vocab]."""
        after, group = [], self.c.num_attention_heads // self.c.num_key_value_heads
        x = self.model.embed_tokens(torch.tensor([token]))
        for layer, old in zip(self.model.layers, before, strict=True):
            h = layer.input_layernorm(x)
            q, k, v = (getattr(layer.self_attn, f"{name}_proj")(h).view(1, -1, self.dim) for name in "qkv")
            keys, values = (torch.cat(pair) for pair in zip(old, (k, v), strict=True))
            if len(keys) > SINKS + WINDOW:
                keys, values = (torch.cat([all_of[:SINKS], all_of[-WINDOW:]]) for all_of in (keys, values))
            after.append((keys, values))
            q = self.rotated(torch.cat([torch.zeros(len(keys) - 1, *q.shape[1:]), q]))[-1]
            scores = torch.einsum("hd,nhd->hn", q, self.rotated(keys).repeat_interleave(group, 1))
            weights = (scores * self.dim**-0.5).softmax(-1)
            out = torch.einsum("hn,nhd->hd", weights, values.repeat_interleave(group, 1))
            x = x + layer.self_attn.o_proj(out.view(1, -1))
            h = layer.post_attention_layernorm(x)
            x = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(h)) * layer.mlp.up_proj(h))
        return after, self.head(self.model.norm(x))


class TinyStream(Tiny):
    def __init__(self, path: Path, fake: ModuleType, reference: Callable[[Path], Any]) -> None:
        super().__init__(path, fake, lambda path: Streaming(reference(path)))
        self.model = load(path, max_context=CONTEXT, window=WINDOW, sinks=SINKS)

    def engine(self, n_slots: int = 16, **options: Any) -> EngineLoop:
        return super().engine(n_slots, **{"context": CONTEXT} | options)


@pytest.fixture(scope="module")
def own(tiny_model: Callable[..., Path], fake: ModuleType, reference: Callable[[Path], Any]) -> TinyStream:
    return TinyStream(tiny_model("llama"), fake, reference)


@pytest.mark.parametrize(
    "options",
    [{}, {"step_tokens": 7, "page": 4}, {"step_tokens": 200, "page": 2}, {"cache": False}, {"deterministic": True}],
    ids=str,
)
def test_cold_warm_and_forked_are_those_of_streaming_llm(own: TinyStream, options: dict[str, Any]) -> None:
    if "deterministic" in options and build.library() is None:
        pytest.skip("deterministic needs a C++ compiler")
    e = own.windowed_engine(**options)
    root = text(90)
    prompts = [root, root + text(9, 1), root[:61] + text(25, 2), text(3, 3), text(22, 4)]
    own.run_cold_and_warm(e, prompts)


@pytest.mark.long
@pytest.mark.parametrize("is_fused", [True, False])
def test_a_text_goes_on_beyond_the_trained_context(own: TinyStream, is_fused: bool) -> None:
    prompt = text(530)
    if not is_fused:
        own.model.__dict__["fused"] = None
    try:
        e = own.windowed_engine(step_tokens=100)
        outputs = own.fake.drive(
            e, [own.fake.run(0, prompt, own.fake.Sampling(temperature=0.0, max_tokens=3))], check=True
        )
    finally:
        own.model.__dict__.pop("fused", None)
    assert outputs[0].ids == own.expected(prompt, 3)


def test_running_request_keeps_its_sinks_and_its_window(own: TinyStream) -> None:
    e = own.windowed_engine(0)
    e.take(own.fake.run(0, text(400)))
    held, used = [], []
    while not e.scheduler.is_idle:
        (lease,) = [request.lease for request in e.scheduler.running] or [None]
        if lease is not None and lease._n_computed == 400:
            held.append(len(lease.window.held))
        used.append(e.cache.stats().n_window_used)
        e.step()
    assert max(held) == 5, "4 tokens, and 20 of which the first may begin and the last end inside a page, in pages of 8"
    assert max(used) <= own.least_window_pages(16, 8) == 10
    assert e.model.store.n_window_pages == 10, "for 406 tokens, 51 pages"


def test_a_text_shorter_than_the_window_is_that_of_the_model(
    tiny_model: Callable[..., Path], fake: ModuleType, reference: Callable[[Path], Any]
) -> None:
    path = tiny_model("llama")
    whole = Tiny(path, fake, reference)
    whole.model = load(path, max_context=CONTEXT, window=100, sinks=SINKS)
    e = whole.engine(n_window_pages=64, context=CONTEXT, page=8, step_tokens=16)
    whole.run(e, [text(90), text(94, 1)])
    for n, is_equal in ((90, True), (100, True), (110, False)):  # logits of the last row, bit by bit
        logits = [_logits(load(path, max_context=CONTEXT, window=window, sinks=SINKS), n) for window in (100, 600)]
        assert torch.equal(*logits) == is_equal, n


def _logits(model: Any, n: int) -> Tensor:
    pools = [tuple(torch.zeros(2, 1, 128, 2, 16)) for _ in range(2)]
    at = torch.arange(n)
    return model.forward(torch.tensor(text(n)), at, ragged([n], [n], [[0]], 128), pools, torch.tensor([n - 1]))


def test_evicted_pages_are_computed_again(own: TinyStream) -> None:
    e = own.windowed_engine(0)
    first = text(60)
    own.run(e, [first])
    for i in range(1, 5):
        own.run(e, [text(60, i)])
    before = computed(e)
    own.run(e, [first])
    assert computed(e) - before == 60 + N_OUT - 1


def test_draft_trees_see_the_sinks(own: TinyStream) -> None:
    e, prompt = own.windowed_engine(step_tokens=40), text(30)
    whole = prompt + own.expected(prompt, 12)

    own.fake.use_drafts(e, two_branches(whole))
    sampling = own.fake.Sampling(temperature=0.0, max_tokens=12)
    outputs = own.fake.drive(e, [own.fake.run(0, prompt, sampling)], check=True)
    assert outputs[0].ids == whole[30:]
    assert e.scheduler.counts["steps"] < 14


@pytest.mark.parametrize("seed", short_form(((seed,) for seed in range(12)), lambda seed: seed < 1))
def test_any_forks_evictions_and_retractions(own: TinyStream, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    rng = random.Random(seed)
    e = own.windowed_engine(rng.randint(0, 6), rng.choice([5, 16, 64]), rng.choice([2, 8]), n_pages=400, max_running=4)
    own.run_random_forks(e, rng, n_rounds=6)


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gpt2", "mixtral", "lfm2"])
def test_models_that_cannot_have_sinks_are_refused(family: str, tiny_model: Callable[..., Path]) -> None:
    with pytest.raises(Unsupported, match=r"window.*leave (it|window) out"):
        load(tiny_model(family), window=WINDOW, sinks=SINKS)
