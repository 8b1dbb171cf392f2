"""The experts of a mixture-of-experts layer: their weights, packed for the device, and the gate between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from banyan.kernels.device import INTERPRETED
from banyan.kernels.linear import packed
from banyan.kernels.linear.grouped import Grouped
from banyan.kernels.linear.packed import AnyWeight, GroupedRows, Packed
from banyan.kernels.native import build

Layout = TypeVar("Layout", Packed, GroupedRows)


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
    """One weight [n_out, n_in] of each expert, in the layout of the device's kernel, for rows in `dtype`. Weights in
    few bits for which there is no kernel are dequantised."""
    library = build.library() if dtype in build.DTYPES and not INTERPRETED else None
    small = [weight for weight in weights if isinstance(weight, Grouped)]
    if len(small) == len(weights):
        if small[0].numbers.is_cuda or INTERPRETED:
            return _joined([packed.pack_rows(weight) for weight in small])
        kept = [packed.pack_grouped(weight, dtype, deterministic=False) for weight in small if library is not None]
        if kept and all(kept):
            return _joined(kept)
    floats = [weight.dequantise(dtype) if isinstance(weight, Grouped) else weight for weight in weights]
    if library is None or floats[0].device.type != "cpu" or floats[0].shape[1] * dtype.itemsize % 4:
        return torch.stack(floats)
    return _joined([packed.pack(weight, library.banyan_panel())._replace(deterministic=False) for weight in floats])


def _joined(weights: Sequence[Layout]) -> Layout:
    """The first weight, with the tensors of all weights in place of its own."""
    first = weights[0]
    names = [name for name, part in first._asdict().items() if isinstance(part, Tensor)]
    tensors: Any = {name: torch.cat([getattr(weight, name) for weight in weights]) for name in names}
    return first._replace(**tensors)
