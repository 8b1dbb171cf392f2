"""The KV pool: where the pages, which everyone else knows as numbers, really lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from banyan.kernels import ops
from banyan.runtime.errors import OutOfMemory
from banyan.runtime.model.spec import ModelSpec


class Store:
    """K and V of all pages, per layer: [n_pages, page, n_kv_heads, head_dim], on the model's device and in its dtype.

    Memory is claimed here, once; on a CPU the kernel hands it out page by page as it is first written.
    """

    def __init__(self, spec: ModelSpec, n_pages: int, page: int, device: str) -> None:
        shape = n_pages, page, spec.n_kv_heads, spec.head_dim
        dtype = getattr(torch, spec.dtype)
        self.n_pages, self.page = n_pages, page
        self.device = torch.device(device)
        try:
            self.kv: list[tuple[Tensor, Tensor]] = [
                (torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
                for _ in range(spec.n_layers)
            ]
        except (torch.OutOfMemoryError, RuntimeError) as e:
            size = n_pages * page * spec.kv_bytes_per_token(dtype.itemsize) / 2**20
            raise OutOfMemory(
                f"{n_pages} KV pages are {size:.0f} MiB and do not fit on {device}; lower `kv_memory`"
            ) from e
        self._pools = [pool for pair in self.kv for pool in pair]

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy the first n_slots of pages: (source, destination, n_slots), in all layers."""
        if copies:
            table = torch.from_numpy(np.array(copies, np.int32))
            ops.copy_pages(self._pools, table.to(self.device, non_blocking=True))
