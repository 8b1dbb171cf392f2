"""Norms of heads, rotary embedding and the write to KV, one program per row."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _turn(
    p_x, p_out, p_norm, b_cos, b_sin, eps, N_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """All heads of one row, DIM apart on both sides: the first 2 * HALF dimensions turn, the others do not."""
    o_head, o_half, o_rest = tl.arange(0, BLOCK_HEADS), tl.arange(0, BLOCK_HALF), 2 * HALF + tl.arange(0, BLOCK_REST)
    m_half, m_rest = o_half < HALF, o_rest < DIM
    m = (o_head < N_HEADS)[:, None] & m_half[None, :]
    m_other = (o_head < N_HEADS)[:, None] & m_rest[None, :]
    o = o_head[:, None] * DIM + o_half[None, :]
    o_other = o_head[:, None] * DIM + o_rest[None, :]
    b_a = tl.load(p_x + o, mask=m, other=0.0).to(tl.float32)
    b_b = tl.load(p_x + o + HALF, mask=m, other=0.0).to(tl.float32)
    if 2 * HALF < DIM:
        b_rest = tl.load(p_x + o_other, mask=m_other, other=0.0).to(tl.float32)
    if NORM:
        b_sum = tl.sum(b_a * b_a, 1) + tl.sum(b_b * b_b, 1)
        if 2 * HALF < DIM:
            b_sum += tl.sum(b_rest * b_rest, 1)
        b_by = tl.rsqrt(b_sum / DIM + eps)[:, None]
        b_a *= b_by * tl.load(p_norm + o_half, mask=m_half, other=0.0).to(tl.float32)[None, :]
        b_b *= b_by * tl.load(p_norm + HALF + o_half, mask=m_half, other=0.0).to(tl.float32)[None, :]
        if 2 * HALF < DIM:
            b_rest *= b_by * tl.load(p_norm + o_rest, mask=m_rest, other=0.0).to(tl.float32)[None, :]
    tl.store(p_out + o, (b_a * b_cos - b_b * b_sin).to(p_out.dtype.element_ty), mask=m)
    tl.store(p_out + o + HALF, (b_b * b_cos + b_a * b_sin).to(p_out.dtype.element_ty), mask=m)
    if 2 * HALF < DIM:
        tl.store(p_out + o_other, b_rest.to(p_out.dtype.element_ty), mask=m_other)


@triton.jit
def _rope_kv(
    p_qkv, p_q, p_k_pool, p_v_pool, p_q_norm, p_k_norm, p_cos, p_sin, p_slots, s_row, s_cos, eps,
    N_HEADS: tl.constexpr, N_KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_KV: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    i_row = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + i_row)
    o_half = tl.arange(0, BLOCK_HALF)
    b_cos = tl.load(p_cos + i_row * s_cos + o_half, mask=o_half < HALF, other=0.0).to(tl.float32)[None, :]
    b_sin = tl.load(p_sin + i_row * s_cos + o_half, mask=o_half < HALF, other=0.0).to(tl.float32)[None, :]
    p_row = p_qkv + i_row * s_row
    _turn(
        p_row, p_q + i_row * (N_HEADS * DIM), p_q_norm, b_cos, b_sin, eps,
        N_HEADS, DIM, HALF, BLOCK_HEADS, BLOCK_HALF, BLOCK_REST, NORM,
    )  # fmt: skip
    _turn(
        p_row + N_HEADS * DIM, p_k_pool + slot * (N_KV_HEADS * DIM), p_k_norm, b_cos, b_sin, eps,
        N_KV_HEADS, DIM, HALF, BLOCK_KV, BLOCK_HALF, BLOCK_REST, NORM,
    )  # fmt: skip
    o_v = tl.arange(0, BLOCK_V)
    m_v = o_v < N_KV_HEADS * DIM
    b_v = tl.load(p_row + (N_HEADS + N_KV_HEADS) * DIM + o_v, mask=m_v)
    tl.store(p_v_pool + slot * (N_KV_HEADS * DIM) + o_v, b_v, mask=m_v)


def rope_kv(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slots: Tensor,
) -> Tensor:
    """See `reference.rope_kv`. qkv may be a view of a wider tensor, with contiguous rows."""
    n_rows, n_all, dim = qkv.shape
    n_kv_heads, half = k_pool.shape[2], cos.shape[1]
    n_heads = n_all - 2 * n_kv_heads
    assert qkv.stride()[1:] == (dim, 1), "rows must be contiguous"
    assert k_pool.is_contiguous(), "the K pool must be contiguous"
    assert v_pool.is_contiguous(), "the V pool must be contiguous"
    assert cos.stride() == sin.stride(), "cos and sin differ in strides"
    assert cos.stride(1) == 1, "the last axis must be contiguous"
    assert 2 * half <= dim, f"{2 * half} rotary dimensions do not fit a head of {dim}"
    q = torch.empty((n_rows, n_heads, dim), dtype=qkv.dtype, device=qkv.device)
    if n_rows:
        up = triton.next_power_of_2
        q_norm, k_norm = (None, None) if norms is None else norms
        _rope_kv[(n_rows,)](
            qkv, q, k_pool, v_pool, q_norm, k_norm, cos, sin, slots, qkv.stride(0), cos.stride(0), eps,
            N_HEADS=n_heads, N_KV_HEADS=n_kv_heads, DIM=dim, HALF=half, NORM=norms is not None,
            BLOCK_HEADS=up(n_heads), BLOCK_KV=up(n_kv_heads), BLOCK_HALF=up(half),
            BLOCK_REST=up(max(1, dim - 2 * half)), BLOCK_V=up(n_kv_heads * dim), num_warps=4,
        )  # fmt: skip
    return q
