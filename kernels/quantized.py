"""What Triton kernels do with numbers of 8 bits: to and from real ones.

Chips without e4m3 (sm_80) read and write its bits as integers: at a float's place they are the number times 2**-120,
subnormal ones too.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.kv_layout import LIMIT, Pool, Quantized

PLAIN, INT8, FP8, FP8_BITS = 0, 1, 2, 3


def parts(pool: Pool, arch: str) -> tuple[Tensor, Tensor | None, int]:
    """A pool's numbers as a kernel takes them, its scales, and what the numbers are."""
    if not isinstance(pool, Quantized):
        return pool, None, PLAIN
    numbers, scale = pool
    assert numbers.dtype in LIMIT, f"{numbers.dtype}: pools of 8 bits are int8 or e4m3"
    assert numbers.is_contiguous() and scale.is_contiguous(), "a pool of 8 bits must be contiguous"  # noqa: PT018
    if numbers.dtype == torch.int8:
        return numbers, scale, INT8
    return (pool.bits, scale, FP8_BITS) if arch.startswith("sm_8") else (numbers, scale, FP8)


@triton.jit
def widen(b, KIND: tl.constexpr):
    """Numbers as they were loaded, in a type that others convert from."""
    if KIND == 3:
        b_bits = ((b & 0x80).to(tl.uint32) << 24) | ((b & 0x7F).to(tl.uint32) << 20)
        b_wide = b_bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    else:
        b_wide = b
    return b_wide


@triton.jit
def narrow(b, b_scale, KIND: tl.constexpr):
    """float32 divided by its scale, as it is to be stored; to nearest even."""
    b = b / tl.where(b_scale > 0.0, b_scale, 1.0)
    b = tl.where(b == b, b, 0.0)  # NaN is the scale's business
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
    """The scale of each row of b, float32 [rows, dim]; NaN where a number is."""
    b_most = tl.max(tl.abs(b), 1) + tl.sum(b * 0.0, 1)
    return b_most / (127.0 if KIND == 1 else 448.0)


@triton.jit
def most(b_a, b_b):
    """The larger of two scales; NaN where one is."""
    return tl.maximum(b_a, b_b) + (b_a + b_b) * 0.0
