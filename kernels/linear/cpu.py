"""Linear layers on a CPU, through the compiled library.

As fast as oneDNN where there are many rows, and without its 12 us a call where there are few: one row of 256 x 512
takes 4 us for 15 in float32, 3 for 12 in bfloat16 (one core of an AMD EPYC Zen 5, torch 2.13).
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from banyan.kernels.linear import packed, reference
from banyan.kernels.linear.packed import Packed
from banyan.kernels.native import build, threads


def pack(weight: Tensor, deterministic: bool = False, is_int8: bool = False) -> Packed | None:
    """`weight` [n_out, n_in] as the library reads it; None where it does not compute, or something else does better.

    With `deterministic` or `is_int8` it does not matter what does better: the library sums each row by itself, in the
    order of its columns, however many there are, and so gives it the same bits in any batch; and nothing else here
    multiplies with weights that stay in int8.
    """
    library = build.library()
    if library is None or weight.device.type != "cpu" or weight.dtype not in build.DTYPES:
        return None
    must = deterministic or is_int8
    if weight.dtype == torch.bfloat16 and (weight.shape[1] % 2 or (_has_matrix_unit() and not must)):
        return None
    return (packed.pack_int8 if is_int8 else packed.pack)(weight, library.banyan_panel())


def linear(x: Tensor, weight: Tensor | Packed, bias: Tensor | None = None) -> Tensor:
    """See `reference.linear`. With a packed weight, x and bias are of its `dtype`, and rows of x are contiguous."""
    if isinstance(weight, Tensor):
        return reference.linear(x, weight, bias)
    laid, n_out, n_in, dtype, scale = weight
    n, n_columns = x.shape
    assert x.dtype == dtype, f"{x.dtype} times a weight for {dtype}"
    assert n_columns == n_in, f"{n_columns} columns times {n_in}"
    out = x.new_empty((n, n_out))
    build.library().banyan_linear(  # type: ignore[union-attr]  # who packed it had one
        dtype == torch.bfloat16,
        x.data_ptr(),
        laid.data_ptr(),
        None if scale is None else scale.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        n,
        n_in,
        n_out,
        x.stride(0),
        1 if n * n_in * n_out < threads.PRODUCT_WORK else threads.most(),
    )
    return out


@cache
def _has_matrix_unit() -> bool:
    """Whether the CPU multiplies bfloat16 in tiles (Intel's AMX): oneDNN uses that, we do not."""
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
