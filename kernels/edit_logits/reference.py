"""Penalties and biases: edits single cells of a step's logits."""

import torch
from torch import Tensor


def edit_logits(logits: Tensor, rows: Tensor, tokens: Tensor, factors: Tensor, shifts: Tensor) -> None:
    """Edits the cells (rows[i], tokens[i]) in place. A cell is divided by factors[i] if it is positive, else multiplied
    by it (repetition penalty; Keskar et al., CTRL, 2019); then shifts[i] is added. A shift of -inf forbids the token.

    logits [n_rows, n_vocab]; rows, tokens int64 [n], all cells distinct; factors, shifts float32 [n].
    """
    old = logits[rows, tokens]
    logits[rows, tokens] = torch.where(old > 0, old / factors, old * factors) + shifts
