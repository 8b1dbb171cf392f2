"""Quantised keys and values in an engine: pages move with their scales, and outputs do not depend on caching."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from banyan.kernels.kv_layout import Quantized, parts
from banyan.radix_cache.host_tier import Move
from banyan.runtime.engine.kv_pool import KVPool, bytes_per_token
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.model.load import Model, load
from banyan.runtime.protocol.wire import Run, Sampling
from forms import in_short

KINDS = ["int8", "fp8", "k8v4"]
N_OUT = 10


@pytest.fixture(scope="module")
def model() -> Model:
    return load("pocket")


def engine(fake: ModuleType, model: Model, **options: object) -> EngineLoop:
    sizes = {"context": 512, "weights": "w", "speculate": "off", "host_memory": "1GiB"}
    return fake.engine(model, **(sizes | options))  # type: ignore[no-any-return]


def prompts(vocab: int) -> list[list[int]]:
    """Separate prompts, and prompts forked at and between page boundaries."""
    rng = random.Random(3)

    def tokens(n: int) -> list[int]:
        return [rng.randrange(3, vocab) for _ in range(n)]

    root = tokens(70)
    return [tokens(5), tokens(90), root, root + tokens(9), root[:64] + tokens(30), root[:41] + tokens(3)]


def generate(fake: ModuleType, e: EngineLoop, inputs: list[list[int]]) -> list[list[int]]:
    sampling = Sampling(temperature=0.0, max_tokens=N_OUT, ignore_eos=True)
    runs = [Run(rid, array("i", ids).tobytes(), sampling) for rid, ids in enumerate(inputs)]
    outputs = fake.drive(e, runs, check=True)
    return [outputs[rid].ids for rid in range(len(inputs))]


@pytest.mark.parametrize("kv", KINDS)
def test_pages_move_with_their_scales(kv: str, model: Model) -> None:
    """Page 1 is partly copied, one slot moves, and page 2 returns from the host as page 4."""
    store = KVPool(model.spec, 5, 4, "cpu", n_host=2, kv_dtype=kv)  # type: ignore[arg-type]
    pools = [part for pair in store.kv for pool in pair for part in parts(pool)]
    assert all(isinstance(pool, Quantized) for pair in store.kv for pool in pair)
    assert sum(part[0].numel() * part.element_size() for part in pools) == 4 * bytes_per_token(model.spec, kv)  # type: ignore[arg-type]
    torch.manual_seed(0)
    for part in pools:
        part.copy_(torch.randint(0, 120, part.shape).to(part.dtype))
    before = [part.clone() for part in pools]
    store.copy([(1, 3, 2)])
    store.copy_slots([([1], [0])])
    store.move([Move(True, 2, 1), Move(False, 4, 1)])
    for part, old in zip(pools, before, strict=True):
        expected: Tensor = old.clone()
        expected[3, :2], expected[0, 0], expected[4] = old[1, :2], old[0, 1], old[2]
        assert torch.equal(part, expected)


@pytest.mark.parametrize("kv", in_short(["int8"], KINDS))
def test_outputs_do_not_depend_on_where_pages_come_from(
    kv: str, fake: ModuleType, model: Model, tmp_path: Path
) -> None:
    """Quantisation is per token, so pages are identical cold, warm, chunked, from the host or from a file."""
    inputs = prompts(model.spec.vocab_size)
    expected = generate(fake, engine(fake, model, kv_dtype=kv, cache=False, host_memory="0", step_tokens=512), inputs)
    warm = engine(fake, model, kv_dtype=kv, step_tokens=7)
    assert [generate(fake, warm, [ids])[0] for ids in inputs] == expected
    assert generate(fake, warm, inputs) == expected
    options = {"kv_dtype": kv, "n_pages": 12, "n_host": 200, "host_file": str(tmp_path / "kv")}
    small = engine(fake, model, **options)
    for _ in range(2):
        assert [generate(fake, small, [ids])[0] for ids in inputs] == expected
    assert small.cache.stats().n_moved_in > 0
    small.close()
    restarted = engine(fake, model, **options)
    assert [generate(fake, restarted, [ids])[0] for ids in inputs] == expected
    assert restarted.cache.stats().n_host_hit_tokens > 0
    restarted.close()


def test_host_file_of_another_kv_dtype_is_ignored(fake: ModuleType, model: Model, tmp_path: Path) -> None:
    inputs = prompts(model.spec.vocab_size)
    options = {"n_pages": 12, "n_host": 200, "host_file": str(tmp_path / "kv")}
    for kv in ("int8", "fp8", "k8v4", "auto"):
        e = engine(fake, model, kv_dtype=kv, **options)
        generate(fake, e, inputs[:1])
        generate(fake, e, inputs[1:2])
        assert e.cache.stats().n_host_hit_tokens == 0
        e.close()


@pytest.mark.parametrize("family", ["gemma2"])
def test_transformers_models_support_8_bit_kv(family: str, fake: ModuleType, tiny_model: object) -> None:
    model = load(tiny_model(family))  # type: ignore[operator]
    inputs = [ids[:40] for ids in prompts(model.spec.vocab_size)]
    chunks = [generate(fake, engine(fake, model, kv_dtype="int8", step_tokens=n), inputs) for n in (7, 512)]
    assert chunks[0] == chunks[1]
