"""Copies the first slots of pages, with one launch for all pools at equal distances."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import launch
from banyan.kernels.kv_layout import stacks


@triton.jit
def _copy(p_pools, p_copies, s_pool, s_page, s_slot, BLOCK: tl.constexpr):
    """Program (copy, part of a page, pool)."""
    p_copy = p_copies + tl.program_id(0).to(tl.int64) * 3
    p_pool = p_pools + tl.program_id(2).to(tl.int64) * s_pool
    source, destination, n_slots = tl.load(p_copy), tl.load(p_copy + 1), tl.load(p_copy + 2)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < n_slots * s_slot
    b = tl.load(p_pool + source.to(tl.int64) * s_page + o, mask=m)
    tl.store(p_pool + destination.to(tl.int64) * s_page + o, b, mask=m)


def copy_pages(pools: Sequence[Tensor], copies: Tensor) -> None:
    """See `reference.copy_pages`. `copies` is on the pools' device."""
    if not len(copies):
        return
    assert copies.is_contiguous(), "the list of copies must be contiguous"
    for stack in stacks(pools):
        s_pool, s_page, s_slot = stack.stride()[:3]
        block, warps = launch("copy_pages", s_page)
        grid = (len(copies), triton.cdiv(s_page, block), len(stack))
        _copy[grid](stack, copies, s_pool, s_page, s_slot, BLOCK=block, num_warps=warps)
