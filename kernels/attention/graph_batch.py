"""A batch of decodes whose tensors stay where they are, so that a captured step (a CUDA graph) can be replayed on it.

A captured launch has its grid and its pointers for good. So there is room for more rows, items, partial results and
merges than a step has, and what it does not need is zero: an item without rows and a merge without parts do nothing.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.kernel import Key, host_plan
from banyan.kernels.attention.plan import WAVES, AttentionPlan
from banyan.kernels.attention.ragged import Ragged
from banyan.kernels.device import n_processors


class Fixed:
    """Room for `n_rows` decodes of up to `n_pages` pages each, on the Triton kernels.

    `ragged` is what a captured step computes on. Rows behind those of the last `fill` write to the slots `spare`, in
    turn, which nobody reads, and their results mean nothing.
    """

    def __init__(self, like: Ragged, n_rows: int, n_pages: int, spare: range) -> None:
        """like: a batch that has been computed, so that its `plans` say what the layers of the model ask for."""
        device = like.slots.device
        self._spare = torch.tensor(spare, dtype=torch.int64, device=device).repeat(-(-n_rows // len(spare)))[:n_rows]
        self._tables = {key: _Tables(host_plan(like, key), key, n_rows, device) for key in _keys(like)}
        self.ragged = like._replace(
            q_start=torch.zeros(n_rows + 1, dtype=torch.int32, device=device),
            kv_len=torch.zeros(n_rows, dtype=torch.int32, device=device),
            page_table=torch.zeros(n_rows, n_pages, dtype=torch.int32, device=device),
            slots=self._spare.clone(),
            q_lens=(),
            kv_lens=(),
            subtrees=(),
            position=torch.zeros(n_rows, dtype=torch.int32, device=device),
            plans={key: tables.on_device() for key, tables in self._tables.items()},
        )
        assert self.fill(like), "there is room for the batch that it was made for"

    def fill(self, batch: Ragged) -> bool:
        """Take the counts, pages and plans of a batch of decodes. False, and nothing is changed: they find no room."""
        made = [(tables, host_plan(batch, key)) for key, tables in self._tables.items()]
        n, to = len(batch.q_lens), self.ragged
        if n > len(to.slots) or not all(tables.has_room(plan) for tables, plan in made):
            return False
        for tables, plan in made:
            tables.fill(plan)
        assert to.position is not None
        assert batch.position is not None
        to.page_table[:n, : batch.page_table.shape[1]].copy_(batch.page_table)
        to.slots[n:].copy_(self._spare[n:])
        for mine, its in ((to.slots, batch.slots), (to.position, batch.position), (to.kv_len, batch.kv_len)):
            mine[:n].copy_(its)
        to.q_start[: n + 1].copy_(batch.q_start)
        return True


def _keys(ragged: Ragged) -> Iterable[Key]:
    return [key for key in ragged.plans or () if isinstance(key, Key)]


class _Tables:
    """Room for plans, one table behind the other in one tensor, so that one copy brings them all.

    At least twice what one plan takes, and what decodes that share nothing take, however long they are: an entry too
    many is a program that looks and ends.
    """

    def __init__(self, like: AttentionPlan, key: Key, n_rows: int, device: torch.device) -> None:
        n_items = n_rows + WAVES * n_processors(key.arch) // key.n_kv_heads
        self.n_partials = max(2 * n_items, 2 * like.n_partials)
        self.shapes = [(max(n_items, 2 * len(table)), table.shape[1]) for table in like[:2]]
        self.shapes += [(n_rows + self.n_partials, 2), (n_rows, 4)]
        self.data = torch.zeros(sum(n * m for n, m in self.shapes), dtype=torch.int32, device=device)

    def on_device(self) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """As a plan has them: items, rows, merges and the number of partial results."""
        parts = self.data.split([n * m for n, m in self.shapes])
        small, large, rows, merges = (part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))
        return small, large, rows, merges, self.n_partials

    def has_room(self, plan: AttentionPlan) -> bool:
        lengths = [len(table) <= n for table, (n, _) in zip(plan[:4], self.shapes, strict=True)]
        return all(lengths) and plan.n_partials <= self.n_partials

    def fill(self, plan: AttentionPlan) -> None:
        host = torch.zeros(len(self.data), dtype=torch.int32, pin_memory=self.data.is_cuda)
        for to, table in zip(host.split([n * m for n, m in self.shapes]), plan[:4], strict=True):
            to[: table.size].copy_(torch.from_numpy(np.ascontiguousarray(table).reshape(-1)))
        self.data.copy_(host, non_blocking=True)
