"""Attention on a CPU: the C++ library, or plain torch (`torch_cpu.py`) for inputs that the library does not support."""

from torch import Tensor

from banyan.kernels.attention import native, torch_cpu
from banyan.kernels.attention.ragged import AttentionOptions, Ragged
from banyan.kernels.kv_layout import Pool, are_native
from banyan.kernels.native import build


def attention(q: Tensor, k_pool: Pool, v_pool: Pool, ragged: Ragged, options: AttentionOptions) -> Tensor:
    """See `reference.attention`."""
    library = build.library()
    if library is None or not is_known(q, k_pool, v_pool):
        return torch_cpu.attention(q, k_pool, v_pool, ragged, options)
    return native.attend(library, q, k_pool, v_pool, ragged, options)


def is_known(q: Tensor, k_pool: Pool, v_pool: Pool) -> bool:
    """Whether the library supports these inputs."""
    _, n_heads, dim = q.shape
    return (
        q.dtype in build.DTYPES
        and are_native(k_pool, v_pool, q.dtype)
        and dim % 16 == 0
        and dim <= native.MAX_DIM
        and n_heads <= native.MAX_ROWS
        and q.stride(2) == 1
        and q.stride(1) == dim
    )
