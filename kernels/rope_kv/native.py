"""Calls rope_kv of the C++ library (native/rows.h)."""

import ctypes

import torch
from torch import Tensor

from banyan.kernels.kv_layout import Pool, native_kind, pointers


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
    n_threads: int,
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
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
    call = _Call(
        qkv.data_ptr(),
        None if norms is None else norms[0].data_ptr(),
        None if norms is None else norms[1].data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        slots.data_ptr(),
        q.data_ptr(),
        k,
        v,
        k_scale,
        v_scale,
        n,
        n_heads,
        n_kv_heads,
        dim,
        cos.shape[1],
        qkv.stride(0),
        eps,
    )
    library.banyan_rope_kv(qkv.dtype == torch.bfloat16, native_kind(k_pool), ctypes.addressof(call), n_threads)
    return q
