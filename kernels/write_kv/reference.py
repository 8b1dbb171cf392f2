"""Scatters a step's new keys and values into the pools."""

import torch
from torch import Tensor

from banyan.kernels.kv_layout import Pool, Quantized, parts, quantize, stored


def write_kv(k: Tensor, v: Tensor, k_pool: Pool, v_pool: Pool, slots: Tensor) -> None:
    """Writes row i of k and v, [n_rows, n_kv_heads, head_dim], to slot `slots[i]` = page * page_size + offset.

    k/v_pool [n_pages, page_size, n_kv_heads, head_dim], contiguous, changed in place. Slots are distinct. Rows for a
    `Quantized` pool are quantised, each row and head separately (`kv_layout.quantize`). v is not read if values are
    part of the keys (`kv_layout.is_latent`).
    """
    for rows, pool in zip((k, v), stored(k_pool, v_pool), strict=False):
        numbers: tuple[Tensor, ...] = (rows,)
        if isinstance(pool, Quantized):
            small, scale = quantize(rows, pool.numbers.dtype)
            numbers = small.view(torch.uint8), scale
        for part, own in zip(parts(pool), numbers, strict=True):
            part.view(-1, *part.shape[2:]).index_copy_(0, slots, own)
