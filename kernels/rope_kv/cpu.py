"""QK norm, rotary embedding and the write to the KV cache on a CPU, in one call of the C++ library (native/rows.h)."""

import ctypes

import torch
from torch import Tensor

from banyan.kernels.kv_layout import Pool, address, are_native, native_kind, pointers
from banyan.kernels.native import build, threads
from banyan.kernels.native.layers import MAX_HEAD
from banyan.kernels.rope_kv import reference
from banyan.kernels.rope_kv.reference import Norms

_POINTERS = "qkv", "q_norm", "k_norm", "cos", "sin", "slots", "q", "k", "v", "k_scale", "v_scale"


class _Call(ctypes.Structure):
    """The ctypes form of struct `RopeKv` in native/rows.h: the arguments of one call."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("n", "n_heads", "n_kv_heads", "dim", "half", "s_row")),
        ("eps", ctypes.c_float),
    )


def rope_kv(
    qkv: Tensor, norms: Norms, eps: float, cos: Tensor, sin: Tensor, k_pool: Pool, v_pool: Pool, slots: Tensor
) -> Tensor:
    """QK norm and rotary embedding. Returns the queries, and writes keys and values to the pools; see
    `reference.rope_kv`."""
    library = build.library()
    if library is None or not _is_known(qkv, norms, cos, sin, k_pool, v_pool):
        return reference.rope_kv(qkv, norms, eps, cos, sin, k_pool, v_pool, slots)
    n, n_all, dim = qkv.shape
    n_kv_heads = k_pool.shape[2]
    n_heads = n_all - 2 * n_kv_heads
    q = qkv.new_empty((n, n_heads, dim))
    (k, k_scale), (v, v_scale) = pointers(k_pool), pointers(v_pool)
    tensors = (qkv, *(norms or (None, None)), cos, sin, slots, q)
    sizes = (n, n_heads, n_kv_heads, dim, cos.shape[1], qkv.stride(0))
    call = _Call(*map(address, tensors), k, v, k_scale, v_scale, *sizes, eps)
    n_threads = threads.for_rows(qkv.numel())
    library.banyan_rope_kv(qkv.dtype == torch.bfloat16, native_kind(k_pool, v_pool), ctypes.addressof(call), n_threads)
    return q


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
