"""The gate of a gated feed-forward layer (SwiGLU, Shazeer, 2020)."""

import torch
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, [n_rows, dim], for gate_up [n_rows, 2 * dim]: gate, then up. Computed in float32."""
    real = torch.promote_types(gate_up.dtype, torch.float32)
    gate, up = gate_up.to(real).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
