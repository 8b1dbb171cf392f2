"""Pools of several layers, seen as one tensor: what copies slots in all of them needs one launch, not one a layer."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def stacks(pools: Iterable[Tensor]) -> Iterator[Tensor]:
    """Views [n, *shape] over contiguous pools, each pool in one of them.

    Pools of one shape and dtype that lie at equal distances in one piece of memory share a view; else n is 1.
    """
    groups: dict[tuple[torch.Size, torch.dtype, int], list[Tensor]] = {}
    for pool in pools:
        assert pool.is_contiguous(), "a pool must be contiguous"
        groups.setdefault((pool.shape, pool.dtype, pool.untyped_storage().data_ptr()), []).append(pool)
    for (shape, _, _), group in groups.items():
        first, *others = offsets = [pool.storage_offset() for pool in group]
        step = others[0] - first if others else 0
        if step < 0 or offsets != [first + i * step for i in range(len(group))]:
            yield from (pool.unsqueeze(0) for pool in group)
        else:
            yield group[0].as_strided((len(group), *shape), (step, *group[0].stride()))
