"""Ops on rows and logits on a CPU, by the C++ library, or by numpy where there are few numbers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.kv_layout import address
from banyan.kernels.native import build, threads
from banyan.kernels.small_ops import reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, rows: Tensor | None = None) -> Any:
    """RMS norm over the last axis, of x or of x + residual; see `reference.rms_norm`."""
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


def silu_mul(gate_up: Tensor) -> Tensor:
    """The gate of a feed-forward layer, silu(gate) * up; see `reference.silu_mul`."""
    library = build.library()
    if library is None or gate_up.dtype not in build.DTYPES or gate_up.stride(1) != 1:
        return reference.silu_mul(gate_up)
    n, both = gate_up.shape
    out = gate_up.new_empty((n, both // 2))
    sizes = (n, both // 2, gate_up.stride(0), threads.for_rows(gate_up.numel()))
    library.banyan_silu_mul(gate_up.dtype == torch.bfloat16, gate_up.data_ptr(), out.data_ptr(), *sizes)
    return out


def edit_logits(logits: Tensor, rows: Tensor, tokens: Tensor, factors: Tensor, shifts: Tensor) -> None:
    """Applies penalties and biases to single logits, in place; for shapes see `reference.edit_logits`. For few logits,
    numpy takes a fifth of torch's time."""
    if logits.dtype != torch.float32:
        return reference.edit_logits(logits, rows, tokens, factors, shifts)
    table, factor, cells = logits.numpy(), factors.numpy(), (rows.numpy(), tokens.numpy())
    old = table[cells]
    table[cells] = np.where(old > 0, old / factor, old * factor) + shifts.numpy()
    return None


def mask_logits(logits: Tensor, masks: Tensor, which: Tensor) -> None:
    """Sets the logits of forbidden tokens to -inf, in place; for shapes see `reference.mask_logits`."""
    library = build.library()
    is_plain = logits.dtype == torch.float32 and logits.stride(1) == 1 and masks.is_contiguous()
    if library is None or not is_plain:
        return reference.mask_logits(logits, masks, which)
    assert masks.dtype == which.dtype == torch.int32, "masks and which are int32"
    assert 32 * masks.shape[1] >= logits.shape[1], f"masks of {masks.shape[1]} words do not cover the vocabulary"
    pointers = (logits.data_ptr(), masks.data_ptr(), which.data_ptr())
    sizes = (*logits.shape, logits.stride(0), masks.shape[1])
    library.banyan_mask_logits(*pointers, *sizes, threads.for_rows(logits.numel()))
    return None
