"""What a draw has to know of each row, as tensors that reach a device in one copy."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device

HOTTEST = 1e30
"""A temperature above this changes nothing more. Infinite in float32, it made -inf / inf of what is forbidden."""


class Rows(NamedTuple):
    """One number per row, [n_rows] each."""

    temperature: Tensor  # float64; 0: the argmax
    top_k: Tensor  # int64: so many of the best tokens, 0: all
    top_p: Tensor  # float64: the best tokens that hold this share of what top_k left, 1: all
    min_p: Tensor  # float64: tokens with at least this share of the best one's probability, 0: all
    seed: Tensor  # int64
    sample: Tensor  # int64
    position: Tensor  # int64: where in its text the token will stand


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
    """Build from lists; integers count modulo 2^64."""
    table = np.empty((7, len(temperature)), np.int64)
    for i, reals in ((0, np.minimum(temperature, HOTTEST)), (2, top_p), (3, min_p)):
        table[i].view(np.float64)[:] = reals
    for i, whole in ((1, top_k), (4, seed), (5, sample), (6, position)):
        table[i] = _wrapped(whole)
    t: Any = to_device(table, device)
    real = torch.float64
    return Rows(t[0].view(real), t[1], t[2].view(real), t[3].view(real), t[4], t[5], t[6])


def _wrapped(numbers: Sequence[int]) -> Any:
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return np.array([n & ((1 << 64) - 1) for n in numbers], np.uint64).view(np.int64)
