"""Penalties and biases on a CPU: numpy, which takes a fifth of torch's time to reach few cells."""

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.edit_logits import reference


def edit_logits(logits: Tensor, rows: Tensor, tokens: Tensor, factors: Tensor, shifts: Tensor) -> None:
    """See `reference.edit_logits`."""
    if logits.dtype != torch.float32:
        return reference.edit_logits(logits, rows, tokens, factors, shifts)
    table, by, at = logits.numpy(), factors.numpy(), (rows.numpy(), tokens.numpy())
    was = table[at]
    table[at] = np.where(was > 0, was / by, was * by) + shifts.numpy()
    return None
