"""The gate of a feed-forward layer on a CPU, by the C++ library."""

import torch
from torch import Tensor

from banyan.kernels.native import build, threads
from banyan.kernels.silu_mul import reference


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `reference.silu_mul`."""
    library = build.library()
    if library is None or gate_up.dtype not in build.DTYPES or gate_up.stride(1) != 1:
        return reference.silu_mul(gate_up)
    n, both = gate_up.shape
    dim = both // 2
    out = gate_up.new_empty((n, dim))
    n_threads = threads.for_rows(gate_up.numel())
    is_bf16 = gate_up.dtype == torch.bfloat16
    library.banyan_silu_mul(is_bf16, gate_up.data_ptr(), out.data_ptr(), n, dim, gate_up.stride(0), n_threads)
    return out
