"""A linear layer."""

from torch import Tensor
from torch.nn import functional as F


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [n_rows, n_in] times the transposed weight [n_out, n_in], plus bias [n_out]; sums in float32 or wider."""
    return F.linear(x, weight, bias)
