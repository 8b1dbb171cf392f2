"""How a weight lies in memory for native/linear.h."""

from typing import NamedTuple

import torch
from torch import Tensor


class Packed(NamedTuple):
    """A weight in panels: float32 [panels, n_in, width], bfloat16 [panels, n_in / 2, width, 2]."""

    panels: Tensor
    n_out: int
    n_in: int


def panels(weight: Tensor, width: int) -> Tensor:
    """`weight` [n_out, n_in] in panels of `width` columns of the result, the last one padded with 0."""
    n_out, n_in = weight.shape
    n_panels = -(-n_out // width)
    tall = weight.new_zeros((n_panels * width, n_in))
    tall[:n_out] = weight
    pairs = 2 if weight.dtype == torch.bfloat16 else 1  # of k that lie side by side
    laid = tall.view(n_panels, width, n_in // pairs, pairs).transpose(1, 2).contiguous()
    return laid if pairs == 2 else laid.squeeze(3)
