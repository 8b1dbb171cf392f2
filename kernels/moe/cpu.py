"""A mixture-of-experts layer on a CPU, in one call of the C++ library (native/experts.h)."""

import ctypes

import torch
from torch import Tensor

from banyan.kernels.kv_layout import address
from banyan.kernels.linear.packed import Packed, Weight
from banyan.kernels.moe import reference
from banyan.kernels.moe.experts import Experts
from banyan.kernels.native import build, threads


class Call(ctypes.Structure):
    """Mirrors `Experts` of native/experts.h."""

    _fields_ = (
        ("gate_up", Weight), ("down", Weight),
        *((name, ctypes.c_float) for name in ("alpha", "cubic", "limit", "shift")),
        *((name, ctypes.c_int64) for name in ("n_experts", "n", "n_each")),
        *((name, ctypes.c_void_p) for name in ("index", "weights", "x", "rows", "inner", "out")),
        ("product_work", ctypes.c_int64),
    )  # fmt: skip


def experts(x: Tensor, all_experts: Experts, index: Tensor, weights: Tensor) -> Tensor:
    """See `reference.experts`. Packed weights are for rows in the dtype of x."""
    gate_up, down = all_experts.gate_up, all_experts.down
    if not isinstance(gate_up, Packed) or not isinstance(down, Packed):
        return reference.experts(x, all_experts, index, weights)
    library = build.library()
    assert library is not None, "a weight is packed only if there is a library"
    assert x.dtype == gate_up.dtype, f"{x.dtype} times weights for {gate_up.dtype}"
    assert (gate_up.n_in, gate_up.n_out, down.n_out) == (x.shape[1], 2 * down.n_in, x.shape[1])
    assert index.dtype == torch.int64, index.dtype
    assert weights.shape == index.shape == (len(x), index.shape[1])
    x, index, weights = x.contiguous(), index.contiguous(), weights.float().contiguous()
    rows, inner = (x.new_empty(index.numel(), n_out) for n_out in (down.n_out, gate_up.n_out))
    out = torch.empty_like(x)
    call = Call(
        Weight.of(gate_up, all_experts.gate_up_bias), Weight.of(down, all_experts.down_bias), *all_experts.gate,
        all_experts.n_experts, *index.shape, *map(address, (index, weights, x, rows, inner, out)), threads.PRODUCT_WORK,
    )  # fmt: skip
    library.banyan_experts(x.dtype == torch.bfloat16, ctypes.addressof(call), threads.n_max())
    return out
