"""QK norm, rotary embedding and the write to the KV cache, fused: one program per row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import architecture
from banyan.kernels.kv_layout import Pool, group_of
from banyan.kernels.rope_kv.reference import Norms
from banyan.kernels.write_kv.kernel import INT4, narrow, pool_args, put, scale_of


@triton.jit
def _larger(b_a, b_b):
    """The larger of two scales; NaN if one is NaN."""
    return tl.maximum(b_a, b_b) + (b_a + b_b) * 0.0


@triton.jit
def _rotate(
    p_x, p_out, p_scale, p_norm, b_cos, b_sin, eps, N_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    KIND: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Normalises and rotates all heads of one row. In the input and in the output, heads are DIM numbers apart.
    Dimensions from 2 * HALF on are not rotated. KIND: the format of the output's numbers; in 8 bits, the scale of each
    head goes to p_scale."""
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
    b_left, b_right = b_a * b_cos - b_b * b_sin, b_b * b_cos + b_a * b_sin
    if KIND == 0:
        tl.store(p_out + o, b_left.to(p_out.dtype.element_ty), mask=m)
        tl.store(p_out + o + HALF, b_right.to(p_out.dtype.element_ty), mask=m)
        if 2 * HALF < DIM:
            tl.store(p_out + o_other, b_rest.to(p_out.dtype.element_ty), mask=m_other)
    else:
        b_scale = _larger(scale_of(b_left, KIND), scale_of(b_right, KIND))
        if 2 * HALF < DIM:
            b_scale = _larger(b_scale, scale_of(b_rest, KIND))
            tl.store(p_out + o_other, narrow(b_rest, b_scale[:, None], KIND), mask=m_other)
        tl.store(p_out + o, narrow(b_left, b_scale[:, None], KIND), mask=m)
        tl.store(p_out + o + HALF, narrow(b_right, b_scale[:, None], KIND), mask=m)
        tl.store(p_scale + o_head, b_scale, mask=o_head < N_HEADS)


@triton.jit
def _rope_kv(
    p_qkv, p_q, p_k_pool, p_v_pool, p_k_scale, p_v_scale, p_q_norm, p_k_norm, p_cos, p_sin, p_slots, s_row, s_cos, eps,
    N_HEADS: tl.constexpr, N_KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, KIND: tl.constexpr,
    V_KIND: tl.constexpr, GROUP: tl.constexpr, NORM: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    BLOCK_KV: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    i_row = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + i_row)
    o_half = tl.arange(0, BLOCK_HALF)
    b_cos = tl.load(p_cos + i_row * s_cos + o_half, mask=o_half < HALF, other=0.0).to(tl.float32)[None, :]
    b_sin = tl.load(p_sin + i_row * s_cos + o_half, mask=o_half < HALF, other=0.0).to(tl.float32)[None, :]
    p_row = p_qkv + i_row * s_row
    _rotate(
        p_row, p_q + i_row * (N_HEADS * DIM), p_k_scale, p_q_norm, b_cos, b_sin, eps,
        N_HEADS, DIM, HALF, 0, BLOCK_HEADS, BLOCK_HALF, BLOCK_REST, NORM,
    )  # fmt: skip
    p_scale = p_k_scale
    if KIND > 0:
        p_scale += slot * N_KV_HEADS
    _rotate(
        p_row + N_HEADS * DIM, p_k_pool + slot * (N_KV_HEADS * DIM), p_scale, p_k_norm, b_cos, b_sin, eps,
        N_KV_HEADS, DIM, HALF, KIND, BLOCK_KV, BLOCK_HALF, BLOCK_REST, NORM,
    )  # fmt: skip
    put(
        p_row + (N_HEADS + N_KV_HEADS) * DIM, p_v_pool, p_v_scale, slot,
        N_KV_HEADS, DIM, V_KIND, GROUP, BLOCK_V, BLOCK_KV, BLOCK_DIM,
    )  # fmt: skip


def rope_kv(
    qkv: Tensor, norms: Norms, eps: float, cos: Tensor, sin: Tensor, k_pool: Pool, v_pool: Pool, slots: Tensor
) -> Tensor:
    """QK norm and rotary embedding. Returns the queries, and writes keys and values to the pools; see
    `reference.rope_kv`. qkv may be a view of a wider tensor; its rows must be contiguous."""
    n_rows, n_all, dim = qkv.shape
    n_kv_heads, half = k_pool.shape[2], cos.shape[1]
    n_heads = n_all - 2 * n_kv_heads
    assert qkv.stride()[1:] == (dim, 1), "rows must be contiguous"
    arch = architecture()
    (k, k_scale, kind), (v, v_scale, v_kind) = pool_args(k_pool, arch), pool_args(v_pool, arch)
    assert k.is_contiguous(), "the K pool must be contiguous"
    assert v.is_contiguous(), "the V pool must be contiguous"
    assert v_kind in (kind, INT4), "K and V pools differ in dtype"
    assert cos.stride() == sin.stride(), "cos and sin differ in strides"
    assert cos.stride(1) == 1, "the last axis must be contiguous"
    assert 2 * half <= dim, f"{2 * half} rotary dimensions do not fit a head of {dim}"
    q = torch.empty((n_rows, n_heads, dim), dtype=qkv.dtype, device=qkv.device)
    if n_rows:
        up = triton.next_power_of_2
        q_norm, k_norm = (None, None) if norms is None else norms
        _rope_kv[(n_rows,)](
            qkv, q, k, v, k_scale, v_scale, q_norm, k_norm, cos, sin, slots, qkv.stride(0), cos.stride(0), eps,
            N_HEADS=n_heads, N_KV_HEADS=n_kv_heads, DIM=dim, HALF=half, KIND=kind, V_KIND=v_kind,
            GROUP=group_of(dim), NORM=norms is not None,
            BLOCK_HEADS=up(n_heads), BLOCK_KV=up(n_kv_heads), BLOCK_HALF=up(half),
            BLOCK_REST=up(max(1, dim - 2 * half)), BLOCK_V=up(n_kv_heads * dim), BLOCK_DIM=up(dim),
            num_warps=4,
        )  # fmt: skip
    return q
