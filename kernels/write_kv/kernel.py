"""Scatter new keys and values, one program per row."""

import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels import quantized
from banyan.kernels.device import architecture
from banyan.kernels.kv_layout import Pool
from banyan.kernels.quantized import narrow, scale_of


@triton.jit
def put(
    p_x, p_pool, p_scale, slot, N_HEADS: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """All heads of one row, DIM apart, to a slot."""
    if KIND == 0:
        o = tl.arange(0, BLOCK)
        m = o < N_HEADS * DIM
        tl.store(p_pool + slot * (N_HEADS * DIM) + o, tl.load(p_x + o, mask=m), mask=m)
    else:
        o_head, o_dim = tl.arange(0, BLOCK_HEADS), tl.arange(0, BLOCK_DIM)
        m = (o_head < N_HEADS)[:, None] & (o_dim < DIM)[None, :]
        o = o_head[:, None] * DIM + o_dim[None, :]
        b = tl.load(p_x + o, mask=m, other=0.0).to(tl.float32)
        b_scale = scale_of(b, KIND)
        tl.store(p_pool + slot * (N_HEADS * DIM) + o, narrow(b, b_scale[:, None], KIND), mask=m)
        tl.store(p_scale + slot * N_HEADS + o_head, b_scale, mask=o_head < N_HEADS)


@triton.jit
def _write(
    p_k, p_v, p_k_pool, p_v_pool, p_k_scale, p_v_scale, p_slots, s_k, s_v,
    N_HEADS: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    i_row = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + i_row)
    put(p_k + i_row * s_k, p_k_pool, p_k_scale, slot, N_HEADS, DIM, KIND, BLOCK, BLOCK_HEADS, BLOCK_DIM)
    put(p_v + i_row * s_v, p_v_pool, p_v_scale, slot, N_HEADS, DIM, KIND, BLOCK, BLOCK_HEADS, BLOCK_DIM)


def write_kv(k: Tensor, v: Tensor, k_pool: Pool, v_pool: Pool, slots: Tensor) -> None:
    """See `reference.write_kv`. k and v may be views of a wider tensor, with contiguous rows."""
    n_rows, n_heads, dim = k.shape
    arch = architecture()
    (k_to, k_scale, kind), (v_to, v_scale, _) = quantized.parts(k_pool, arch), quantized.parts(v_pool, arch)
    assert k_to.is_contiguous(), "the K pool must be contiguous"
    assert v_to.is_contiguous(), "the V pool must be contiguous"
    assert k_to.dtype == v_to.dtype, "K and V pools differ in dtype"
    assert k.shape == v.shape, "K and V differ in shape"
    assert k.stride()[1:] == v.stride()[1:] == (dim, 1), "rows of K and V must be contiguous"
    if n_rows:
        up = triton.next_power_of_2
        block = up(n_heads * dim)
        _write[(n_rows,)](
            k, v, k_to, v_to, k_scale, v_scale, slots, k.stride(0), v.stride(0),
            N_HEADS=n_heads, DIM=dim, KIND=kind, BLOCK=block, BLOCK_HEADS=up(n_heads), BLOCK_DIM=up(dim),
            num_warps=min(8, max(1, block // 256)),
        )  # fmt: skip
