"""Runs a model over batches: its pools, its weights, and nothing of requests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from banyan.kernels.ops import ragged
from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.store import Store
from banyan.runtime.model.load import Model


class Runner:
    """A model and the store that its KV lies in."""

    def __init__(self, model: Model, store: Store) -> None:
        self.model = model
        self.store = store

    @torch.inference_mode()
    def warm_up(self, n_rows: int) -> None:
        """Run a prompt of `n_rows` tokens and a decode behind it: kernels are compiled and threads started before the
        first request comes. Writes to the first pages, which hold nothing yet."""
        page, device = self.store.page, self.store.device
        pages = [range(-(-(n_rows + 1) // page))]
        for start, end in ((0, n_rows), (n_rows, n_rows + 1)):
            n = end - start
            at = torch.arange(start, end, device=device)
            rows = torch.tensor([n - 1], device=device)
            self.model.forward(torch.zeros_like(at), at, ragged([n], [end], pages, page, device), self.store.kv, rows)

    @torch.inference_mode()
    def __call__(self, batch: Batch, copies: Sequence[tuple[int, int, int]]) -> Tensor:
        """One forward pass, after the page copies it stands on. Logits float32 [n_scored + n_drawn, vocab]."""
        self.store.copy(copies)
        return self.model.forward(batch.ids, batch.positions, batch.ragged, self.store.kv, batch.rows)
