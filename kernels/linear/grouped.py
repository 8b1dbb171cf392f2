"""A weight in few bits, with a scale per group of inputs. Checkpoints are read into it, kernels lay it out."""

from typing import NamedTuple

import torch
from torch import Tensor


class Grouped(NamedTuple):
    """weight[o, i] = scale[o, i // group] * numbers[o, i] + minimum[o, i // group], with group = n_in / n_groups."""

    numbers: Tensor  # int8 [n_out, n_in]: -8 to 7, or with a minimum 0 to 15, in 4 bits; -128 to 127 in 8
    scale: Tensor  # float32 [n_out, n_groups]
    minimum: Tensor | None = None  # float32 [n_out, n_groups]
    n_bits: int = 4

    def dequantise(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [n_out, n_in], computed in float32."""
        groups = self.numbers.view(*self.scale.shape, -1).float() * self.scale[:, :, None]
        if self.minimum is not None:
            groups += self.minimum[:, :, None]
        return groups.flatten(1).to(dtype)
