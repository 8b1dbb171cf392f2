"""Linear layers on a CPU, by the C++ library.

The library is as fast as oneDNN on many rows. On few rows it saves oneDNN's overhead of 12 us per call: one row times
256 x 512 takes 4 us instead of 15 in float32, and 3 instead of 12 in bfloat16 (one core of an AMD EPYC Zen 5, torch
2.13).
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from banyan.kernels.kv_layout import address
from banyan.kernels.linear import packed, reference
from banyan.kernels.linear.packed import Packed
from banyan.kernels.native import build, threads


def pack(weight: Tensor, deterministic: bool = False, is_int8: bool = False) -> Packed | None:
    """Packs `weight` [n_out, n_in] for the library; None if the library cannot compute on it, or oneDNN is faster.

    With `deterministic` or `is_int8`, the library is used even if oneDNN is faster: it sums each row separately, in the
    order of its columns, so a row has the same bits in any batch; and only the library multiplies with int8 weights.
    """
    library = build.library()
    if library is None or weight.device.type != "cpu" or weight.dtype not in build.DTYPES:
        return None
    is_required = deterministic or is_int8
    if weight.dtype == torch.bfloat16 and (weight.shape[1] % 2 or (_has_matrix_unit() and not is_required)):
        return None
    return packed.pack(weight, library.banyan_panel(), is_int8)


def linear(x: Tensor, weight: Tensor | Packed, bias: Tensor | None = None) -> Tensor:
    """See `reference.linear`. With a packed weight, x and bias have `weight.dtype`, and rows of x are contiguous."""
    if isinstance(weight, Tensor):
        return reference.linear(x, weight, bias)
    panels, n_out, n_in, dtype, scale = weight
    n, n_columns = x.shape
    assert x.dtype == dtype, f"{x.dtype} times a weight for {dtype}"
    assert n_columns == n_in, f"{n_columns} columns times {n_in}"
    out = x.new_empty((n, n_out))
    library = build.library()
    assert library is not None, "a weight is packed only if there is a library"
    pointers = map(address, (x, panels, scale, bias, out))
    n_threads = 1 if n * n_in * n_out < threads.PRODUCT_WORK else threads.n_max()
    library.banyan_linear(dtype == torch.bfloat16, *pointers, n, n_in, n_out, x.stride(0), n_threads)
    return out


@cache
def _has_matrix_unit() -> bool:
    """Whether the CPU multiplies bfloat16 in tiles (Intel's AMX). oneDNN uses it; the library does not."""
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
