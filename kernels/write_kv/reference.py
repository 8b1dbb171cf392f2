"""Scatter a step's new keys and values into the pools."""

from torch import Tensor


def write_kv(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Write row i of k and v, [n_rows, n_kv_heads, head_dim], to slot `slots[i]` = page * page_size + offset.

    k/v_pool [n_pages, page_size, n_kv_heads, head_dim], contiguous, changed in place. Slots are distinct.
    """
    k_pool.view(-1, *k_pool.shape[2:]).index_copy_(0, slots, k)
    v_pool.view(-1, *v_pool.shape[2:]).index_copy_(0, slots, v)
