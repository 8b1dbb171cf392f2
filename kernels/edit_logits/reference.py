"""Penalties and biases: some cells of a step's logits, divided and shifted."""

import torch
from torch import Tensor


def edit_logits(logits: Tensor, rows: Tensor, tokens: Tensor, factors: Tensor, shifts: Tensor) -> None:
    """In place, for each i: cell (rows[i], tokens[i]) is divided by factors[i] where it is above 0 and multiplied by
    it where it is not (repetition penalty; Keskar et al., CTRL, 2019); then shifts[i] is added.

    logits [n_rows, n_vocab]; rows, tokens int64 [n], cells that differ; factors, shifts float32 [n]; a shift of -inf
    forbids a token.
    """
    was = logits[rows, tokens]
    logits[rows, tokens] = torch.where(was > 0, was / factors, was * factors) + shifts
