"""The experts of a mixture-of-experts layer: their weights, packed for the device, and the gate between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from banyan.kernels.device import INTERPRETED
from banyan.kernels.linear import packed
from banyan.kernels.linear.grouped import Grouped
from banyan.kernels.linear.packed import AnyWeight, GroupedRows, Packed
from banyan.kernels.native import build


class Gate(NamedTuple):
    """(clamped up + shift) * g * sigmoid(alpha * (g + cubic * g^3)), with g = min(gate, limit), and up within limit.

    The default is SwiGLU. gpt-oss has alpha 1.702, limit 7 and shift 1; with a cubic part it is GELU (tanh)."""

    alpha: float = 1.0
    cubic: float = 0.0
    limit: float = math.inf
    shift: float = 0.0


class Experts(NamedTuple):
    """Weights of all experts. As a Tensor, [n_experts, n_out, n_in]; in other layouts the experts follow each other."""

    gate_up: AnyWeight  # n_out: 2 * width, first the gates
    down: AnyWeight  # n_in: width
    gate_up_bias: Tensor | None  # [n_experts, 2 * width]
    down_bias: Tensor | None  # [n_experts, hidden]
    gate: Gate
    n_experts: int


def pack(weights: Sequence[Tensor | Grouped], dtype: torch.dtype) -> AnyWeight:
    """One weight [n_out, n_in] of each expert, in the layout of the device's kernel, for rows in `dtype`. Weights in few
    bits that have none here are dequantised."""
    first, library = weights[0], build.library()
    if isinstance(first, Grouped):
        small = [weight for weight in weights if isinstance(weight, Grouped)]
        if first.numbers.is_cuda or INTERPRETED:
            rows = [packed.pack_rows(weight) for weight in small]
            return GroupedRows(*(_join(parts) for parts in zip(*(x[:3] for x in rows), strict=True)), *rows[0][3:])
        if library is not None and dtype in build.DTYPES:
            kept = [packed.pack_grouped(weight, dtype, deterministic=False) for weight in small]
            if all(kept):
                return _stacked([x for x in kept if x is not None])
        weights = [weight.dequantise(dtype) for weight in small]
    floats = [weight for weight in weights if isinstance(weight, Tensor)]
    n_in, where = floats[0].shape[1], floats[0].device.type
    if library is None or where != "cpu" or INTERPRETED or dtype not in build.DTYPES or n_in % (4 // dtype.itemsize):
        return torch.stack(floats)
    return _stacked([packed.pack(weight, library.banyan_panel()) for weight in floats])._replace(deterministic=False)


def _stacked(weights: Sequence[Packed]) -> Packed:
    """The panels of all; n_out stays that of one."""
    tensors = {name: _join([getattr(x, name) for x in weights]) for name in ("panels", "scale", "minimum", "factor")}
    return weights[0]._replace(**tensors)


def _join(parts: Sequence[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None
