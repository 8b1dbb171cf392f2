"""Rotary embedding of queries and keys, one program per row."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _turn(
    p_x, p_out, b_cos, b_sin, i_row, s_row, s_head, N_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    """All heads of one row: the first 2 * HALF dimensions turn, the others are copied."""
    o_head, o_half = tl.arange(0, BLOCK_HEADS), tl.arange(0, BLOCK_HALF)
    m = (o_head < N_HEADS)[:, None] & (o_half < HALF)[None, :]
    p_x += i_row * s_row
    p_out += i_row * (N_HEADS * DIM)
    o_x = o_head[:, None] * s_head + o_half[None, :]
    o_out = o_head[:, None] * DIM + o_half[None, :]
    b_a = tl.load(p_x + o_x, mask=m, other=0.0).to(tl.float32)
    b_b = tl.load(p_x + o_x + HALF, mask=m, other=0.0).to(tl.float32)
    tl.store(p_out + o_out, (b_a * b_cos - b_b * b_sin).to(p_out.dtype.element_ty), mask=m)
    tl.store(p_out + o_out + HALF, (b_b * b_cos + b_a * b_sin).to(p_out.dtype.element_ty), mask=m)
    if 2 * HALF < DIM:
        o_rest = 2 * HALF + tl.arange(0, BLOCK_REST)
        m_rest = (o_head < N_HEADS)[:, None] & (o_rest < DIM)[None, :]
        b_rest = tl.load(p_x + o_head[:, None] * s_head + o_rest[None, :], mask=m_rest)
        tl.store(p_out + o_head[:, None] * DIM + o_rest[None, :], b_rest, mask=m_rest)


@triton.jit
def _rope(
    p_q, p_k, p_q_out, p_k_out, p_cos, p_sin, p_positions, s_q_row, s_q_head, s_k_row, s_k_head, s_cos,
    N_HEADS: tl.constexpr, N_KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, TABLE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_KV: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    i_row = tl.program_id(0).to(tl.int64)
    o_half = tl.arange(0, BLOCK_HALF)
    i_angle = i_row
    if TABLE:
        i_angle = tl.load(p_positions + i_row).to(tl.int64)
    b_cos = tl.load(p_cos + i_angle * s_cos + o_half, mask=o_half < HALF, other=0.0).to(tl.float32)[None, :]
    b_sin = tl.load(p_sin + i_angle * s_cos + o_half, mask=o_half < HALF, other=0.0).to(tl.float32)[None, :]
    _turn(p_q, p_q_out, b_cos, b_sin, i_row, s_q_row, s_q_head, N_HEADS, DIM, HALF, BLOCK_HEADS, BLOCK_HALF, BLOCK_REST)
    _turn(p_k, p_k_out, b_cos, b_sin, i_row, s_k_row, s_k_head, N_KV_HEADS, DIM, HALF, BLOCK_KV, BLOCK_HALF, BLOCK_REST)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See `reference.rope`. q and k may be views of a wider tensor, with a contiguous last axis."""
    n_rows, n_heads, dim = q.shape
    n_kv_heads, half = k.shape[1], cos.shape[1]
    assert q.stride(2) == k.stride(2) == cos.stride(1) == 1, "the last axis must be contiguous"
    assert cos.stride() == sin.stride(), "cos and sin differ in strides"
    assert 2 * half <= dim, f"{2 * half} rotary dimensions do not fit a head of {dim}"
    new_q = torch.empty((n_rows, n_heads, dim), dtype=q.dtype, device=q.device)
    new_k = torch.empty((n_rows, n_kv_heads, dim), dtype=k.dtype, device=k.device)
    if n_rows:
        up = triton.next_power_of_2
        _rope[(n_rows,)](
            q, k, new_q, new_k, cos, sin, positions, q.stride(0), q.stride(1), k.stride(0), k.stride(1), cos.stride(0),
            N_HEADS=n_heads, N_KV_HEADS=n_kv_heads, DIM=dim, HALF=half, TABLE=positions is not None,
            BLOCK_HEADS=up(n_heads), BLOCK_KV=up(n_kv_heads), BLOCK_HALF=up(half),
            BLOCK_REST=up(max(1, dim - 2 * half)), num_warps=4,
        )  # fmt: skip
    return new_q, new_k
