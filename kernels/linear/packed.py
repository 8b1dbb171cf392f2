"""The memory layout of weights for native/linear.h."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Packed(NamedTuple):
    """A weight in panels: [panels, n_in, width] for float32 rows, [panels, n_in / 2, width, 2] for bfloat16 rows."""

    panels: Tensor  # in the rows' dtype, or int8 with a scale
    n_out: int
    n_in: int
    dtype: torch.dtype  # of the rows it multiplies
    scale: Tensor | None = None  # float32 [panels * width]: the scale of each output column of an int8 weight


def pack(weight: Tensor, width: int, is_int8: bool = False) -> Packed:
    """Packs `weight` [n_out, n_in] in panels of `width` output columns, for rows in the weight's dtype. is_int8:
    quantises the weight first."""
    n_out, n_in = weight.shape
    numbers, scale = quantize(weight) if is_int8 else (weight, None)
    if scale is not None:
        scale = F.pad(scale, (0, -n_out % width), value=1.0)
    return Packed(_panels(numbers, width, weight.dtype), n_out, n_in, weight.dtype, scale)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises each output row: int8 [n_out, n_in] and scales, float32 [n_out]. A row's largest number becomes 127."""
    scale = weight.abs().amax(1).float() / 127.0
    scale[scale == 0] = 1.0
    return (weight.float() / scale[:, None]).round().to(torch.int8), scale


def _panels(numbers: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Lays out panels. dtype: of the rows; with bfloat16, pairs of k are adjacent. The last panel is padded with 0."""
    n_out, n_in = numbers.shape
    tall = F.pad(numbers, (0, 0, 0, -n_out % width))
    pairs = 2 if dtype == torch.bfloat16 else 1
    panels = tall.view(-1, width, n_in // pairs, pairs).transpose(1, 2).contiguous()
    return panels if pairs == 2 else panels.squeeze(3)
