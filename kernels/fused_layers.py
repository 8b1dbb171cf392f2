"""Decides whether one call of the C++ library can compute all layers of a decoder."""

from __future__ import annotations

from collections.abc import Sequence

from banyan.kernels.attention.native import MAX_DIM, MAX_ROWS
from banyan.kernels.device import INTERPRETED
from banyan.kernels.linear.packed import Packed
from banyan.kernels.native import build
from banyan.kernels.native.layers import Layers, Weights

__all__ = ["Layers", "Weights", "fused"]


def fused(weights: Sequence[Weights], n_heads: int, n_kv_heads: int, dim: int, eps: float) -> Layers | None:
    """The fused layers; None if the library cannot compute them. It needs a CPU, packed weights and its dtypes."""
    library = build.library()
    if INTERPRETED or library is None or dim % 16 or dim > MAX_DIM or n_heads > MAX_ROWS:
        return None
    dtype = weights[0].attention_norm.dtype
    for w in weights:
        if not all(isinstance(weight, Packed) and weight.dtype == dtype for weight, _ in w.linears):
            return None
        if not all(vector.dtype == dtype and vector.is_contiguous() for vector in w.vectors):
            return None
    return Layers(library, weights, n_heads, n_kv_heads, dim, eps) if dtype in build.DTYPES else None
