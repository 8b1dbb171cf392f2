"""Rotary position embedding (Su et al., 2021), half-split layout: dimension i turns with dimension i + n / 2."""

import torch
from torch import Tensor


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Turn q [n_rows, n_heads, head_dim] and k [n_rows, n_kv_heads, head_dim]; returns new tensors in their dtypes.

    cos, sin     [n_rows, n_rotary / 2]: one row per token; or, with `positions` (int [n_rows]), tables to read the
                 rows from, [n_positions, n_rotary / 2]. n_rotary <= head_dim; dimensions past it stay as they are.
    """
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    return _turn(q, cos.unsqueeze(1), sin.unsqueeze(1)), _turn(k, cos.unsqueeze(1), sin.unsqueeze(1))


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    real = torch.promote_types(x.dtype, torch.float32)
    a, b = x[..., :half].to(real), x[..., half : 2 * half].to(real)
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
    return torch.cat([turned, x[..., 2 * half :]], dim=-1)
