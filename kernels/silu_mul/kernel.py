"""The gate of a feed-forward layer, one program per row and block of columns."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import launch


@triton.jit
def _silu_mul(p_x, p_out, s_row, dim, BLOCK: tl.constexpr):
    i_row = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < dim
    b_gate = tl.load(p_x + i_row * s_row + o, mask=m, other=0.0).to(tl.float32)
    b_up = tl.load(p_x + i_row * s_row + dim + o, mask=m, other=0.0).to(tl.float32)
    b_out = b_gate * tl.sigmoid(b_gate) * b_up
    tl.store(p_out + i_row * dim + o, b_out.to(p_out.dtype.element_ty), mask=m)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `reference.silu_mul`. The last axis is contiguous."""
    n_rows, both = gate_up.shape
    dim = both // 2
    assert both == 2 * dim, f"{both} columns cannot be a gate and an up projection of equal width"
    assert gate_up.stride(1) == 1, "the last axis must be contiguous"
    out = torch.empty((n_rows, dim), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        block, warps = launch("silu_mul", dim)
        grid = (n_rows, triton.cdiv(dim, block))
        _silu_mul[grid](gate_up, out, gate_up.stride(0), dim, BLOCK=block, num_warps=warps)
    return out
