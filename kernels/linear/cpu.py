"""Linear layers on a CPU, by the C++ library.

The library is about as fast as oneDNN on many rows. On few rows it saves oneDNN's overhead of 12 us per call: one row
times 256 x 512 takes 4 us instead of 15 in float32, and 3 instead of 12 in bfloat16 (one core of an AMD EPYC Zen 5,
torch 2.13).
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from banyan.kernels.device import INTERPRETED
from banyan.kernels.kv_layout import address
from banyan.kernels.linear import packed
from banyan.kernels.linear.grouped import FLOAT8, Grouped
from banyan.kernels.linear.packed import GroupedRows, Packed, Weight
from banyan.kernels.native import build, threads


def pack(
    weight: Tensor | Grouped, deterministic: bool = False, dtype: torch.dtype = torch.float32
) -> Packed | GroupedRows | None:
    """Packs `weight` [n_out, n_in]: on a CPU for the C++ library; on a GPU, if it is quantised, for the Triton kernels.
    A quantised weight that no kernel supports is dequantised. Returns None if the library does not support the weight,
    or if oneDNN is faster.

    With `deterministic`, the library is used even if oneDNN is faster: it sums each row separately, in the order of its
    columns, so a row has the same bits in any batch. dtype: for a quantised weight, the dtype of the rows that it
    multiplies.
    """
    library = build.library()
    if isinstance(weight, Grouped):
        if weight.numbers.device.type != "cpu" or INTERPRETED:
            return packed.pack_rows(weight)
        if library is not None and dtype in build.DTYPES:
            kept = packed.pack_grouped(weight, dtype, deterministic)
            if kept is not None:
                return kept
        weight = weight.dequantise(dtype)
    if library is None or weight.device.type != "cpu" or weight.dtype not in build.DTYPES:
        return None
    if weight.dtype == torch.bfloat16:
        is_slower = _has_matrix_unit() and not library.banyan_has_tiles()
        if weight.shape[1] % 2 or (is_slower and not deterministic):
            return None
    return packed.pack(weight, library.banyan_panel())


def keeps_quantised(weight: Grouped, device: torch.device) -> bool:
    """Whether `pack` may keep a weight quantised on a device. False for E4M3 on a CPU, where no kernel supports it."""
    return weight.n_bits != FLOAT8 or device.type != "cpu" or INTERPRETED


def linear(x: Tensor, weight: Packed, bias: Tensor | None = None) -> Tensor:
    """x times the transposed weight, plus bias; for shapes see `reference.linear`. x and bias must have `weight.dtype`,
    and each row of x must be contiguous."""
    n, n_columns = x.shape
    assert x.dtype == weight.dtype, f"x is {x.dtype}, but the weight is packed for {weight.dtype}"
    assert n_columns == weight.n_in, f"x has {n_columns} columns, but the weight has {weight.n_in} inputs"
    out = x.new_empty((n, weight.n_out))
    library = build.library()
    assert library is not None, "a weight is packed only if there is a library"
    n_threads = 1 if n * n_columns * weight.n_out < threads.PRODUCT_WORK else threads.n_max()
    pointer = ctypes.byref(Weight.of(weight, bias))
    library.banyan_linear(x.dtype == torch.bfloat16, address(x), pointer, address(out), n, x.stride(0), n_threads)
    return out


@cache
def _has_matrix_unit() -> bool:
    """Whether the CPU multiplies bfloat16 in tiles (Intel's AMX). oneDNN uses AMX; so does the library if the compiler
    supports it."""
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
