"""kernel_support/interpreter.py: its fixes give exact results, and its checks find planted faults."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from kernel_support import interpreter


@triton.jit
def dot(p_a, p_b, p_c, N: tl.constexpr):
    o = tl.arange(0, N)
    o_2d = o[:, None] * N + o[None, :]
    tl.store(p_c + o_2d, tl.dot(tl.load(p_a + o_2d), tl.load(p_b + o_2d)).to(p_c.dtype.element_ty))


@triton.jit
def copy(p_from, p_to, n, s_program, BLOCK: tl.constexpr):
    o = tl.program_id(0) * s_program + tl.arange(0, BLOCK)
    tl.store(p_to + o, tl.load(p_from + o, mask=o < n), mask=o < n)


@triton.jit
def store_twice(p_to, BLOCK: tl.constexpr):
    tl.store(p_to + tl.arange(0, BLOCK) // 2, tl.arange(0, BLOCK))


@triton.jit
def scalar_in_mask(p_to, n, lo, hi, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(p_to + o, o, mask=(o < n) & (hi > lo))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dot_is_rounded_to_nearest(dtype: torch.dtype) -> None:
    a, b = torch.randn(2, 16, 16).to(dtype)
    c = torch.empty(16, 16, dtype=dtype)
    dot[(1,)](a, b, c, N=16)
    assert torch.allclose(c.float(), (a.float() @ b.float()).to(dtype).float(), atol=1e-5, rtol=1e-2)
    exact = torch.eye(16)
    bf16 = torch.empty(16, 16, dtype=torch.bfloat16)
    wide = torch.randn(16, 16)
    dot[(1,)](exact, wide, bf16, N=16)
    assert torch.equal(bf16, wide.bfloat16())


def test_integers_are_converted_by_value() -> None:
    ints, numbers = torch.arange(-8, 8, dtype=torch.int8), torch.empty(16, dtype=torch.bfloat16)
    copy[(1,)](ints, numbers, 16, 0, BLOCK=16)
    assert numbers.tolist() == ints.tolist()
    restored = torch.empty_like(ints)
    copy[(1,)](numbers, restored, 16, 0, BLOCK=16)
    assert torch.equal(restored, ints)


def test_access_out_of_bounds_raises() -> None:
    a, b = torch.zeros(2, 8)
    with pytest.raises(InterpreterError, match="out of bounds: load"):
        copy[(1,)](a[:4].clone(), b.clone(), 16, 0, BLOCK=16)
    with interpreter.checks(memory=False, race=False):
        copy[(1,)](torch.zeros(64)[:8], torch.zeros(64)[:8], 16, 0, BLOCK=16)


def test_races_raise() -> None:
    a, b = torch.zeros(32), torch.zeros(32)
    copy[(2,)](a, b, 32, 16, BLOCK=16)
    with pytest.raises(InterpreterError, match="race: store in program"):
        copy[(2,)](a, b, 32, 8, BLOCK=16)
    with pytest.raises(InterpreterError, match="race: load in program"):
        copy[(2,)](a, a, 32, 8, BLOCK=16)
    with pytest.raises(InterpreterError, match="writes an element twice"):
        store_twice[(1,)](torch.zeros(16, dtype=torch.int32), BLOCK=16)
    with interpreter.checks(race=False):
        copy[(2,)](a, b, 32, 8, BLOCK=16)


def test_scalar_in_a_mask() -> None:
    to = torch.full((16,), -1, dtype=torch.int32)
    scalar_in_mask[(1,)](to, 4, 0, 1, BLOCK=16)
    assert to.tolist() == [0, 1, 2, 3] + [-1] * 12
