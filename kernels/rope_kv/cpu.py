"""Norms of heads, rotary embedding and the write to KV on a CPU, in one call of the C++ library."""

import torch
from torch import Tensor

from banyan.kernels.kv_layout import Pool, are_native
from banyan.kernels.native import build
from banyan.kernels.rope_kv import native, reference
from banyan.kernels.rope_kv.reference import Norms

MAX_HEAD = 512  # as in rows.h


def rope_kv(
    qkv: Tensor, norms: Norms, eps: float, cos: Tensor, sin: Tensor, k_pool: Pool, v_pool: Pool, slots: Tensor
) -> Tensor:
    """See `reference.rope_kv`."""
    library = build.library()
    if library is None or not _is_known(qkv, norms, cos, sin, k_pool, v_pool):
        return reference.rope_kv(qkv, norms, eps, cos, sin, k_pool, v_pool, slots)
    return native.rope_kv(library, qkv, norms, eps, cos, sin, k_pool, v_pool, slots)


def _is_known(qkv: Tensor, norms: Norms, cos: Tensor, sin: Tensor, k_pool: Pool, v_pool: Pool) -> bool:
    """Whether the library supports these inputs."""
    dtype, dim = qkv.dtype, qkv.shape[2]
    return (
        dtype in build.DTYPES
        and are_native(k_pool, v_pool, dtype)
        and (norms is None or all(norm.dtype == dtype and norm.is_contiguous() for norm in norms))
        and cos.dtype == sin.dtype == torch.float32
        and qkv.stride()[1:] == (dim, 1)
        and dim <= MAX_HEAD
        and all(t.is_contiguous() for t in (cos, sin))
    )
