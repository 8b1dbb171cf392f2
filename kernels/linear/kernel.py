"""Linear layers with quantised weights in Triton: rows in 16 or 32 bits times weights in 4 or 8 bits.

A weight is dequantised in registers, tile by tile. A byte of 4-bit numbers holds two that are HALF inputs apart, so a
tile of bytes becomes two tiles of numbers, whose columns of x are in runs of HALF.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.linear import packed
from banyan.kernels.linear.packed import GroupedRows

HALF = tl.constexpr(packed.HALF)


@triton.jit
def _linear(
    p_x, p_numbers, p_scale, p_minimum, p_bias, p_out, n_rows, n_out, n_in, n_groups, s_x, s_numbers,
    GROUP: tl.constexpr, BITS: tl.constexpr, HAS_MIN: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Program (block of rows, block of outputs)."""
    o_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    o_n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    m_m, m_n = o_m < n_rows, o_n < n_out
    o_half = tl.arange(0, BLOCK_K // 2)
    p_x += o_m.to(tl.int64)[:, None] * s_x
    b_acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, n_in, BLOCK_K):
        o_low = k + o_half // HALF * (2 * HALF) + o_half % HALF
        if BITS == 4:
            o_byte = k // 2 + o_half
            m_byte = m_n[None, :] & (o_byte < s_numbers)[:, None]
            b_bytes = tl.load(p_numbers + o_n[None, :] * s_numbers + o_byte[:, None], mask=m_byte, other=0)
        for i_half in tl.static_range(2):
            o_k = o_low + i_half * HALF
            m_k = o_k < n_in
            m_w = m_n[None, :] & m_k[:, None]
            b_x = tl.load(p_x + o_k[None, :], mask=m_m[:, None] & m_k[None, :], other=0.0)
            if BITS == 4:
                b_w = ((b_bytes >> (4 * i_half)) & 15).to(tl.float32)
                if not HAS_MIN:
                    b_w -= 8.0
            else:
                b_w = tl.load(p_numbers + o_n[None, :] * s_numbers + o_k[:, None], mask=m_w, other=0).to(tl.float32)
            o_group = o_n[None, :] * n_groups + (o_k // GROUP)[:, None]
            b_w *= tl.load(p_scale + o_group, mask=m_w, other=0.0)
            if HAS_MIN:
                b_w += tl.load(p_minimum + o_group, mask=m_w, other=0.0)
            b_acc = tl.dot(b_x, b_w.to(b_x.dtype), b_acc, input_precision=PRECISION)
    if HAS_BIAS:
        b_acc += tl.load(p_bias + o_n, mask=m_n, other=0.0).to(tl.float32)[None, :]
    o_out = o_m.to(tl.int64)[:, None] * n_out + o_n[None, :]
    tl.store(p_out + o_out, b_acc.to(p_out.dtype.element_ty), mask=m_m[:, None] & m_n[None, :])


def linear(x: Tensor, weight: GroupedRows, bias: Tensor | None = None) -> Tensor:
    """See `reference.linear`. Rows of x are contiguous."""
    numbers, scale, minimum, n_in, n_bits = weight
    n_rows, n_out, n_groups = len(x), len(numbers), scale.shape[1]
    assert x.shape[1] == n_in, f"{x.shape[1]} columns times {n_in}"
    assert x.stride(1) == 1, "the last axis must be contiguous"
    out = torch.empty((n_rows, n_out), dtype=x.dtype, device=x.device)
    if out.numel():
        # few rows: many programs, since reading the weight is the bottleneck; many rows: tiles that dequantise it less
        # often
        block_m, block_n, warps = (16, 32, 4) if n_rows <= 16 else (64, 64, 8)
        grid = (triton.cdiv(n_rows, block_m), triton.cdiv(n_out, block_n))
        _linear[grid](
            x, numbers, scale, minimum, bias, out, n_rows, n_out, n_in, n_groups, x.stride(0), numbers.stride(0),
            GROUP=n_in // n_groups, BITS=n_bits, HAS_MIN=minimum is not None, HAS_BIAS=bias is not None,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32", BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=64,
            num_warps=warps,
        )  # fmt: skip
    return out
