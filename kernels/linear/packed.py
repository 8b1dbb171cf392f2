"""The memory layout of weights for native/linear.h."""

from typing import NamedTuple

import torch
from torch import Tensor


class Packed(NamedTuple):
    """A weight in panels: [panels, n_in, width] for float32 rows, [panels, n_in / 2, width, 2] for bfloat16 rows."""

    panels: Tensor  # in the rows' dtype, or int8 with a scale
    n_out: int
    n_in: int
    dtype: torch.dtype  # of the rows it multiplies
    scale: Tensor | None = None  # float32 [panels * width]: the scale of each output column of an int8 weight


def pack(weight: Tensor, width: int) -> Packed:
    """Packs `weight` [n_out, n_in] in panels of `width` output columns."""
    n_out, n_in = weight.shape
    return Packed(_panels(weight, width, weight.dtype), n_out, n_in, weight.dtype)


def pack_int8(weight: Tensor, width: int) -> Packed:
    """Packs `quantize(weight)`, for rows in the weight's dtype."""
    numbers, scale = quantize(weight)
    padded = scale.new_ones(-(-len(scale) // width) * width)
    padded[: len(scale)] = scale
    n_out, n_in = weight.shape
    return Packed(_panels(numbers, width, weight.dtype), n_out, n_in, weight.dtype, padded)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises each output row: int8 [n_out, n_in] and scales, float32 [n_out]. A row's largest number becomes 127."""
    scale = weight.abs().amax(1).float() / 127.0
    scale[scale == 0] = 1.0
    return (weight.float() / scale[:, None]).round().to(torch.int8), scale


def _panels(numbers: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Lays out panels. dtype: of the rows; with bfloat16, pairs of k are adjacent. The last panel is padded with 0."""
    n_out, n_in = numbers.shape
    n_panels = -(-n_out // width)
    tall = numbers.new_zeros((n_panels * width, n_in))
    tall[:n_out] = numbers
    pairs = 2 if dtype == torch.bfloat16 else 1
    panels = tall.view(n_panels, width, n_in // pairs, pairs).transpose(1, 2).contiguous()
    return panels if pairs == 2 else panels.squeeze(3)
