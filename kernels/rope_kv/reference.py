"""The ops between a layer's QKV projection and its attention: QK norm, rotary embedding, the write to the KV cache.

Rotary position embedding (Su et al., 2021) in the half-split layout: of n rotated dimensions, dimension i is rotated
together with dimension i + n / 2.
"""

import torch
from torch import Tensor

from banyan.kernels.kv_layout import Pool
from banyan.kernels.small_ops.reference import rms_norm
from banyan.kernels.write_kv import reference as write_kv

Norms = tuple[Tensor, Tensor] | None
"""The weights of QK norm, over each head of the queries and over each head of the keys, [dim] each; None: no norm."""


def rope_kv(
    qkv: Tensor, norms: Norms, eps: float, cos: Tensor, sin: Tensor, k_pool: Pool, v_pool: Pool, slots: Tensor
) -> Tensor:
    """Returns the normed and rotated queries, [n_rows, n_heads, dim]. Writes the normed and rotated keys, and the
    values, to the pools.

    qkv          [n_rows, n_heads + 2 n_kv_heads, dim]: queries, keys and values of a fused projection; not changed
    norms        see Norms
    cos, sin     [n_rows, n_rotary / 2] for each row's position. n_rotary <= dim; further dimensions are not rotated
    k/v_pool     [n_pages, page_size, n_kv_heads, dim], contiguous, changed in place; see `write_kv`
    slots        int64 [n_rows], distinct: page * page_size + offset
    """
    n_kv_heads = k_pool.shape[2]
    q, k, v = torch.split(qkv, [qkv.shape[1] - 2 * n_kv_heads, n_kv_heads, n_kv_heads], dim=1)
    if norms is not None:
        q, k = rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)
    write_kv.write_kv(rotate(k, cos, sin), v, k_pool, v_pool, slots)
    return rotate(q, cos, sin)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns x [n_rows, n_heads, dim] with rotary embedding. cos, sin: [n_rows, n_rotary / 2]; further dimensions are
    not rotated."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    real = torch.promote_types(x.dtype, torch.float32)
    a, b = x[..., :half].to(real), x[..., half : 2 * half].to(real)
    rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
    return torch.cat([rotated, x[..., 2 * half :]], dim=-1)
