"""Runs a model over batches: its pools, its weights, and nothing of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from banyan.kernels.attention import share_threshold
from banyan.kernels.device import INTERPRETED
from banyan.kernels.ops import ragged
from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.cuda_graphs import SIZES, Graphs
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.model.load import Model


class ModelRunner:
    """A model and the store that its KV lies in."""

    def __init__(self, model: Model, store: KVPool, graphs: Graphs | None = None) -> None:
        """graphs: of the same model and store, where decode steps are to be captured and replayed."""
        self.model = model
        self.store = store
        self.graphs = graphs

    @torch.inference_mode()
    def settle(self) -> None:
        """Have plans go by what a shared read costs on this device, for this model; measured the first time."""
        spec, store = self.model.spec, self.store
        if not INTERPRETED:
            sizes = spec.n_heads, spec.n_kv_heads, spec.head_dim, store.page
            share_threshold.calibrate(share_threshold.AttentionShape(*sizes, store.dtype, store.kv_dtype), store.device)

    @torch.inference_mode()
    def warm_up(self, n_rows: int, n_running: int = 1) -> None:
        """Run a prompt of `n_rows` tokens and a decode behind it: kernels are compiled and threads started before the
        first request comes; and decodes of up to `n_running` requests, where they are captured. Writes to the first
        pages, which hold nothing yet."""
        page, device = self.store.page, self.store.device
        pages = [range(-(-(n_rows + 1) // page))]
        for start, end in ((0, n_rows), (n_rows, n_rows + 1)):
            n = end - start
            at = torch.arange(start, end, device=device)
            rows = torch.tensor([n - 1], device=device)
            self.model.forward(torch.zeros_like(at), at, ragged([n], [end], pages, page, device), self.store.kv, rows)
        for n in SIZES if self.graphs is not None else ():
            if n <= n_running:
                self.graphs(decodes(n, self.store))

    @torch.inference_mode()
    def __call__(self, batch: Batch, copies: Sequence[tuple[int, int, int]]) -> Tensor:
        """One forward pass, after the page copies it stands on. Logits float32 [n_scored + n_drawn, vocab]."""
        self.store.copy(copies)
        batch.see()
        if self.graphs is not None and (logits := self.graphs(batch)) is not None:
            return logits
        return self.model.forward(batch.ids, batch.positions, batch.ragged, self.store.kv, batch.rows)


def decodes(n: int, store: KVPool) -> Batch:
    """A step of n requests of one token each."""
    device = store.device
    zeros, none = torch.zeros(n, dtype=torch.int64, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    drawn: tuple[Any, ...] = (None,) * n
    batch = ragged([1] * n, [1] * n, [[i % store.n_pages] for i in range(n)], store.page, device)
    return Batch(zeros, zeros, batch, torch.arange(n, device=device), none, (), drawn)
