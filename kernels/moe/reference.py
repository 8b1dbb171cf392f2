"""A mixture-of-experts layer in plain PyTorch."""

import torch
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels.moe.experts import Experts, Gate


def gated(gate_up: Tensor, gate: Gate) -> Tensor:
    """[..., 2 * width] -> [..., width]; see `Gate`."""
    g, up = gate_up.chunk(2, -1)
    g, up = g.clamp(max=gate.limit), up.clamp(-gate.limit, gate.limit)
    return (up + gate.shift) * g * torch.sigmoid(gate.alpha * (g + gate.cubic * g**3))


def experts(x: Tensor, all_experts: Experts, index: Tensor, weights: Tensor) -> Tensor:
    """Sends each row of x [n, hidden] through its experts, and returns the sums of their weighted outputs [n, hidden].

    index    int64 [n, n_each]: the experts of each row; a number outside of 0 to n_experts - 1 stands for none
    weights  float32 [n, n_each]
    """
    assert isinstance(all_experts.gate_up, Tensor) and isinstance(all_experts.down, Tensor), "the reference computes on plain weights"
    n, n_each = index.shape
    order = index.flatten().argsort(stable=True)
    numbers = torch.arange(all_experts.n_experts + 1, device=x.device)
    starts = torch.searchsorted(index.flatten()[order], numbers).tolist()
    out = x.new_zeros(n * n_each, x.shape[1])
    for i, (start, end) in enumerate(zip(starts, starts[1:], strict=False)):
        if start < end:
            own = order[start:end]
            up_bias, down_bias = (None if bias is None else bias[i] for bias in (all_experts.gate_up_bias, all_experts.down_bias))
            inner = gated(F.linear(x[own // n_each], all_experts.gate_up[i], up_bias), all_experts.gate)
            out[own] = F.linear(inner, all_experts.down[i], down_bias)
    return torch.einsum("nkh,nk->nh", out.view(n, n_each, -1).to(weights.dtype), weights).to(x.dtype)
