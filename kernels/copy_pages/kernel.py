"""Copy the first slots of pages, one launch per pool."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def _copy(p_pool, p_copies, s_page, s_slot, BLOCK: tl.constexpr):
    """Program (copy, part of a page)."""
    p_copy = p_copies + tl.program_id(0).to(tl.int64) * 3
    source, destination, n_slots = tl.load(p_copy), tl.load(p_copy + 1), tl.load(p_copy + 2)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < n_slots * s_slot
    b = tl.load(p_pool + source.to(tl.int64) * s_page + o, mask=m)
    tl.store(p_pool + destination.to(tl.int64) * s_page + o, b, mask=m)


def copy_pages(pools: Sequence[Tensor], copies: Tensor) -> None:
    """See `reference.copy_pages`. Pools are contiguous; `copies` lies on their device."""
    if not len(copies):
        return
    assert copies.is_contiguous(), "the list of copies must be contiguous"
    for pool in pools:
        assert pool.is_contiguous(), "a pool must be contiguous"
        s_page, s_slot = pool.stride()[:2]
        _copy[(len(copies), triton.cdiv(s_page, BLOCK))](pool, copies, s_page, s_slot, BLOCK=BLOCK, num_warps=4)
