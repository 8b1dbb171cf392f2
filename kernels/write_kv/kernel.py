"""Scatters new keys and values, one program per row. Other kernels also use its conversions to and from 8 bits.

On chips without e4m3 (sm_80), kernels load an e4m3 number as an integer, and shift its bits to the places of the sign,
exponent and mantissa of a float32. The result is the number times 2**-120, even if the number is subnormal.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import architecture
from banyan.kernels.kv_layout import HALVES, LIMIT, Pool, Quantized, group_of, is_latent

PLAIN, INT8, FP8, FP8_BITS, INT4, LATENT = 0, 1, 2, 3, 4, 5
"""KIND of a pool's numbers. FP8_BITS: e4m3 as uint8. INT4: two numbers in a byte, the first in the low half. LATENT: a
pool of values that are part of the keys, so nothing is written."""


def pool_args(pool: Pool, arch: str) -> tuple[Tensor, Tensor | None, int]:
    """Returns a pool as kernel arguments: its numbers, its scales (None if it has none), and the KIND of the
    numbers."""
    if not isinstance(pool, Quantized):
        return pool, None, PLAIN
    numbers, scale = pool
    assert numbers.dtype in LIMIT or numbers.dtype == HALVES, f"{numbers.dtype}: pools are int8, e4m3 or HALVES"
    assert numbers.is_contiguous() and scale.is_contiguous(), "a quantised pool must be contiguous"  # noqa: PT018
    if numbers.dtype == HALVES:
        return numbers, scale, INT4
    if numbers.dtype == torch.int8:
        return numbers, scale, INT8
    return (pool.bits, scale, FP8_BITS) if arch.startswith("sm_8") else (numbers, scale, FP8)


@triton.jit
def widen(b, KIND: tl.constexpr):
    """Converts loaded numbers to a type that Triton can cast on every chip: for KIND 3 (e4m3 as uint8) to float32 with
    their value. Returns other numbers unchanged."""
    if KIND == 3:
        b_bits = ((b & 0x80).to(tl.uint32) << 24) | ((b & 0x7F).to(tl.uint32) << 20)
        b_wide = b_bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    else:
        b_wide = b
    return b_wide


@triton.jit
def narrow(b, b_scale, KIND: tl.constexpr):
    """Divides b, in float32, by b_scale, and rounds it to nearest even in 8 bits: to int8 or E4M3, according to
    KIND."""
    b = b / tl.where(b_scale > 0.0, b_scale, 1.0)
    b = tl.where(b == b, b, 0.0)  # the scale carries a NaN
    if KIND == 1:
        b = tl.minimum(tl.maximum(b, -127.0), 127.0)
        b_small = ((b + 12582912.0) - 12582912.0).to(tl.int8)
    elif KIND == 2:
        b_small = tl.minimum(tl.maximum(b, -448.0), 448.0).to(tl.float8e4nv)
    else:
        b_bits = (tl.minimum(tl.maximum(b, -448.0), 448.0) * 7.52316384526264e-37).to(tl.uint32, bitcast=True)
        b_near = (b_bits & 0x7FFFFFFF) + 0x7FFFF + ((b_bits >> 20) & 1)
        b_small = (((b_bits >> 24) & 0x80) | ((b_near >> 20) & 0x7F)).to(tl.uint8)
    return b_small


@triton.jit
def scale_of(b, KIND: tl.constexpr):
    """The scale of each row of b, float32 [rows, dim]; NaN if the row has a NaN."""
    b_max = tl.max(tl.abs(b), 1) + tl.sum(b * 0.0, 1)
    return b_max / (127.0 if KIND == 1 else 448.0)


@triton.jit
def put_halves(
    p_x, p_pool, p_scale, slot, N_GROUPS: tl.constexpr, GROUP: tl.constexpr, BLOCK_GROUPS: tl.constexpr
):  # fmt: skip
    """Writes all groups of one row in 4 bits: bytes of two numbers, and per group its scale and its minimum."""
    o_group, o_pair = tl.arange(0, BLOCK_GROUPS), tl.arange(0, GROUP // 2)
    m_group = o_group < N_GROUPS
    o = o_group[:, None] * GROUP + 2 * o_pair[None, :]
    b_even = tl.load(p_x + o, mask=m_group[:, None], other=0.0).to(tl.float32)
    b_odd = tl.load(p_x + o + 1, mask=m_group[:, None], other=0.0).to(tl.float32)
    b_nan = tl.sum(b_even * 0.0, 1) + tl.sum(b_odd * 0.0, 1)
    b_low = tl.min(tl.minimum(b_even, b_odd), 1)
    b_scale = (tl.max(tl.maximum(b_even, b_odd), 1) - b_low) / 15.0 + b_nan
    b_scale, b_low = b_scale.to(tl.bfloat16), b_low.to(tl.bfloat16)
    p_scale += (slot * N_GROUPS + o_group) * 2
    tl.store(p_scale, b_scale, mask=m_group)
    tl.store(p_scale + 1, b_low, mask=m_group)
    b_by, b_from = b_scale.to(tl.float32)[:, None], b_low.to(tl.float32)[:, None]
    b_by = tl.where(b_by > 0.0, b_by, 1.0)
    b_byte = halves(b_even, b_from, b_by) | (halves(b_odd, b_from, b_by) << 4)
    tl.store(p_pool + slot * (N_GROUPS * GROUP // 2) + o // 2, b_byte, mask=m_group[:, None])


@triton.jit
def halves(b, b_from, b_by):
    """Returns (b - b_from) / b_by, rounded to nearest even and limited to 0 .. 15, as uint8."""
    b = (b - b_from) / b_by
    b = tl.minimum(tl.maximum(tl.where(b == b, b, 0.0), 0.0), 15.0)
    return ((b + 12582912.0) - 12582912.0).to(tl.uint8)


@triton.jit
def put(
    p_x, p_pool, p_scale, slot, N_HEADS: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Writes all heads of one row to a slot. In memory, heads are DIM numbers apart. GROUP: how many numbers share a
    scale in 4 bits."""
    if KIND == 4:
        put_halves(p_x, p_pool, p_scale, slot, N_HEADS * DIM // GROUP, GROUP, BLOCK // GROUP)
    elif KIND == 0:
        o = tl.arange(0, BLOCK)
        m = o < N_HEADS * DIM
        tl.store(p_pool + slot * (N_HEADS * DIM) + o, tl.load(p_x + o, mask=m), mask=m)
    else:
        o_head, o_dim = tl.arange(0, BLOCK_HEADS), tl.arange(0, BLOCK_DIM)
        m = (o_head < N_HEADS)[:, None] & (o_dim < DIM)[None, :]
        o = o_head[:, None] * DIM + o_dim[None, :]
        b = tl.load(p_x + o, mask=m, other=0.0).to(tl.float32)
        b_scale = scale_of(b, KIND)
        tl.store(p_pool + slot * (N_HEADS * DIM) + o, narrow(b, b_scale[:, None], KIND), mask=m)
        tl.store(p_scale + slot * N_HEADS + o_head, b_scale, mask=o_head < N_HEADS)


@triton.jit
def _write(
    p_k, p_v, p_k_pool, p_v_pool, p_k_scale, p_v_scale, p_slots, s_k, s_v,
    N_HEADS: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr, V_KIND: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    i_row = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + i_row)
    put(p_k + i_row * s_k, p_k_pool, p_k_scale, slot, N_HEADS, DIM, KIND, GROUP, BLOCK, BLOCK_HEADS, BLOCK_DIM)
    if V_KIND != 5:
        put(p_v + i_row * s_v, p_v_pool, p_v_scale, slot, N_HEADS, DIM, V_KIND, GROUP, BLOCK, BLOCK_HEADS, BLOCK_DIM)


def write_kv(k: Tensor, v: Tensor, k_pool: Pool, v_pool: Pool, slots: Tensor) -> None:
    """Writes each row's keys and values to its slot, in place; for shapes see `reference.write_kv`. k and v may be
    views of a wider tensor; their rows must be contiguous."""
    n_rows, n_heads, dim = k.shape
    arch = architecture()
    k_to, k_scale, kind = pool_args(k_pool, arch)
    if is_latent(k_pool, v_pool):
        v, v_to, v_scale, v_kind = k, k_to, k_scale, LATENT
    else:
        v_to, v_scale, v_kind = pool_args(v_pool, arch)
    assert k_to.is_contiguous(), "the K pool must be contiguous"
    assert v_to.is_contiguous(), "the V pool must be contiguous"
    assert v_kind in (kind, INT4, LATENT), "K and V pools differ in dtype"
    assert k.shape == v.shape, "K and V differ in shape"
    assert all(rows[:1].is_contiguous() for rows in (k, v)), "rows of K and V must be contiguous"
    if n_rows:
        up = triton.next_power_of_2
        block = up(n_heads * dim)
        _write[(n_rows,)](
            k, v, k_to, v_to, k_scale, v_scale, slots, k.stride(0), v.stride(0),
            N_HEADS=n_heads, DIM=dim, KIND=kind, V_KIND=v_kind, GROUP=group_of(dim),
            BLOCK=block, BLOCK_HEADS=up(n_heads), BLOCK_DIM=up(dim),
            num_warps=min(8, max(1, block // 256)),
        )  # fmt: skip
