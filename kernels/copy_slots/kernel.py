"""Copies slots along paths, with one launch for all pools at equal distances."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import launch
from banyan.kernels.kv_layout import stacks


@triton.jit
def _copy(p_pools, p_sources, p_destinations, s_pool, s_slot, n_steps, BLOCK: tl.constexpr):
    """Program (path, part of a slot, pool). One thread handles the same numbers of every slot of the path, so no step
    has to wait for another thread's read."""
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < s_slot
    p_pool = p_pools + tl.program_id(2).to(tl.int64) * s_pool + o
    o_path = tl.program_id(0).to(tl.int64) * n_steps
    for i_step in range(n_steps):
        source, destination = tl.load(p_sources + o_path + i_step), tl.load(p_destinations + o_path + i_step)
        if (source >= 0) & (source != destination):
            b = tl.load(p_pool + source * s_slot, mask=m)
            tl.store(p_pool + destination * s_slot, b, mask=m)


def copy_slots(pools: Sequence[Tensor], sources: Tensor, destinations: Tensor) -> None:
    """See `reference.copy_slots`. The lists are on the pools' device."""
    assert sources.shape == destinations.shape, "sources and destinations differ in shape"
    assert sources.dtype == destinations.dtype == torch.int64, "slots are int64"
    assert sources.is_contiguous(), "the list of sources must be contiguous"
    assert destinations.is_contiguous(), "the list of destinations must be contiguous"
    if not sources.numel():
        return
    n_paths, n_steps = sources.shape
    for stack in stacks(pools):
        s_pool, _, s_slot = stack.stride()[:3]
        block, warps = launch("copy_slots", s_slot)
        grid = (n_paths, triton.cdiv(s_slot, block), len(stack))
        _copy[grid](stack, sources, destinations, s_pool, s_slot, n_steps, BLOCK=block, num_warps=warps)
