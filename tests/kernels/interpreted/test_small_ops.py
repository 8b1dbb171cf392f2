"""The interpreted Triton kernels except attention agree with the float64 reference."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.kernels import ops
from forms import short_form
from kernel_support import small_ops

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def test_kernels_serve_cpu_tensors_in_this_process() -> None:
    for name, op in ops.TABLE.items():
        assert op.on_gpu == ("reference" if name in ("linear", "add_lora") else "kernel")
        assert ops.implementation(name, "cpu").__module__ == f"banyan.kernels.{op.folder}.{op.on_gpu}"


@pytest.mark.parametrize(
    ("dtype", "check"),
    short_form(
        product(DTYPES, small_ops.CHECKS), lambda dtype, check: dtype == DTYPES[small_ops.CHECKS.index(check) % 3]
    ),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_op_agrees_with_its_reference(check: small_ops.Check, dtype: torch.dtype) -> None:
    check(1, dtype, "cpu")


@pytest.mark.long
@pytest.mark.parametrize("check", small_ops.CHECKS, ids=lambda check: check.__name__)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), dtype=st.sampled_from(DTYPES))
def test_op_agrees_on_many_random_shapes(check: small_ops.Check, seed: int, dtype: torch.dtype) -> None:
    check(seed, dtype, "cpu")
