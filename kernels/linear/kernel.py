"""Linear layers with quantised weights in Triton: rows in 16 or 32 bits times weights in 4 or 8 bits.

A tile of weights is dequantised in registers, and is the left operand of the product: Hopper's tensor cores can read
this operand from registers, so the numbers are not written to shared memory again. In 4 bits, a byte holds the weights
of two inputs that are HALF apart. So a tile of bytes becomes two tiles of weights, and each of them is multiplied with
every second run of HALF columns of x. A product of many rows is bound by arithmetic: then the weight is dequantised
once, and the vendor's library multiplies.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels.device import architecture, n_processors
from banyan.kernels.linear import packed
from banyan.kernels.linear.packed import GroupedRows
from banyan.kernels.write_kv.kernel import widen

HALF = tl.constexpr(packed.HALF)
MANY_ROWS = 129  # with at least this many rows, the weight is dequantised once
WARPS = 8  # per multiprocessor, about; if there are fewer, the inputs are cut into parts


@triton.jit
def columns(k, i_half, BITS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Returns the indexes of the inputs whose weights are in half i_half of a tile. The tile begins at input k. For the
    halves of a tile see `dequantised`."""
    if BITS == 4:
        o_half = tl.arange(0, BLOCK_K // 2)
        o_k = k + o_half // HALF * (2 * HALF) + o_half % HALF + i_half * HALF
    else:
        o_k = k + tl.arange(0, BLOCK_K)
    return o_k


@triton.jit
def stored(p_numbers, o_n, k, n_in, s_numbers, BITS: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr):
    """Loads a tile of weights as they are stored, one row per output. EVEN: n_in is a multiple of BLOCK_K."""
    if BITS == 4:
        o_byte = k // 2 + tl.arange(0, BLOCK_K // 2)
        m_byte = (o_byte < s_numbers)[None, :]
    else:
        o_byte = k + tl.arange(0, BLOCK_K)
        m_byte = (o_byte < n_in)[None, :]
    p_byte = p_numbers + o_n[:, None] * s_numbers + o_byte[None, :]
    return tl.load(p_byte) if EVEN else tl.load(p_byte, mask=m_byte, other=0)


@triton.jit
def dequantised(
    b_stored, p_scale, p_minimum, o_n, k, i_half, n_groups,
    GROUP: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr, HAS_MIN: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Returns half i_half of the tile b_stored, which `stored` has loaded, dequantised to float32. In 4 bits, half 0 is
    the low 4 bits of each byte and half 1 the high 4 bits; in 8 bits, half 0 is the whole tile. UNIT: for how many
    inputs a scale is loaded once."""
    BLOCK_N: tl.constexpr = b_stored.shape[0]
    WIDTH: tl.constexpr = b_stored.shape[1]
    EACH: tl.constexpr = UNIT // 2 if BITS == 4 and UNIT > HALF else UNIT  # numbers of this half with one scale
    b_w = b_stored
    if BITS == 4:
        b_w = (b_w >> (4 * i_half)) & 15
    elif b_w.dtype == tl.uint8:
        b_w = widen(b_w, 3)
    b_w = b_w.to(tl.float32)
    if BITS == 4 and not HAS_MIN:
        b_w -= 8.0
    o_first = tl.arange(0, WIDTH // EACH) * EACH
    if BITS == 4:
        o_first = o_first // HALF * (2 * HALF) + o_first % HALF + i_half * HALF
    o_group = (k + o_first) // GROUP
    p_group = o_n[:, None] * n_groups + o_group[None, :]
    m_group = (o_group < n_groups)[None, :]
    b_w = tl.reshape(b_w, (BLOCK_N, WIDTH // EACH, EACH))
    b_w *= (tl.load(p_scale + p_group) if EVEN else tl.load(p_scale + p_group, mask=m_group, other=0.0))[:, :, None]
    if HAS_MIN:
        b_minimum = tl.load(p_minimum + p_group) if EVEN else tl.load(p_minimum + p_group, mask=m_group, other=0.0)
        b_w += b_minimum[:, :, None]
    return tl.reshape(b_w, (BLOCK_N, WIDTH))


@triton.jit
def _linear(
    p_x, p_numbers, p_scale, p_minimum, p_bias, p_out, n_rows, n_out, n_in, n_groups, s_x, s_numbers, n_each,
    GROUP: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr, HAS_MIN: tl.constexpr, HAS_BIAS: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Computes a block of outputs for a block of rows, over one part of the inputs (split-K). n_each: number of inputs
    in a part, a multiple of BLOCK_K. p_out: a separate output for each part, [n_rows, n_out]."""
    o_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    o_n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    m_m, m_n = o_m < n_rows, o_n < n_out
    o_w = tl.minimum(o_n, n_out - 1)  # no index is out of range, so no mask
    p_x += o_m.to(tl.int64)[None, :] * s_x
    b_acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    start = tl.program_id(2) * n_each
    p_out += tl.program_id(2).to(tl.int64) * n_rows * n_out
    for k in range(start, tl.minimum(start + n_each, n_in), BLOCK_K):
        b_stored = stored(p_numbers, o_w, k, n_in, s_numbers, BITS, BLOCK_K, EVEN)
        for i_half in tl.static_range(2 if BITS == 4 else 1):
            o_k = columns(k, i_half, BITS, BLOCK_K)
            m_x = m_m[None, :] if EVEN else m_m[None, :] & (o_k < n_in)[:, None]
            b_x = tl.load(p_x + o_k[:, None], mask=m_x, other=0.0)
            b_w = dequantised(b_stored, p_scale, p_minimum, o_w, k, i_half, n_groups, GROUP, UNIT, BITS, HAS_MIN, EVEN)
            b_acc = tl.dot(b_w.to(b_x.dtype), b_x, b_acc, input_precision=PRECISION)
    if HAS_BIAS:
        b_acc += tl.load(p_bias + o_n, mask=m_n, other=0.0).to(tl.float32)[:, None]
    o_out = o_m.to(tl.int64)[None, :] * n_out + o_n[:, None]
    tl.store(p_out + o_out, b_acc.to(p_out.dtype.element_ty), mask=m_m[None, :] & m_n[:, None])


@triton.jit
def _add_parts(p_parts, p_bias, p_out, n_parts, n_out, n_all, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """Adds the parts and the bias. Each program adds a block of the flattened output."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n_all
    b_sum = tl.zeros([BLOCK], tl.float32)
    for i in range(n_parts):
        b_sum += tl.load(p_parts + i * n_all + o, mask=m, other=0.0)
    if HAS_BIAS:
        b_sum += tl.load(p_bias + o % n_out, mask=m, other=0.0).to(tl.float32)
    tl.store(p_out + o, b_sum.to(p_out.dtype.element_ty), mask=m)


@triton.jit
def _dequantise(
    p_numbers, p_scale, p_minimum, p_out, n_out, n_in, n_groups, s_numbers,
    GROUP: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr, HAS_MIN: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Dequantises the weights of a block of outputs and a block of inputs."""
    o_n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    k = tl.program_id(1) * BLOCK_K
    m_n, o_w = (o_n < n_out)[:, None], tl.minimum(o_n, n_out - 1)
    b_stored = stored(p_numbers, o_w, k, n_in, s_numbers, BITS, BLOCK_K, EVEN)
    for i_half in tl.static_range(2 if BITS == 4 else 1):
        o_k = columns(k, i_half, BITS, BLOCK_K)
        b_w = dequantised(b_stored, p_scale, p_minimum, o_w, k, i_half, n_groups, GROUP, UNIT, BITS, HAS_MIN, EVEN)
        p_to = p_out + o_n[:, None] * n_in + o_k[None, :]
        tl.store(p_to, b_w.to(p_out.dtype.element_ty), mask=m_n & (o_k < n_in)[None, :])


class Shape(NamedTuple):
    """A compiled shape of `_linear`: a tile of rows and outputs, inputs per iteration, warps, pipeline stages."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


def shape(n_rows: int, n_bits: int) -> Shape:
    """The tile for n_rows rows. Few rows have small tiles, since reading the weight is the bottleneck. More rows have
    larger tiles, so that the weight is dequantised less often. Each tile was the fastest of a dozen on an H100."""
    if n_rows <= 16:
        return Shape(16, 64, 256, 4, 3) if n_bits == 4 else Shape(16, 16, 128, 1, 3)
    if n_bits == 4:
        return Shape(32, 64, 128, 4, 4) if n_rows <= 32 else Shape(64 if n_rows <= 64 else 128, 64, 128, 4, 3)
    return Shape(64, 64, 64, 4, 4) if n_rows <= 64 else Shape(64, 64, 128, 4, 3)


def n_parts(n_programs: int, n_blocks: int, warps: int) -> int:
    """Into how many parts to cut the inputs (split-K), so that each multiprocessor has enough warps to hide latency."""
    most = n_blocks // 2  # a part of one block has nothing to load ahead
    return max(1, min(most, round(WARPS * n_processors(architecture()) / (n_programs * warps))))


def unit(group: int, n_groups: int, block: int) -> int:
    """How many inputs share one loaded scale, in a tile of `block` inputs: a power of 2 that divides the group."""
    return block if n_groups == 1 else min(block, group & -group)


def linear(x: Tensor, weight: GroupedRows, bias: Tensor | None = None) -> Tensor:
    """x times the transposed weight, plus bias, [n_rows, n_out]; see `reference.linear`. Each row of x must be
    contiguous."""
    numbers, scale, minimum, n_in, n_bits, _ = weight
    n_rows, n_out, n_groups = len(x), len(numbers), scale.shape[1]
    assert x.shape[1] == n_in, f"x has {x.shape[1]} columns, but the weight has {n_in} inputs"
    assert x.stride(1) == 1, "the last axis must be contiguous"
    if n_rows >= MANY_ROWS:
        return F.linear(x, dequantise(weight, x.dtype), bias)
    out = torch.empty((n_rows, n_out), dtype=x.dtype, device=x.device)
    if out.numel():
        own = shape(n_rows, n_bits)
        grid, n_each, parts = split(out, n_in, own)
        is_whole = parts is out
        _linear[grid](
            x, numbers, scale, minimum, bias if is_whole else None, parts, n_rows, n_out, n_in, n_groups, x.stride(0),
            numbers.stride(0), n_each,
            GROUP=n_in // n_groups, UNIT=unit(n_in // n_groups, n_groups, own.inputs), BITS=n_bits,
            HAS_MIN=minimum is not None, HAS_BIAS=is_whole and bias is not None, EVEN=n_in % own.inputs == 0,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            BLOCK_M=own.rows, BLOCK_N=own.outputs, BLOCK_K=own.inputs, num_warps=own.warps, num_stages=own.stages,
        )  # fmt: skip
        if not is_whole:
            add_parts(parts, bias, out)
    return out


def split(out: Tensor, n_in: int, own: Shape) -> tuple[tuple[int, int, int], int, Tensor]:
    """Cuts the inputs of a product into parts. Returns the grid, the number of inputs in a part, and the tensor that
    the parts go to: `out` [n_rows, n_out] if there is one part, else a new float32 [n, n_rows, n_out], for
    `add_parts`."""
    n_rows, n_out = out.shape
    blocks, tiles = triton.cdiv(n_in, own.inputs), (triton.cdiv(n_out, own.outputs), triton.cdiv(n_rows, own.rows))
    each = triton.cdiv(blocks, n_parts(tiles[0] * tiles[1], blocks, own.warps))
    n = triton.cdiv(blocks, each)
    parts = out if n == 1 else torch.empty((n, n_rows, n_out), dtype=torch.float32, device=out.device)
    return (*tiles, n), each * own.inputs, parts


def add_parts(parts: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Writes the sum of the parts [n, n_rows, n_out], float32, and of the bias to `out` [n_rows, n_out]."""
    _add_parts[(triton.cdiv(out.numel(), 512),)](
        parts, bias, out, len(parts), out.shape[1], out.numel(), HAS_BIAS=bias is not None, BLOCK=512, num_warps=4
    )
    return out


def dequantise(weight: GroupedRows, dtype: torch.dtype) -> Tensor:
    """Dequantises the weight to a tensor [n_out, n_in] of `dtype`."""
    numbers, scale, minimum, n_in, n_bits, _ = weight
    n_out, n_groups, outputs, inputs = len(numbers), scale.shape[1], 16, 256
    out = torch.empty((n_out, n_in), dtype=dtype, device=numbers.device)
    _dequantise[triton.cdiv(n_out, outputs), triton.cdiv(n_in, inputs)](
        numbers, scale, minimum, out, n_out, n_in, n_groups, numbers.stride(0),
        GROUP=n_in // n_groups, UNIT=unit(n_in // n_groups, n_groups, inputs), BITS=n_bits,
        HAS_MIN=minimum is not None, EVEN=n_in % inputs == 0, BLOCK_N=outputs, BLOCK_K=inputs, num_warps=4,
    )  # fmt: skip
    return out
