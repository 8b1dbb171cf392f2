"""Root-mean-square norm (Zhang and Sennrich, 2019), with the residual add that precedes it in a decoder."""

from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, rows: Tensor | None = None) -> Any:
    """Norm over the last axis of x [..., dim], times weight [dim]. Computed in float32, returned in x's dtype.

    residual  of x's shape: norms x + residual instead, and returns (norm, x + residual)
    rows      int64 [n]: computes only these rows of x and residual, in this order
    """
    if rows is not None:
        x, residual = x[rows], None if residual is None else residual[rows]
    real = torch.promote_types(x.dtype, torch.float32)
    total = x if residual is None else x + residual
    wide = total.to(real)
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.to(real)
    return y.to(x.dtype) if residual is None else (y.to(x.dtype), total)
