"""A batch of decodes at fixed addresses, so that a captured step (a CUDA graph) can be replayed for other batches.

A captured launch keeps its grid and its pointers. So the tables have room for more rows, items, partial results and
merges than a step needs. Unused entries are zero: for an item without rows or a merge without parts, a kernel does
nothing.
"""

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.kernel import PlanKey, host_plan
from banyan.kernels.attention.plan import WAVES, AttentionPlan
from banyan.kernels.attention.ragged import Ragged
from banyan.kernels.device import n_processors


class GraphBatch:
    """Buffers for a batch of up to `n_rows` decodes of up to `n_pages` pages each, at fixed addresses, for the Triton
    kernels.

    A captured step computes on the batch `ragged`, whose tensors are these buffers. `fill` copies another batch into
    them. Rows that the last `fill` did not use write their K and V to the `spare` slots, which nobody reads; the
    results of these rows are meaningless.
    """

    def __init__(self, like: Ragged, n_rows: int, n_pages: int, spare: range, window_spare: range = range(0)) -> None:
        """like: a batch of decodes that the model has already computed eagerly, so that `like.plans` holds the plans of
        all layers. n_pages: maximum number of pages of one row. spare: KV slots to which unused rows write.
        window_spare: the same for windowed layers, if these have their own pages."""
        device = like.slots.device
        self._windowed = None if like.windowed is None else GraphBatch(like.windowed, n_rows, n_pages, window_spare)
        self._spare = torch.tensor(spare, dtype=torch.int64, device=device).repeat(-(-n_rows // len(spare)))[:n_rows]
        keys = [key for key in like.plans if isinstance(key, PlanKey)]
        self._tables = {key: _PlanTables(host_plan(like, key), key, n_rows, device) for key in keys}
        self.ragged: Ragged = like._replace(
            q_start=torch.zeros(n_rows + 1, dtype=torch.int32, device=device),
            kv_len=torch.zeros(n_rows, dtype=torch.int32, device=device),
            page_table=torch.zeros(n_rows, n_pages, dtype=torch.int32, device=device),
            slots=self._spare.clone(),
            position=torch.zeros(n_rows, dtype=torch.int32, device=device),
            q_lens=(),
            kv_lens=(),
            plans={key: tables.on_device() for key, tables in self._tables.items()},
            subtrees=(),
            windowed=None if self._windowed is None else self._windowed.ragged,
        )
        assert self.fill(like), "there must be room for the batch `like`"

    def fill(self, batch: Ragged) -> bool:
        """Copies the counts, pages and plans of a batch of decodes. Returns False, with nothing changed, if the batch
        does not fit."""
        plans = [(tables, host_plan(batch, key)) for key, tables in self._tables.items()]
        n, to = len(batch.q_lens), self.ragged
        if n > len(to.slots) or not all(tables.has_room(plan) for tables, plan in plans):
            return False
        if self._windowed is not None and (batch.windowed is None or not self._windowed.fill(batch.windowed)):
            return False
        for tables, plan in plans:
            tables.fill(plan)
        to.page_table[:n, : batch.page_table.shape[1]].copy_(batch.page_table)
        to.slots[n:].copy_(self._spare[n:])
        for target, source in ((to.slots, batch.slots), (to.position, batch.position), (to.kv_len, batch.kv_len)):
            target[:n].copy_(source)
        to.q_start[: n + 1].copy_(batch.q_start)
        return True


class _PlanTables:
    """Space on the device for the four tables of a plan. They are parts of one tensor, so one copy transfers them all.

    A plan fits if it has at most twice the items and twice the partial results of `like`, the constructor's argument. A
    plan of up to n_rows decodes that share no pages always fits. Such a plan has small items only: those of the
    decodes, and those that read first keys if the layers have them (`PlanKey.first`).

    A captured launch has one program per entry of a table. The program of an unused entry does nothing. If `like` has
    no large items, there is no space for any, and their kernel is not launched.
    """

    def __init__(self, like: AttentionPlan, key: PlanKey, n_rows: int, device: torch.device) -> None:
        n_items = (2 if key.first else 1) * n_rows + WAVES * n_processors(key.arch) // key.n_kv_heads
        self.n_partials = max(2 * n_items, 2 * like.n_partials)
        self.shapes = [(max(n_items, 2 * len(like.small)), 8), (2 * len(like.large), 8)]
        self.shapes += [(n_rows + self.n_partials, 2), (n_rows, 4)]
        self.data = torch.zeros(sum(n * m for n, m in self.shapes), dtype=torch.int32, device=device)

    def on_device(self) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """Returns (small items, large items, rows, merges, number of partial results), as `Ragged.plans` holds a plan.
        The tables are views of one tensor, which `fill` overwrites."""
        parts = torch.split(self.data, [n * m for n, m in self.shapes])
        small, large, rows, merges = (part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))
        return small, large, rows, merges, self.n_partials

    def has_room(self, plan: AttentionPlan) -> bool:
        """Whether the tables have space for all entries and partial results of `plan`."""
        lengths = [len(table) <= n for table, (n, _) in zip(plan[:4], self.shapes, strict=True)]
        return all(lengths) and plan.n_partials <= self.n_partials

    def fill(self, plan: AttentionPlan) -> None:
        """Copies a plan to the device, asynchronously."""
        host = torch.zeros(len(self.data), dtype=torch.int32, pin_memory=self.data.is_cuda)
        for to, table in zip(torch.split(host, [n * m for n, m in self.shapes]), plan[:4], strict=True):
            to[: table.size].copy_(torch.from_numpy(np.ascontiguousarray(table).reshape(-1)))
        self.data.copy_(host, non_blocking=True)
