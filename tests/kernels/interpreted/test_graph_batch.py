"""Batches at fixed addresses: a step that was captured once computes every batch that is filled in later.

No GPU is needed: the step runs again on the same tensors to simulate the replay of a graph.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from banyan.kernels.attention import kernel
from banyan.kernels.attention.graph_batch import GraphBatch
from banyan.kernels.attention.plan import MERGE_KEYS
from banyan.kernels.attention.ragged import ragged
from banyan.radix_cache.windows import WindowPages
from banyan.runtime.engine.cuda_graphs import Captured, Graphs
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.model_runner import decodes as decodes_of
from banyan.runtime.model.load import load
from forms import in_short
from kernel_support.cases import Case, attention_case

ENGINE = Path(__file__).parents[2] / "runtime" / "engine"


def simulated_capture(run: Callable[[], Tensor]) -> Captured:
    """Captures `run` as a graph would be: nothing runs before the first replay, and all replays write to one result."""
    captured = Captured(lambda: captured.out.set_(run()), torch.zeros(0))
    return captured


def decodes(seed: int, kv_lens: list[int], shared_pages: int = 0, window: int = 0, first: int = 0) -> Case:
    n = len(kv_lens)
    return attention_case(seed, [1] * n, kv_lens, dim=16, shared_pages=shared_pages, window=window, first=first)


def attend(case: Case, fixed: GraphBatch) -> Tensor:
    """Attention on the fixed batch, which has unused rows after the rows of the case."""
    n = len(case.q)

    def padded(q: Tensor) -> Tensor:
        return torch.cat([q, torch.full((len(fixed.ragged.slots) - n, *q.shape[1:]), torch.nan)])

    options = case.options
    if options.first_q is not None:
        options = options._replace(first_q=padded(options.first_q))
    return kernel.attention(padded(case.q), case.k_pool, case.v_pool, fixed.ragged, options)[:n]


@pytest.mark.parametrize(
    "options",
    in_short([{}], [{}, {"window": 20, "first": 4}, {"window": 20}]),
    ids=str,
)
def test_graph_batch_accepts_other_batches(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MERGE_KEYS, "cuda", 0.0)
    first = decodes(1, [40, 7], **options)
    first.check(kernel.attention(*first))
    fixed = GraphBatch(first.ragged, 5, 30, spare=range(2))
    pointers = [t.data_ptr() for t in fixed.ragged if isinstance(t, Tensor)]
    for case in (first, decodes(2, [100, 90, 95, 60], 3, **options), decodes(3, [1], 0, **options), first):
        assert fixed.fill(case.ragged)
        case.check(attend(case, fixed))
        assert fixed.ragged.slots[len(case.q) :].tolist() == [0, 1, 0, 1, 0][len(case.q) :]
    assert [t.data_ptr() for t in fixed.ragged if isinstance(t, Tensor)] == pointers


def test_graph_batch_has_the_pages_of_windowed_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MERGE_KEYS, "cuda", 0.0)
    cases = [(decodes(i, kv_lens), decodes(i + 1, kv_lens, window=20)) for i, kv_lens in ((1, [40, 7]), (3, [90, 60]))]
    for case in cases[0]:
        kernel.attention(*case)
    first, other = (whole.ragged._replace(windowed=windowed.ragged) for whole, windowed in cases)
    fixed = GraphBatch(first, 4, 30, spare=range(2), window_spare=range(2, 4))
    assert fixed.fill(other)
    assert fixed._windowed is not None
    assert fixed.ragged.seen_in(20) is fixed._windowed.ragged
    for case, own in zip(cases[1], (fixed, fixed._windowed), strict=True):
        case.check(attend(case, own))
    assert fixed._windowed.ragged.slots[2:].tolist() == [2, 3]
    assert not fixed.fill(cases[1][0].ragged), "the pages of windowed layers are missing"


def test_large_items_have_no_launch_until_a_batch_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MERGE_KEYS, "cuda", 0.0)
    alone, shared = decodes(1, [40, 7]), decodes(2, [60] * 20, 3)
    for case in (alone, shared):
        kernel.attention(*case)
    without = GraphBatch(alone.ragged, 24, 30, spare=range(2))
    assert [len(tables[1]) for tables in without.ragged.plans.values()] == [0]
    assert not without.fill(shared.ragged), "a step with large items is captured again"
    alone.check(attend(alone, without))
    fixed = GraphBatch(shared.ragged, 24, 30, spare=range(2))
    for case in (shared, alone):
        assert fixed.fill(case.ragged)
        case.check(attend(case, fixed))


def test_fill_beyond_the_capacity_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MERGE_KEYS, "cuda", 0.0)
    first = decodes(1, [40, 7])
    kernel.attention(*first)
    fixed = GraphBatch(first.ragged, 2, 30, spare=range(2))
    assert not fixed.fill(decodes(2, [9, 9, 9]).ragged), "more rows than the batch has"
    for tables in fixed._tables.values():
        tables.n_partials = 1
    assert not fixed.fill(decodes(2, [70, 70], 3).ragged), "more partial results than the batch has"
    first.check(attend(first, fixed))


def test_step_keeps_all_that_its_graph_reads(tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph keeps addresses, not tensors: if a tensor is freed, its memory may be overwritten."""
    model = load(tiny_model("llama", num_hidden_layers=1))
    read: list[weakref.ref[Tensor]] = []

    def capture(run: Callable[[], Tensor]) -> Captured:
        forward = model.forward
        monkeypatch.setattr(model, "forward", lambda *inputs: read.extend(tensors(inputs)) or forward(*inputs))
        out = run()
        monkeypatch.setattr(model, "forward", forward)
        return Captured(lambda: None, out)

    def tensors(inputs: Any) -> Iterator[weakref.ref[Tensor]]:
        for one in inputs.values() if isinstance(inputs, dict) else inputs:
            if isinstance(one, Tensor):
                yield weakref.ref(one)
            elif isinstance(one, (tuple, list, dict)):
                yield from tensors(one)

    graphs = Graphs(model, store := KVPool(model.spec, 8, 16, "cpu"), 128, capture)
    graphs(decodes_of(3, store))
    assert len(read) > 10
    gc.collect()
    assert all(one() is not None for one in read)


def test_padding_rows_leave_the_gaps_of_page_tables_alone(tiny_model: Callable[..., Path]) -> None:
    """No work item covers a padding row, so the first layer's result is NaN there, and the windowed layer stores NaN in
    its KV. This must not reach the gap page of page tables: the first text's item reads it, and although a mask hides
    these keys, 0 times NaN is NaN."""
    windows = {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}
    model = load(tiny_model("qwen2", num_hidden_layers=2, **windows))
    store = KVPool(model.spec, 10, 16, "cpu", n_window_pages=8)
    for part, n in zip((store._pools, store._window_pools), (10, 8), strict=True):
        for pool in part:
            pool[:n].normal_()
    gap, kv_lens = WindowPages(8, 16, 11, 16).null, [120, 5, 3]
    whole = ragged([1] * 3, kv_lens, [range(8), [8], [9]], 16)
    own = ragged([1] * 3, kv_lens, [[gap] * 6 + [0, 1], [2], [3]], 16)
    batch = decodes_of(3, store)._replace(
        ids=torch.tensor([7, 8, 9]), positions=torch.tensor(kv_lens) - 1, ragged=whole._replace(windowed=own)
    )
    expected = model.forward(batch.ids, batch.positions, batch.ragged, store.kv, batch.rows)
    graphs = Graphs(model, store, 128, simulated_capture)
    for _ in range(2):
        torch.testing.assert_close(graphs(batch), expected)
    assert list(graphs.steps) == [4], "one padding row"


@pytest.mark.long
@pytest.mark.parametrize(("n_layers", "n_window_pages"), [(1, 0), (2, 0), (2, 48)])
def test_engine_with_captured_steps_gives_the_same_outputs(
    n_layers: int, n_window_pages: int, tiny_model: Callable[..., Path], module_at: Callable[[Path], ModuleType]
) -> None:
    """Includes steps that are launched before the previous step, whose samples they need, has ended; and a last layer
    with a window and pages of its own."""
    fake, late = module_at(ENGINE / "fake.py"), module_at(ENGINE / "late.py")
    windows = {"use_sliding_window": bool(n_window_pages), "sliding_window": 11, "max_window_layers": 1}
    model = load(tiny_model("qwen2", num_hidden_layers=n_layers, **windows))
    ids = []
    for is_captured, is_ahead in ((False, False), (True, False), (True, True)):
        engine = fake.engine(model, n_pages=32, n_window_pages=n_window_pages, context=128, speculate="off")
        runner = engine.model
        if is_captured:
            runner.graphs = Graphs(model, runner.store, 128, simulated_capture)
            runner.warm_up(5, 2)
            assert sorted(runner.graphs.steps) == [1, 2]
        prompts = [list(range(10, 10 + n)) for n in (5, 20, 3)]
        runs = [fake.run(i, p, fake.Sampling(temperature=0.0, max_tokens=4 + 2 * i)) for i, p in enumerate(prompts)]
        if is_ahead:
            box = late.play(engine, {0: runs})
            ids.append([box.outputs[i] for i in range(3)])
            assert engine.scheduler.counts["steps_ahead"] > 5
        else:
            outputs = fake.drive(engine, runs)
            ids.append([outputs[i].ids for i in range(3)])
        if is_captured:
            assert sorted(runner.graphs.steps) == [1, 2, 4]
            assert runner.graphs.n_captured == 3
    assert ids[0] == ids[1] == ids[2]
