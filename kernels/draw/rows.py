"""The sampling parameters of each row, as tensors that reach the device in one copy."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device

MAX_TEMPERATURE = 1e30
"""Higher temperatures are set to this, which does not change a draw. A temperature that is infinite in float32 would
turn the logit -inf of a forbidden token into -inf / inf, which is NaN."""


class Rows(NamedTuple):
    """The sampling parameters: one number per row in each tensor, [n_rows]."""

    temperature: Tensor  # float64; 0: the argmax
    top_k: Tensor  # int64: number of best tokens to keep; 0: all
    top_p: Tensor  # float64: keep the best tokens that have this share of the probability left by top_k; 1: all
    min_p: Tensor  # float64: keep tokens with at least this share of the best one's probability; 0: all
    seed: Tensor  # int64
    sample: Tensor  # int64
    position: Tensor  # int64: position of the drawn token in its text


def draw_rows(
    temperature: Sequence[float],
    top_k: Sequence[int],
    top_p: Sequence[float],
    min_p: Sequence[float],
    seed: Sequence[int],
    sample: Sequence[int],
    position: Sequence[int],
    device: torch.device | str = "cpu",
) -> Rows:
    """Builds Rows from lists. Integers are taken modulo 2^64."""
    table = np.empty((7, len(temperature)), np.int64)
    for i, floats in ((0, np.minimum(temperature, MAX_TEMPERATURE)), (2, top_p), (3, min_p)):
        table[i].view(np.float64)[:] = floats
    for i, ints in ((1, top_k), (4, seed), (5, sample), (6, position)):
        table[i] = _wrapped(ints)
    t = to_device(table, device)
    real = torch.float64
    return Rows(t[0].view(real), t[1], t[2].view(real), t[3].view(real), t[4], t[5], t[6])


def _wrapped(numbers: Sequence[int]) -> np.ndarray:
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return np.array([n & ((1 << 64) - 1) for n in numbers], np.uint64).view(np.int64)
