"""Keys and values in 8 bits, in an engine: they move with their scales, and the answers stay what they were."""

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
from banyan.runtime.config import Resolved, make
from banyan.runtime.engine.kv_pool import KVPool, bytes_per_token
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.model.load import Model, load
from banyan.runtime.protocol.wire import Run, Sampling

KINDS = ["int8", "fp8"]
N_OUT = 10


@pytest.fixture(scope="module")
def model() -> Model:
    return load("pocket")


def engine(model: Model, n_pages: int = 256, n_host: int = 0, **options: object) -> EngineLoop:
    resolved = Resolved(
        device="cpu", dtype="float32", context=512, n_pages=n_pages, n_host=n_host, threads=1, decisions=()
    )
    config = make(**({"speculate": "off", "host_memory": "1GiB"} | options))
    return EngineLoop(config, model, resolved, clock=lambda: 0.0, weights="w", stopwatch=lambda: 0.0)


def texts(vocab: int) -> list[list[int]]:
    """Alone, and forked at and between borders of pages."""
    chance = random.Random(3)

    def some(n: int) -> list[int]:
        return [chance.randrange(3, vocab) for _ in range(n)]

    root = some(70)
    return [some(5), some(90), root, root + some(9), root[:64] + some(30), root[:41] + some(3)]


def answers(fake: ModuleType, e: EngineLoop, asked: list[list[int]]) -> list[list[int]]:
    sampling = Sampling(temperature=0.0, max_tokens=N_OUT, ignore_eos=True)
    runs = [Run(rid, array("i", ids).tobytes(), sampling) for rid, ids in enumerate(asked)]
    outputs = fake.drive(e, runs, check=True)
    return [outputs[rid].ids for rid in range(len(asked))]


@pytest.mark.parametrize("kv", KINDS)
def test_pages_move_with_their_scales(kv: str, model: Model) -> None:
    """Page 1 is copied in part, a slot moves, and page 2 goes to the host and comes back as page 4."""
    store = KVPool(model.spec, 5, 4, "cpu", n_host=2, kv_dtype=kv)  # type: ignore[arg-type]
    pools = [part for pair in store.kv for pool in pair for part in parts(pool)]
    assert all(isinstance(pool, Quantized) for pair in store.kv for pool in pair)
    assert sum(part[0].numel() * part.element_size() for part in pools) == 4 * bytes_per_token(model.spec, kv)  # type: ignore[arg-type]
    torch.manual_seed(0)
    for part in pools:
        part.copy_(torch.randint(0, 120, part.shape))
    before = [part.clone() for part in pools]
    store.copy([(1, 3, 2)])
    store.copy_slots([([1], [0])])
    store.move([Move(True, 2, 1), Move(False, 4, 1)])
    for part, was in zip(pools, before, strict=True):
        want: Tensor = was.clone()
        want[3, :2], want[0, 0], want[4] = was[1, :2], was[0, 1], was[2]
        assert torch.equal(part, want)


@pytest.mark.parametrize("kv", KINDS)
def test_the_same_answer_by_every_road(kv: str, fake: ModuleType, model: Model, tmp_path: Path) -> None:
    """What is quantised depends on its own token alone: so cold, warm, in chunks, from the host or from a file, pages
    hold the same numbers."""
    asked = texts(model.spec.vocab_size)
    want = answers(fake, engine(model, kv_dtype=kv, cache=False, host_memory="0", step_tokens=512), asked)
    warm = engine(model, kv_dtype=kv, step_tokens=7)
    assert [answers(fake, warm, [ids])[0] for ids in asked] == want
    assert answers(fake, warm, asked) == want
    options = {"kv_dtype": kv, "n_pages": 12, "n_host": 200, "host_file": str(tmp_path / "kv")}
    small = engine(model, **options)
    for _ in range(2):
        assert [answers(fake, small, [ids])[0] for ids in asked] == want
    assert small.cache.stats().n_moved_in > 0
    small.close()
    again = engine(model, **options)
    assert [answers(fake, again, [ids])[0] for ids in asked] == want
    assert again.cache.stats().n_host_hit_tokens > 0
    again.close()


def test_a_file_of_another_kind_is_not_taken(fake: ModuleType, model: Model, tmp_path: Path) -> None:
    asked = texts(model.spec.vocab_size)
    options = {"n_pages": 12, "n_host": 200, "host_file": str(tmp_path / "kv")}
    for kv in ("int8", "fp8", "auto"):
        e = engine(model, kv_dtype=kv, **options)
        answers(fake, e, asked[:1])
        answers(fake, e, asked[1:2])
        assert e.cache.stats().n_host_hit_tokens == 0
        e.close()


@pytest.mark.parametrize("family", ["gemma2"])
def test_models_of_transformers_code_write_and_read_8_bits(family: str, fake: ModuleType, tiny_model: object) -> None:
    borrowed = load(tiny_model(family))  # type: ignore[operator]
    asked = [ids[:40] for ids in texts(borrowed.spec.vocab_size)]
    chunks = [answers(fake, engine(borrowed, kv_dtype="int8", step_tokens=n), asked) for n in (7, 512)]
    assert chunks[0] == chunks[1]
