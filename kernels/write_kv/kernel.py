"""Scatter new keys and values, one program per row."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write(p_k, p_v, p_k_pool, p_v_pool, p_slots, s_k, s_v, s_slot, N: tl.constexpr, BLOCK: tl.constexpr):
    i_row = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + i_row)
    o = tl.arange(0, BLOCK)
    m = o < N
    tl.store(p_k_pool + slot * s_slot + o, tl.load(p_k + i_row * s_k + o, mask=m), mask=m)
    tl.store(p_v_pool + slot * s_slot + o, tl.load(p_v + i_row * s_v + o, mask=m), mask=m)


def write_kv(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """See `reference.write_kv`. k and v may be views of a wider tensor, with contiguous rows."""
    n_rows, n_heads, dim = k.shape
    assert k_pool.is_contiguous(), "the K pool must be contiguous"
    assert v_pool.is_contiguous(), "the V pool must be contiguous"
    assert k.shape == v.shape, "K and V differ in shape"
    assert k.stride()[1:] == v.stride()[1:] == (dim, 1), "rows of K and V must be contiguous"
    if n_rows:
        n = n_heads * dim
        block = triton.next_power_of_2(n)
        _write[(n_rows,)](
            k, v, k_pool, v_pool, slots, k.stride(0), v.stride(0), n, N=n, BLOCK=block,
            num_warps=min(8, max(1, block // 256)),
        )  # fmt: skip
