"""Runs the experts of transformers' models with `ops.experts`.

transformers 5 keeps the weights of a layer's experts in stacks (gate_up_proj and down_proj [n_experts, ...]), and
fields of the module say how they are laid out. Between its two matrix products, the module calls its method
`_apply_gate`. To find out which gate this is, the method's results on a grid of numbers are compared with those of
`Gate`; so no list of families is needed. Experts with another function, or with a norm after them, stay in
transformers' code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from banyan.kernels import ops
from banyan.kernels.linear.grouped import Grouped, quantise
from banyan.kernels.moe.cpu import pack
from banyan.kernels.moe.experts import Experts, Gate
from banyan.kernels.moe.reference import gated

_LIMITS, _ALPHAS = ("limit", "swiglu_limit"), ("alpha", "swiglu_alpha")  # fields of experts
_GELU = 2 * math.sqrt(2 / math.pi), 0.044715  # alpha and cubic part of GELU, in its form with tanh
_STACKS = ("gate_up_proj", "down_proj")
_FIELDS = {*_STACKS, "is_transposed", "is_concatenated", "has_gate", "has_bias"}


@torch.no_grad()
def gate_of(module: Any) -> Gate | None:
    """Returns the gate (activation function) of a module of experts; None if `ops.experts` cannot compute the
    module."""
    if not all(hasattr(module, name) for name in _FIELDS) or not module.has_gate:
        return None
    if getattr(module, "has_post_expert_norm", False):
        return None
    beyond = [2.0 * limit for limit in _numbers(module, _LIMITS) if math.isfinite(limit)]  # where clamps act
    ends = torch.tensor([*beyond, *(-end for end in beyond)])
    axes = (torch.cat([torch.linspace(-end, end, 2 * end + 1), ends]) for end in (20, 10))
    gates, ups = torch.meshgrid(*axes, indexing="ij")
    grid = torch.cat([gates, ups], 1)
    stored = grid if module.is_concatenated else torch.stack([gates, ups], 2).flatten(1)
    want = module._apply_gate(stored)
    found = (gate for gate in _candidates(module) if torch.allclose(gated(grid, gate), want, atol=1e-4, rtol=1e-4))
    return next(found, None)


def _candidates(module: Any) -> Iterator[Gate]:
    curves = [_GELU, *((alpha, 0.0) for alpha in (1.0, *_numbers(module, _ALPHAS)))]
    for limit, shift in itertools.product([math.inf, *_numbers(module, _LIMITS)], (0.0, 1.0)):
        yield from (Gate(*curve, limit, shift) for curve in curves)


def _numbers(module: Any, names: Iterable[str]) -> list[float]:
    """The values of the fields in `names`, without those that the module lacks or has as None."""
    return [value for name in names if (value := getattr(module, name, None)) is not None]


def _matrices(module: Any, name: str) -> Iterator[Tensor]:
    """Yields the weight [n_out, n_in] of each expert, as a view. name: the stack, gate_up_proj or down_proj."""
    stack = getattr(module, name).data
    return iter(stack.transpose(1, 2) if module.is_transposed else stack)


def gates(model: nn.Module) -> dict[nn.Module, Gate]:
    """Returns module of experts -> its gate, for all modules of experts that `ops.experts` can compute."""
    return {module: gate for module in model.modules() if (gate := gate_of(module)) is not None}


def round_experts(known: Iterable[nn.Module], n_bits: int) -> None:
    """Rounds the weights of the modules `known` in place, to the values that they will have when they are quantised to
    n_bits. A second call changes nothing."""
    for module, name in itertools.product(known, _STACKS):
        for weight in _matrices(module, name):
            weight.copy_(quantise(weight, n_bits).dequantise(weight.dtype))


def pack_experts(model: nn.Module, known: dict[nn.Module, Gate], small: Callable[[Tensor], Tensor | Grouped]) -> None:
    """Replaces the modules of experts in `known` by `PackedExperts`. known: the result of `gates`. small: converts the
    weight [n_out, n_in] of one expert to the form in which it is kept, such as Grouped."""
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if child in known:
                setattr(parent, name, PackedExperts(child, known[child], small))


class PackedExperts(nn.Module):
    """Computes `ops.experts` in place of a module of transformers, whose weights are removed to free memory."""

    def __init__(self, module: Any, gate: Gate, small: Callable[[Tensor], Tensor | Grouped]) -> None:
        super().__init__()
        self.dtype, n_experts = module.down_proj.dtype, len(module.down_proj)
        up_bias, down_bias = (module.gate_up_proj_bias, module.down_proj_bias) if module.has_bias else (None, None)

        def gates_first(x: Tensor) -> Tensor:
            return x if module.is_concatenated else torch.cat([x[0::2], x[1::2]])

        def packed(name: str, order: Callable[[Tensor], Tensor]) -> ops.AnyWeight:
            weights = [small(order(weight)) for weight in _matrices(module, name)]
            setattr(module, name, None)
            return pack(weights, self.dtype)

        gate_up, down = packed("gate_up_proj", gates_first), packed("down_proj", lambda weight: weight)
        if up_bias is not None:
            up_bias = torch.stack([gates_first(bias) for bias in up_bias.data])
        self.packed = Experts(gate_up, down, up_bias, down_bias, gate, n_experts)

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        return ops.experts(rows.to(self.dtype), self.packed, index, weights).view(x.shape)
