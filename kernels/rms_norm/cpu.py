"""Root-mean-square norm on a CPU, by the C++ library: one call instead of torch's six."""

from typing import Any

import torch
from torch import Tensor

from banyan.kernels.kv_layout import address
from banyan.kernels.native import build, threads
from banyan.kernels.rms_norm import reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, rows: Tensor | None = None) -> Any:
    """See `reference.rms_norm`."""
    if rows is not None:
        x, residual = x.index_select(0, rows), None if residual is None else residual.index_select(0, rows)
    library = build.library()
    if (
        library is None
        or x.dtype not in build.DTYPES
        or x.dim() not in (2, 3)
        or x.stride(-1) != 1
        or weight.dtype != x.dtype
        or not weight.is_contiguous()
        or (residual is not None and not (residual.is_contiguous() and residual.dtype == x.dtype))
    ):
        return reference.rms_norm(x, weight, eps, residual)
    n_rows, *heads, dim = x.shape
    n_heads = heads[0] if heads else 1
    out = torch.empty_like(x if residual is None else residual, memory_format=torch.contiguous_format)
    total = None if residual is None else torch.empty_like(residual)
    pointers = map(address, (x, weight, residual, out, total))
    sizes = (n_rows * n_heads, n_heads, dim, x.stride(0), x.stride(-2))
    library.banyan_rms_norm(x.dtype == torch.bfloat16, *pointers, *sizes, eps, threads.for_rows(x.numel()))
    return out if total is None else (out, total)
