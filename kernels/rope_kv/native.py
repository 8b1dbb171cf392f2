"""Calls rope_kv of the C++ library (native/rows.h)."""

import ctypes

import torch
from torch import Tensor

from banyan.kernels.kv_layout import Pool, address, native_kind, pointers
from banyan.kernels.native import threads
from banyan.kernels.rope_kv.reference import Norms


class _Call(ctypes.Structure):
    """Mirrors `RopeKv` of rows.h."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("qkv", "q_norm", "k_norm", "cos", "sin", "slots", "q", "k", "v", "k_scale", "v_scale")
        ),
        *((name, ctypes.c_int64) for name in ("n", "n_heads", "n_kv_heads", "dim", "half", "s_row")),
        ("eps", ctypes.c_float),
    )


def rope_kv(
    library: ctypes.CDLL,
    qkv: Tensor,
    norms: Norms,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    k_pool: Pool,
    v_pool: Pool,
    slots: Tensor,
) -> Tensor:
    """See `reference.rope_kv`; for inputs that `cpu.rope_kv` found to be supported."""
    n, n_all, dim = qkv.shape
    n_kv_heads = k_pool.shape[2]
    n_heads = n_all - 2 * n_kv_heads
    q = qkv.new_empty((n, n_heads, dim))
    (k, k_scale), (v, v_scale) = pointers(k_pool), pointers(v_pool)
    tensors = (qkv, *(norms or (None, None)), cos, sin, slots, q)
    sizes = (n, n_heads, n_kv_heads, dim, cos.shape[1], qkv.stride(0))
    call = _Call(*map(address, tensors), k, v, k_scale, v_scale, *sizes, eps)
    library.banyan_rope_kv(
        qkv.dtype == torch.bfloat16, native_kind(k_pool), ctypes.addressof(call), threads.for_rows(qkv.numel())
    )
    return q
