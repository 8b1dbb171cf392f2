"""Root-mean-square norm with the residual add fused in, one program per row."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import launch


@triton.jit
def _norm(
    p_x, p_weight, p_residual, p_rows, p_out, p_total, s_x_row, s_x_head, s_r_row, s_r_head, n_heads, eps,
    DIM: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    i_row, i_head = i // n_heads, i % n_heads
    if SOME:
        i_row = tl.load(p_rows + i_row)
    o = tl.arange(0, BLOCK)
    m = o < DIM
    b_x = tl.load(p_x + i_row * s_x_row + i_head * s_x_head + o, mask=m, other=0.0).to(tl.float32)
    if ADD:
        b_r = tl.load(p_residual + i_row * s_r_row + i_head * s_r_head + o, mask=m, other=0.0).to(tl.float32)
        b_total = (b_x + b_r).to(p_total.dtype.element_ty)
        tl.store(p_total + i * DIM + o, b_total, mask=m)
        b_x = b_total.to(tl.float32)  # the norm uses the rounded sum, as the next layers do
    scale = tl.rsqrt(tl.sum(b_x * b_x, 0) / DIM + eps)
    b_weight = tl.load(p_weight + o, mask=m, other=0.0).to(tl.float32)
    tl.store(p_out + i * DIM + o, (b_x * scale * b_weight).to(p_out.dtype.element_ty), mask=m)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, rows: Tensor | None = None) -> Any:
    """See `reference.rms_norm`. x [n_rows, dim] or [n_rows, n_heads, dim], its last axis contiguous."""
    wide = x.unsqueeze(1) if x.dim() == 2 else x
    n_rows, n_heads, dim = wide.shape
    assert wide.stride(2) == 1, "the last axis must be contiguous"
    if rows is not None:
        assert rows.dtype == torch.int64, "rows are int64"
        assert rows.is_contiguous(), "rows must be contiguous"
        n_rows = len(rows)
    shape = (n_rows, *x.shape[1:])
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    total = added = None
    if residual is not None:
        assert residual.shape == x.shape, "the residual differs in shape"
        added = residual.view(wide.shape)
        assert added.stride(2) == 1, "the last axis must be contiguous"
        total = torch.empty(shape, dtype=x.dtype, device=x.device)
    if out.numel():
        block, warps = launch("rms_norm", dim)
        assert dim <= block, f"rows of {dim} numbers are longer than {block}"
        other = wide if added is None else added
        _norm[(n_rows * n_heads,)](
            wide, weight, added, rows, out, total, wide.stride(0), wide.stride(1), other.stride(0), other.stride(1),
            n_heads, eps, DIM=dim, BLOCK=block, ADD=added is not None, SOME=rows is not None, num_warps=warps,
        )  # fmt: skip
    return out if total is None else (out, total)
