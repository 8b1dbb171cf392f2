"""Runs a model over batches. Knows its weights and its KV pool, but no requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from banyan.kernels.lora.adapted import AdaptedRows
from banyan.kernels.native import threads
from banyan.kernels.ops import Ragged, ragged
from banyan.radix_cache.host_tier import Move
from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.cuda_graphs import SIZES, Graphs
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.model.load import Model
from banyan.runtime.protocol.wire import Run, Sampling

if TYPE_CHECKING:
    from banyan.runtime.model.hf import HfModel


class ModelRunner:
    """A model and the pool of its KV. graphs: set if decode steps are captured and replayed. All changes that a step
    makes to the pool go through this class."""

    has_whole_pages = True
    """Whether the pool has the KV of all heads. False with tensor parallelism."""

    def __init__(self, model: Model, store: KVPool, graphs: Graphs | None = None) -> None:
        self.model, self.store, self.graphs = model, store, graphs

    @torch.inference_mode()
    def warm_up(self, n_rows: int, n_running: int = 1) -> None:
        """Run a prompt of n_rows tokens and then a decode, so that kernels are compiled and threads started before the
        first request; and capture decodes of up to n_running requests. Writes to the first pages, which must hold
        nothing."""
        page, device = self.store.page, self.store.device
        pages = [range(-(-(n_rows + 1) // page))]
        for start, end in ((0, n_rows), (n_rows, n_rows + 1)):
            n = end - start
            at = torch.arange(start, end, device=device)
            rows = torch.tensor([n - 1], device=device)
            if self.store.states is not None:
                self.store.states.copy([] if start else [(-1, 0)])
                self.store.states.begin([(n, 0, ())])
            self.forward(torch.zeros_like(at), at, ragged([n], [end], pages, page, device), rows)
        if self.graphs is not None:
            for n in SIZES:
                if n <= n_running:
                    self.graphs(decodes(n, self.store))

    @torch.inference_mode()
    def __call__(self, batch: Batch, copies: Sequence[tuple[int, int, int]]) -> Tensor:
        """One forward pass, after the copies of pages and states that it needs. Returns logits, float32 [n_scored +
        n_sampled, vocab]; the logits of a captured step are overwritten by the next one."""
        self.copy(copies)
        batch.fill_deferred()
        if self.store.states is not None:
            self.store.states.copy(batch.state_copies)
            self.store.states.begin(batch.spans)
        if self.graphs is not None and batch.adapted is None and (logits := self.graphs(batch)) is not None:
            return logits
        if batch.images is not None:
            arguments = batch.ids, batch.positions, batch.ragged, self.store.kv, batch.rows
            return cast("HfModel", self.model).forward(*arguments, images=batch.images)
        return self.forward(batch.ids, batch.positions, batch.ragged, batch.rows, batch.adapted)

    def forward(self, ids: Tensor, positions: Tensor, ragged: Ragged, rows: Tensor,
                adapted: AdaptedRows | None = None) -> Tensor:  # fmt: skip
        """Run the model once; see `Model.forward`. rows: the rows whose logits are needed. Returns their logits,
        float32 [len(rows), vocab]."""
        arguments = ids, positions, ragged, self.store.kv, rows
        return self.model.forward(*arguments) if adapted is None else self.model.forward(*arguments, adapted)

    def move(self, moves: Sequence[Move]) -> None:
        """Move pages between the device and host memory; see `KVPool.move`."""
        self.store.move(moves)

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy the start of pages to other pages; see `KVPool.copy`."""
        self.store.copy(copies)

    def copy_slots(self, paths: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Copy KV from slots to other slots; see `KVPool.copy_slots`."""
        self.store.copy_slots(paths)

    def load(self, pages: Sequence[int], memory: Tensor, first: int, n_pages: int) -> None:
        """Copy pages that another engine has exported into the pool; see `KVPool.load`."""
        self.store.load(pages, memory, first, n_pages)


def use_threads(n: int, model: Model) -> None:
    """Compute on n threads of the CPU."""
    threads.use(n)
    torch.set_num_threads(1 if getattr(model, "is_packed", False) else n)


def decodes(n: int, store: KVPool) -> Batch:
    """Make a batch of n requests with one token each, for warming up."""
    device = store.device
    zeros, none = torch.zeros(n, dtype=torch.int64, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    batch = ragged([1] * n, [1] * n, [[i % store.n_pages] for i in range(n)], store.page, device)
    if store.n_window_pages:
        own = [[i % store.n_window_pages] for i in range(n)]
        batch = batch._replace(windowed=ragged([1] * n, [1] * n, own, store.page, device))
    request = Request(Run(0, bytes(4), Sampling()), 1)
    return Batch(zeros, zeros, batch, torch.arange(n, device=device), none, (), (request,) * n)
