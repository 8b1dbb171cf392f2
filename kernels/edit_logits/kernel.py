"""Penalties and biases, one program per block of cells."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import launch


@triton.jit
def _edit(p_logits, p_rows, p_tokens, p_factors, p_shifts, s_row, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    p_cell = p_logits + tl.load(p_rows + o, mask=m, other=0) * s_row + tl.load(p_tokens + o, mask=m, other=0)
    b_factor = tl.load(p_factors + o, mask=m, other=1.0)
    b = tl.load(p_cell, mask=m, other=0.0).to(tl.float32)
    b = tl.where(b > 0, b / b_factor, b * b_factor) + tl.load(p_shifts + o, mask=m, other=0.0)
    tl.store(p_cell, b.to(p_logits.dtype.element_ty), mask=m)


def edit_logits(logits: Tensor, rows: Tensor, tokens: Tensor, factors: Tensor, shifts: Tensor) -> None:
    """See `reference.edit_logits`. The last axis is contiguous."""
    assert logits.stride(1) == 1, "the last axis must be contiguous"
    assert rows.dtype == tokens.dtype == torch.int64, "cells are int64"
    assert factors.dtype == shifts.dtype == torch.float32, "factors and shifts are float32"
    assert all(x.is_contiguous() for x in (rows, tokens, factors, shifts)), "the lists must be contiguous"
    if n := len(rows):
        block, warps = launch("edit_logits", n)
        grid = (triton.cdiv(n, block),)
        _edit[grid](logits, rows, tokens, factors, shifts, logits.stride(0), n, BLOCK=block, num_warps=warps)
