"""Attention on --device: the compiled Triton kernels on a GPU, otherwise the CPU path."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from banyan.kernels import ops
from banyan.kernels.kv_layout import KV_KINDS
from banyan.runtime import config as configs
from banyan.runtime.config import Resolved
from banyan.runtime.engine.cuda_graphs import Graphs, cuda_capture
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.model_runner import ModelRunner, decodes
from banyan.runtime.model.load import load
from banyan.runtime.protocol.wire import Sampling
from forms import examples, in_short, short_form
from kernel_support.cases import Case, attention_case, drawn_case, random_trees

OPTIONS = [
    {},
    {"window": 40},
    {"window": 40, "first": 4},
    {"softcap": 5.0},
    {"sinks": True},
    {"window": 90, "softcap": 9.0, "sinks": True},
]
calls = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**31),
        "requests": st.lists(st.tuples(st.integers(0, 64), st.integers(0, 900)), min_size=1, max_size=6),
        "heads": st.sampled_from([(4, 4), (8, 2), (6, 1), (16, 2)]),
        "dim": st.sampled_from([64, 80, 128]),
        "dtype": st.sampled_from([torch.float32, torch.bfloat16]),
        "page_size": st.sampled_from([1, 16, 64]),
        "kv": st.sampled_from(["", "", *KV_KINDS]),
        "shared_pages": st.integers(0, 20),
        "options": st.sampled_from(OPTIONS),
        "trees": st.booleans(),
    }
)


def check(case: Case) -> None:
    case.check(ops.attention(*case))


@examples(15, 40, given(call=calls))
def test_random_batches_agree(call: dict, device: str) -> None:
    check(drawn_case(device=device, **call.pop("options"), **call))


@pytest.mark.parametrize("options", in_short(OPTIONS[-1:], OPTIONS), ids=str)
def test_long_reads_agree(options: dict, device: str) -> None:
    check(attention_case(1, [1, 1, 64], [5000, 17, 3000], heads=(8, 2), device=device, **options))


@pytest.mark.parametrize(
    ("n_heads", "kv"), short_form(product([16, 128], ["", "fp8"]), lambda n_heads, kv: n_heads == 16)
)
def test_latents_agree(n_heads: int, kv: str, device: str) -> None:
    shape = {"heads": (n_heads, 1), "dim": 576, "latent_dim": 512, "dtype": torch.bfloat16, "kv": kv}
    check(attention_case(2, [1, 1, 20], [600, 17, 90], device=device, **shape))
    trees = random_trees(3, [9, 1])
    check(attention_case(4, [9, 1], [100, 40], parents=trees, device=device, **shape))


@pytest.mark.parametrize("heads", [(8, 2), (16, 1)])
def test_window_over_a_tree_of_many_tiles(heads: tuple[int, int], device: str) -> None:
    """A row near the root may follow a deep row, and its window starts at an earlier key."""
    parents = [[-1, *range(9), *([0] * 30)]]
    check(attention_case(3, [40], [300], heads=heads, window=41, parents=parents, device=device))


def test_captured_steps_agree_with_the_model(device: str, tiny_model: Callable[..., Path]) -> None:
    """Runs CUDA graphs of decode steps; `interpreted/test_graph_batch.py` tests the same on a CPU."""
    if device != "cuda":
        pytest.skip("CUDA graphs need --device=cuda")
    model = load(tiny_model(head_dim=16), device=device)
    store = KVPool(model.spec, 64, 16, device)
    runner = ModelRunner(model, store, Graphs(model, store, 256, cuda_capture()))
    for n in (3, 4, 1, 3):
        batch = decodes(n, store)
        actual = runner(batch, ()).clone()
        expected = model.forward(batch.ids, batch.positions, batch.ragged, store.kv, batch.rows)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("deterministic", [False, True], ids=["captured", "deterministic"])
def test_steps_ahead_give_the_same_outputs(
    device: str, tiny_model: Callable[..., Path], module_at: Callable[[Path], ModuleType], deterministic: bool
) -> None:
    """Runs the engine loop on a real device; `runtime/engine/late.py` simulates one for other tests."""
    engine_tests = Path(__file__).parents[1] / "runtime" / "engine"
    fake, late = module_at(engine_tests / "fake.py"), module_at(engine_tests / "late.py")
    model = load(tiny_model(head_dim=16), device=device)
    kinds = [
        Sampling(temperature=0.0, max_tokens=40),
        Sampling(temperature=0.8, top_p=0.9, max_tokens=30),
        Sampling(temperature=0.0, frequency_penalty=1.0, logprobs=True, max_tokens=20),
    ]
    runs = [fake.run(i, range(3, 20 + 9 * i), kinds[i % 3], seed=i) for i in range(6)]
    outputs = []
    for is_ahead in (False, device == "cuda"):
        resolved = Resolved(device=device, dtype="float32", context=256, n_pages=64, n_host=0, threads=1, decisions=())
        e = EngineLoop(configs.make(speculate="off", step_tokens=32, deterministic=deterministic), model, resolved)
        e.plans_ahead = is_ahead
        box = late.loop(e, {2 * i: [run] for i, run in enumerate(runs)})
        outputs.append((box.outputs, {rid: len(tops) for rid, tops in box.logprobs.items()}))
        assert not box.failed
        assert (e.scheduler.counts["steps_ahead"] > 0.8 * e.scheduler.counts["steps"]) == is_ahead
    assert outputs[0] == outputs[1]
