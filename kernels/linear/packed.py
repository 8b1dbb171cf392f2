"""How a weight lies in memory for native/linear.h."""

from typing import NamedTuple

import torch
from torch import Tensor


class Packed(NamedTuple):
    """A weight in panels, for rows of float32 [panels, n_in, width] or of bfloat16 [panels, n_in / 2, width, 2]."""

    panels: Tensor  # of the rows' type, or int8 with a scale
    n_out: int
    n_in: int
    dtype: torch.dtype  # of the rows it multiplies
    scale: Tensor | None = None  # float32 [panels * width]: what a column's sum in int8 is multiplied with


def pack(weight: Tensor, width: int) -> Packed:
    """`weight` [n_out, n_in] in panels of `width` columns of the result."""
    return Packed(_panels(weight, width, weight.dtype), *weight.shape, weight.dtype)


def pack_int8(weight: Tensor, width: int) -> Packed:
    """The same of `quantize(weight)`, for rows of the weight's type."""
    numbers, scale = quantize(weight)
    padded = scale.new_ones(-(-len(scale) // width) * width)
    padded[: len(scale)] = scale
    return Packed(_panels(numbers, width, weight.dtype), *weight.shape, weight.dtype, padded)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [n_out, n_in] and float32 [n_out], whose product is near `weight`: the largest number of a row is 127."""
    scale = weight.abs().amax(1).float() / 127.0
    scale[scale == 0] = 1.0
    return (weight.float() / scale[:, None]).round().to(torch.int8), scale


def _panels(numbers: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """dtype: of the rows, which says how many k lie side by side. The last panel is padded with 0."""
    n_out, n_in = numbers.shape
    n_panels = -(-n_out // width)
    tall = numbers.new_zeros((n_panels * width, n_in))
    tall[:n_out] = numbers
    pairs = 2 if dtype == torch.bfloat16 else 1
    laid = tall.view(n_panels, width, n_in // pairs, pairs).transpose(1, 2).contiguous()
    return laid if pairs == 2 else laid.squeeze(3)
