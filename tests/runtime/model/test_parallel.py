"""Tensor parallel: ranks, here threads of this process, compute together what one process computes alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import few_bits
from banyan.kernels.linear.grouped import Grouped, quantise
from banyan.runtime.errors import ConfigError, Unsupported
from banyan.runtime.model import lora, parallel
from banyan.runtime.model.load import Model, load
from banyan.runtime.model.parallel import Shard, cut, sharded
from banyan.runtime.model.spec import read_spec
from forms import in_short, short_form
from gguf_files import write_gguf

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
Steps = list[dict[str, list[int]]]
CHUNKS: Steps = [
    {"a": list(range(3, 120)), "b": [7, 8, 9]},
    {"a": [5, 6], "b": [1], "c": list(range(40, 130))},
    {"a": [9], "b": [2], "c": [4]},
]
"""New tokens of each request, step by step."""
PATIENCE = timedelta(seconds=60)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "TIMEOUT", PATIENCE)


def logits(tiny: ModuleType, model: Any, steps: Steps = CHUNKS) -> list[Tensor]:
    paged = tiny.Paged(model)
    return [one for step in steps for one in paged.step(step).values()]


class Whole:
    """A rank's model that returns as many logits as rank 0, where `Paged` wants them; they mean nothing."""

    def __init__(self, model: Model) -> None:
        self.spec, self._model = model.spec, model

    def forward(self, *step: Any) -> Tensor:
        y = self._model.forward(*step)
        return torch.zeros(len(y), self.spec.vocab_size)


def of_ranks(tiny: ModuleType, path: Path, n: int, deterministic: bool = False, steps: Steps = CHUNKS,
             **options: Any) -> list[Tensor]:  # fmt: skip
    """The logits of rank 0."""
    store = dist.HashStore()

    def run(rank: int) -> list[Tensor]:
        shard = Shard(rank, n, deterministic)
        model = load(path, shard=shard, deterministic=deterministic, **options)
        shard.connect(store, torch.device("cpu"))
        return logits(tiny, Whole(model) if rank else model, steps)

    with ThreadPoolExecutor(n) as pool:
        ranks = [pool.submit(run, rank) for rank in range(n)]
        for done in as_completed(ranks):
            done.result()  # the first error; the other ranks then wait until PATIENCE has passed
    return ranks[0].result()


def distance(got: list[Tensor], expected: list[Tensor]) -> float:
    assert [one.shape for one in got] == [one.shape for one in expected]
    return max((a - b).abs().max().item() for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize(
    ("tp", "family"),
    short_form(product([2, 4], FAMILIES), lambda tp, family: (family, tp) in (("qwen3", 4), ("mistral", 2))),
)
def test_ranks_compute_the_logits_of_one_process(
    tiny: ModuleType, tiny_model: Callable[..., Path], family: str, tp: int
) -> None:
    """Four ranks have two key-value heads, so two ranks have the same."""
    path = tiny_model(family)
    assert distance(of_ranks(tiny, path, tp), logits(tiny, load(path))) < 1e-4


VARIANTS: dict[str, dict[str, Any]] = {
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "one key-value head": {"num_key_value_heads": 1},
    "four key-value heads": {"num_key_value_heads": 4},
    "a vocabulary that is not cut evenly": {"vocab": 321},
}


@pytest.mark.parametrize("variant", in_short(["biases", "four key-value heads"], VARIANTS))
def test_ranks_compute_variants(tiny: ModuleType, tiny_model: Callable[..., Path], variant: str) -> None:
    path = tiny_model("llama", **VARIANTS[variant])
    found = of_ranks(tiny, path, 4)
    assert distance(found, logits(tiny, load(path))) < 1e-4
    assert all(one.is_contiguous() for one in found), "the sampler's kernels read whole rows"


@pytest.mark.parametrize("weight_dtype", in_short(["int4"], ["int8", "int4"]))
def test_ranks_cut_weights_in_few_bits(
    native: None, tiny: ModuleType, tiny_model: Callable[..., Path], weight_dtype: str
) -> None:
    """Groups of 32 inputs are not cut. The kernel rounds the inputs of a row to 8 bits by their largest number, which
    differs between a part and the whole."""
    path = tiny_model("llama", intermediate_size=128)
    alone = logits(tiny, load(path, weight_dtype=weight_dtype))
    assert distance(of_ranks(tiny, path, 2, weight_dtype=weight_dtype), alone) < 0.3
    with pytest.raises(Unsupported, match=r"o_proj has groups of 32 inputs, which tp would cut at 0 and 16; choose"):
        load(path, weight_dtype=weight_dtype, shard=Shard(0, 4))


@pytest.mark.parametrize("kind", in_short(["awq"], ["gptq", "awq", "fp8", "Q8_0"]))
def test_ranks_cut_checkpoints_in_few_bits(
    native: None, tiny: ModuleType, tiny_model: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    """Dequantised they give the logits of one process; in few bits nearly so, for the reason above."""
    source, path = tiny_model("llama", intermediate_size=128, tie_word_embeddings=kind == "Q8_0"), tmp_path / "few"
    if kind == "Q8_0":
        path = path.with_suffix(".gguf")
        write_gguf(source, path, "llama", kind)
    else:
        few_bits.write(source, path, kind)
    for weight_dtype, most in (("dtype", 1e-4), ("auto", 0.3)):
        alone = logits(tiny, load(path, weight_dtype=weight_dtype))
        assert distance(of_ranks(tiny, path, 2, weight_dtype=weight_dtype), alone) < most


@pytest.mark.parametrize("n_in", [20, 64])
def test_a_part_of_a_weight_in_few_bits_has_the_same_numbers(n_in: int) -> None:
    """With 20 inputs there is one group, which can be cut anywhere."""
    whole = quantise(torch.randn(6, n_in), 8)
    whole = whole._replace(minimum=torch.randn(whole.scale.shape))
    inputs: Grouped = cut(whole, slice(n_in // 2, n_in), "down", by_inputs=True)
    outputs: Grouped = cut(whole, slice(2, 4), "up")
    assert torch.equal(inputs.dequantise(), whole.dequantise()[:, n_in // 2 :])
    assert torch.equal(outputs.dequantise(), whole.dequantise()[2:4])


def test_deterministic_ranks_give_a_row_the_same_bits_in_any_batch(
    native: None, tiny: ModuleType, tiny_model: Callable[..., Path]
) -> None:
    """Four ranks: with two, a sum has one order only."""
    path, ids = tiny_model("llama"), list(range(3, 60))
    chunks = [[{"a": ids}], [{"a": ids[:20], "b": [1, 2]}, {"b": [3], "a": ids[20:]}]]
    whole, parts = (of_ranks(tiny, path, 4, deterministic=True, steps=steps) for steps in chunks)
    assert torch.equal(whole[0], torch.cat([parts[0], parts[3]]))


@pytest.mark.parametrize(("family", "tp", "fields", "message"), [
    ("llama", 3, {}, "tp is 3, .* 4 heads, 2 key-value heads and 112 .*; tp can be 1, 2, 4$"),
    ("llama", 4, {"intermediate_size": 110}, "110 intermediate features.* tp can be 1, 2$"),
    ("gpt2", 2, {}, "gpt2 runs in transformers' own code"),
])  # fmt: skip
def test_a_model_that_cannot_be_cut_is_refused(
    tiny_model: Callable[..., Path], family: str, tp: int, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, Unsupported), match=message):
        sharded(read_spec(tiny_model(family, **fields)), tp)


def test_a_rank_gets_what_rank_0_shares() -> None:
    """As the ids of a step do on a GPU."""
    store = dist.HashStore()

    def run(rank: int) -> Tensor:
        shard = Shard(rank, 2)
        shard.connect(store, torch.device("cpu"))
        return shard.share(torch.arange(4) * (1 - rank))

    with ThreadPoolExecutor(2) as pool:
        assert [one.tolist() for one in pool.map(run, range(2))] == [[0, 1, 2, 3]] * 2


def test_a_part_refuses_adapters(tiny_model: Callable[..., Path]) -> None:
    spec = sharded(read_spec(tiny_model("llama")), 2)
    with pytest.raises(Unsupported, match="adapters with tp=2"):
        lora.read(Path("anywhere"), spec, torch.device("cpu"), torch.float32)
