"""Runs decode steps as CUDA graphs, so that a step of few rows is one launch instead of hundreds.

There is a graph for each of a few batch sizes, captured when it is first needed. Other steps run without a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.model.load import Model

if TYPE_CHECKING:
    from banyan.kernels.attention.graph_batch import GraphBatch

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Captured(NamedTuple):
    replay: Callable[[], None]
    out: Tensor  # output of the captured function; each replay overwrites it


Capture = Callable[[Callable[[], Tensor]], Captured]


def cuda_capture() -> Capture:
    """Make a capture function. Its graphs share one memory pool, because no two of them run at once."""
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], Tensor]) -> Captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = run()
        return Captured(graph.replay, out)

    return capture


class _CapturedStep(NamedTuple):
    fixed: GraphBatch
    ids: Tensor  # int64 [size]
    positions: Tensor  # int64 [size]
    rows: Tensor  # int64 [size]; the graph reads it, but does not keep it alive
    captured: Captured


class Graphs:
    """The captured decode steps of a model over a KV pool."""

    def __init__(self, model: Model, store: KVPool, context: int, capture: Capture) -> None:
        """context: tokens of the longest request. capture: `cuda_capture()`."""
        self.model, self.store, self.capture = model, store, capture
        self.n_pages = -(-context // store.page)
        self.steps: dict[int, _CapturedStep] = {}  # by size
        self.n_captured = 0

    def __call__(self, batch: Batch) -> Tensor | None:
        """Run a step in which every request decodes one token. Returns its logits, which the next step overwrites. Runs
        nothing and returns None for any other step, and for more requests than the largest of SIZES."""
        n = len(batch.sampled_for)
        is_decode = set(batch.ragged.q_lens) == {1} and n == len(batch.ids) and not batch.scored
        size = next((size for size in SIZES if size >= n), 0)
        if not is_decode or not size:
            return None
        step = self.steps.get(size)
        if step is None or not step.fixed.fill(batch.ragged):
            step = self.steps[size] = self._capture(batch, size)
        step.ids[:n].copy_(batch.ids)
        step.positions[:n].copy_(batch.positions)
        step.captured.replay()
        return step.captured.out[:n]

    def _capture(self, batch: Batch, size: int) -> _CapturedStep:
        """Run the step without a graph, which compiles kernels and shows which attention plans the layers need; then
        capture it."""
        from banyan.kernels.attention.graph_batch import GraphBatch  # imports Triton, which a CPU does not need

        if self.steps.pop(size, None) is not None and batch.ids.is_cuda:  # the new graph takes over its memory,
            torch.cuda.synchronize(batch.ids.device)  # so a replay that is still in flight must end first
        model, kv = self.model, self.store.kv
        model.forward(batch.ids, batch.positions, batch.ragged, kv, batch.rows)
        fixed = GraphBatch(batch.ragged, size, self.n_pages, self.store.spare, self.store.window_spare)
        ids, positions = (torch.zeros(size, dtype=torch.int64, device=batch.ids.device) for _ in range(2))
        ids[: len(batch.ids)].copy_(batch.ids)
        positions[: len(batch.ids)].copy_(batch.positions)
        rows = torch.arange(size, device=batch.ids.device)

        def run() -> Tensor:
            return model.forward(ids, positions, fixed.ragged, kv, rows)

        run()  # compiles for the padded shapes; writes the same KV as the step itself
        self.n_captured += 1
        return _CapturedStep(fixed, ids, positions, rows, self.capture(run))
