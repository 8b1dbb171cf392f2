"""Penalties and biases on a CPU, by numpy: for few cells, it takes a fifth of torch's time."""

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.edit_logits import reference


def edit_logits(logits: Tensor, rows: Tensor, tokens: Tensor, factors: Tensor, shifts: Tensor) -> None:
    """See `reference.edit_logits`."""
    if logits.dtype != torch.float32:
        return reference.edit_logits(logits, rows, tokens, factors, shifts)
    table, factor, cells = logits.numpy(), factors.numpy(), (rows.numpy(), tokens.numpy())
    old = table[cells]
    table[cells] = np.where(old > 0, old / factor, old * factor) + shifts.numpy()
    return None
