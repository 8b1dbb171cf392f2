"""The ops except attention on --device (default: the CPU), and the table of ops."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from banyan.kernels import ops
from forms import examples
from kernel_support import small_ops

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("check", small_ops.CHECKS, ids=lambda check: check.__name__)
@examples(6, 40, given(seed=st.integers(0, 2**31), dtype=st.sampled_from(DTYPES)))
def test_op_agrees_with_its_reference_on_random_shapes(
    check: small_ops.Check, seed: int, dtype: torch.dtype, device: str
) -> None:
    check(seed, dtype, device)


def test_table_names_every_op() -> None:
    functions = inspect.getmembers(ops, inspect.isfunction)
    assert sorted(ops.TABLE) == [name for name, function in functions if function.__module__ == ops.__name__]
    for name, op in ops.TABLE.items():
        assert ops.implementation(name, "cpu").__module__ == f"banyan.kernels.{op.folder}.{op.on_cpu}"
        assert ops.implementation(name, "meta").__module__ == f"banyan.kernels.{op.folder}.reference"
