"""A pool as the compiled library takes it."""

import torch

from banyan.kernels.kv_layout import Pool, Quantized, parts

_KINDS = {torch.int8: 1, torch.float8_e4m3fn: 2}


def kind(pool: Pool) -> int:
    """What a pool's numbers are to the library: of the computation's type (0), int8 (1), e4m3 (2)."""
    return _KINDS[pool.numbers.dtype] if isinstance(pool, Quantized) else 0


def holds(pool: Pool, dtype: torch.dtype) -> bool:
    """Whether the library can use a pool for what is computed in `dtype`."""
    known = pool.numbers.dtype in _KINDS if isinstance(pool, Quantized) else pool.dtype == dtype
    return known and all(part.is_contiguous() for part in parts(pool))


def pointers(pool: Pool) -> tuple[int, int | None]:
    """Of a pool's numbers, and of its scales."""
    if isinstance(pool, Quantized):
        return pool.numbers.data_ptr(), pool.scale.data_ptr()
    return pool.data_ptr(), None
