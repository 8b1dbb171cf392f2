"""The experts of a mixture-of-experts layer: their weights, and the gate between their two products."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from banyan.kernels.kv_layout import address
from banyan.kernels.linear.packed import AnyWeight, GroupedRows, Packed, Weight

Layout = TypeVar("Layout", Packed, GroupedRows)


class Gate(NamedTuple):
    """The gate of an expert: (up + shift) * g * sigmoid(alpha * (g + cubic * g^3)), with g = min(gate, limit), and up
    clamped to -limit .. limit.

    The default is SwiGLU. gpt-oss has alpha 1.702, limit 7 and shift 1; with a cubic part it is GELU (tanh)."""

    alpha: float = 1.0
    cubic: float = 0.0
    limit: float = math.inf
    shift: float = 0.0


class Experts(NamedTuple):
    """Weights of all experts. A Tensor is [n_experts, n_out, n_in]. Other layouts join the experts along n_out."""

    gate_up: AnyWeight  # n_out: 2 * width, first the gates
    down: AnyWeight  # n_in: width
    gate_up_bias: Tensor | None  # [n_experts, 2 * width]
    down_bias: Tensor | None  # [n_experts, hidden]
    gate: Gate
    n_experts: int


def joined(weights: Sequence[Layout]) -> Layout:
    """Joins packed weights into one: concatenates their tensors, and takes all other fields from the first."""
    first = weights[0]
    names = [name for name, part in first._asdict().items() if isinstance(part, Tensor)]
    tensors: Any = {name: torch.cat([getattr(weight, name) for weight in weights]) for name in names}
    return first._replace(**tensors)


class Call(ctypes.Structure):
    """The ctypes form of struct `Experts` in native/experts.h: the arguments of one call."""

    _fields_ = (
        ("gate_up", Weight), ("down", Weight),
        *((name, ctypes.c_float) for name in ("alpha", "cubic", "limit", "shift")),
        *((name, ctypes.c_int64) for name in ("n_experts", "n", "n_each")),
        *((name, ctypes.c_void_p) for name in ("index", "weights", "x", "rows", "inner", "out")),
        ("product_work", ctypes.c_int64),
    )  # fmt: skip


def call(
    library: ctypes.CDLL,
    x: Tensor,
    all_experts: Experts,
    index: Tensor,
    weights: Tensor,
    product_work: int,
    n_threads: int,
) -> Tensor:
    """Sends each row of x through its experts, as `reference.experts` does, with the C++ library. The weights must be
    packed for rows in the dtype of x. product_work: products with fewer multiply-adds use one thread."""
    gate_up, down = all_experts.gate_up, all_experts.down
    assert isinstance(gate_up, Packed)
    assert isinstance(down, Packed)
    assert x.dtype == gate_up.dtype, f"{x.dtype} times weights for {gate_up.dtype}"
    assert (gate_up.n_in, gate_up.n_out, down.n_out) == (x.shape[1], 2 * down.n_in, x.shape[1])
    assert index.dtype == torch.int64, index.dtype
    assert weights.shape == index.shape == (len(x), index.shape[1])
    x, index, weights = x.contiguous(), index.contiguous(), weights.float().contiguous()
    rows, inner = (x.new_empty(index.numel(), n_out) for n_out in (down.n_out, gate_up.n_out))
    out = torch.empty_like(x)
    arguments = Call(
        Weight.of(gate_up, all_experts.gate_up_bias), Weight.of(down, all_experts.down_bias), *all_experts.gate,
        all_experts.n_experts, *index.shape, *map(address, (index, weights, x, rows, inner, out)), product_work,
    )  # fmt: skip
    library.banyan_experts(x.dtype == torch.bfloat16, ctypes.addressof(arguments), n_threads)
    return out
