"""Masks the forbidden tokens of constrained rows in a step's logits."""

import torch
from torch import Tensor


def mask_logits(logits: Tensor, masks: Tensor, which: Tensor) -> None:
    """Sets logits to -inf where the row's mask has a zero bit, in place.

    logits [n_rows, n_vocab]; masks int32 [n_masks, n_words], bit t & 31 of word t >> 5 allows token t, and
    32 * n_words >= n_vocab; which int32 [n_rows]: the mask of each row, -1 for none.
    """
    rows = (which >= 0).nonzero().squeeze(1)
    bits = masks[which[rows].long()].unsqueeze(2) >> torch.arange(32, dtype=torch.int32, device=masks.device)
    allowed = (bits & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits[rows] = logits[rows].masked_fill_(~allowed, -torch.inf)
