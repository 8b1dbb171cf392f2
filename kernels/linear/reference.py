"""A linear layer in plain PyTorch."""

from torch import Tensor
from torch.nn import functional as F


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns x [n_rows, n_in] times the transposed weight [n_out, n_in], plus bias [n_out]: [n_rows, n_out]. Sums are
    in float32 or wider."""
    return F.linear(x, weight, bias)
