"""A mixture-of-experts layer on a CPU, in one call of the C++ library (native/experts.h)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from banyan.kernels.device import INTERPRETED
from banyan.kernels.linear import packed
from banyan.kernels.linear.grouped import Grouped
from banyan.kernels.linear.packed import AnyWeight, Packed
from banyan.kernels.moe import reference
from banyan.kernels.moe.experts import Experts, call, joined
from banyan.kernels.native import build, threads


def pack(weights: Sequence[Tensor | Grouped], dtype: torch.dtype) -> AnyWeight:
    """Packs the weights [n_out, n_in] of all experts in the layout of the device's kernel, for rows in `dtype`.
    Quantised weights for which there is no kernel are dequantised."""
    library = build.library() if dtype in build.DTYPES and not INTERPRETED else None
    small = [weight for weight in weights if isinstance(weight, Grouped)]
    if len(small) == len(weights):
        if small[0].numbers.is_cuda or INTERPRETED:
            return joined([packed.pack_rows(weight) for weight in small])
        kept = [packed.pack_grouped(weight, dtype, deterministic=False) for weight in small if library is not None]
        if whole := [weight for weight in kept if weight is not None]:  # all or none: their groups are the same
            return joined(whole)
    floats = [weight.dequantise(dtype) if isinstance(weight, Grouped) else weight for weight in weights]
    if library is None or floats[0].device.type != "cpu" or floats[0].shape[1] * dtype.itemsize % 4:
        return torch.stack(floats)
    return joined([packed.pack(weight, library.banyan_panel()) for weight in floats])


def experts(x: Tensor, all_experts: Experts, index: Tensor, weights: Tensor) -> Tensor:
    """Sends each row of x through its experts, and returns the sums of their weighted outputs; see
    `reference.experts`."""
    library = build.library()
    if library is None or not isinstance(all_experts.gate_up, Packed):
        return reference.experts(x, all_experts, index, weights)
    return call(library, x, all_experts, index, weights, threads.PRODUCT_WORK, threads.n_max())
