"""A mixture-of-experts layer in plain PyTorch."""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels.moe.experts import Experts, Gate


def gated(gate_up: Tensor, gate: Gate) -> Tensor:
    """Applies the gate: [..., 2 * width] -> [..., width]; see `Gate`."""
    g, up = gate_up.chunk(2, -1)
    g, up = g.clamp(max=gate.limit), up.clamp(-gate.limit, gate.limit)
    return (up + gate.shift) * g * torch.sigmoid(gate.alpha * (g + gate.cubic * g**3))


def experts(x: Tensor, all_experts: Experts, index: Tensor, weights: Tensor) -> Tensor:
    """Sends each row of x [n, hidden] through its experts, and returns the sums of their weighted outputs [n, hidden].

    index    int64 [n, n_each]: the experts of each row; a number outside of 0 to n_experts - 1 stands for none
    weights  float32 [n, n_each]
    """
    gate_up, down, biases = all_experts.gate_up, all_experts.down, (all_experts.gate_up_bias, all_experts.down_bias)
    assert isinstance(gate_up, Tensor), "the reference computes on plain weights"
    assert isinstance(down, Tensor)
    n, n_each = index.shape
    order = index.flatten().argsort(stable=True)
    numbers = torch.arange(all_experts.n_experts + 1, device=x.device)
    starts = torch.searchsorted(index.flatten()[order], numbers).tolist()
    out = x.new_zeros(n * n_each, x.shape[1])
    for i, (start, end) in enumerate(pairwise(starts)):
        if start < end:
            own = order[start:end]
            up_bias, down_bias = (None if bias is None else bias[i] for bias in biases)
            inner = gated(F.linear(x[own // n_each], gate_up[i], up_bias), all_experts.gate)
            out[own] = F.linear(inner, down[i], down_bias)
    return (out.view(n, n_each, x.shape[1]) * weights[..., None]).sum(1).to(x.dtype)
