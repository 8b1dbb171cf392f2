"""Rotary embedding on a CPU, through the compiled library."""

import torch
from torch import Tensor

from banyan.kernels.native import build
from banyan.kernels.rope import reference


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See `reference.rope`."""
    library = build.library()
    if (
        library is None
        or positions is not None
        or q.dtype not in build.DTYPES
        or q.dtype != k.dtype
        or not all(x.stride(2) == 1 and x.stride(1) == x.shape[2] for x in (q, k))
        or cos.dtype != torch.float32
        or sin.dtype != torch.float32
        or not (cos.is_contiguous() and sin.is_contiguous())
    ):
        return reference.rope(q, k, cos, sin, positions)
    half = cos.shape[1]
    turned = []
    for x in (q, k):
        n, n_heads, dim = x.shape
        out = torch.empty((n, n_heads, dim), dtype=x.dtype)
        library.banyan_rope(
            x.dtype == torch.bfloat16,
            x.data_ptr(),
            out.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            n,
            n_heads,
            dim,
            half,
            x.stride(0),
            build.n_threads(x.numel()),
        )
        turned.append(out)
    return turned[0], turned[1]
