"""Quantised weights with a scale per group of inputs. Checkpoints are read into this form, and then packed for a
kernel."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FLOAT4 = 5  # as in native/grouped.h
"""The value of `n_bits` for 4-bit floats (E2M1). `numbers` holds each float times 2, which is an integer."""
FLOAT8 = 6
"""The value of `n_bits` for 8-bit floats (E4M3)."""


class Grouped(NamedTuple):
    """weight[o, i] = scale[o, i // group] * numbers[o, i] + minimum[o, i // group], with group = n_in / n_groups."""

    numbers: Tensor  # int8 [n_out, n_in]: -8 to 7, or with a minimum 0 to 15, in 4 bits; -128 to 127 in 8; or E4M3
    scale: Tensor  # float32 [n_out, n_groups]
    minimum: Tensor | None = None  # float32 [n_out, n_groups]
    n_bits: int = 4  # 4, 8, FLOAT4 or FLOAT8
    is_w8a8: bool = False  # the checkpoint expects inputs in 8 bits of the same type; a CPU rounds them to int8 anyway

    def dequantise(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns the weight [n_out, n_in] in `dtype`, computed in float32."""
        groups = self.numbers.reshape(*self.scale.shape, -1).float() * self.scale[:, :, None]
        if self.minimum is not None:
            groups += self.minimum[:, :, None]
        return groups.flatten(1).to(dtype)

    def to(self, device: torch.device) -> "Grouped":
        minimum = None if self.minimum is None else self.minimum.to(device)
        return self._replace(numbers=self.numbers.to(device), scale=self.scale.to(device), minimum=minimum)


def quantise(weight: Tensor, n_bits: int, group: int = 32) -> Grouped:
    """Rounds `weight` [n_out, n_in] to numbers of 4 or 8 bits, or with n_bits FLOAT8 to E4M3. Each group of `group`
    inputs of an output has its own scale; if n_in is no multiple of `group`, all inputs are one group. The weight of a
    group that is farthest from 0 becomes -8 in 4 bits, 127 or -127 in 8 bits, and 448 or -448 in E4M3."""
    n_out, n_in = weight.shape
    groups = weight.float().view(n_out, -1, n_in if n_in % group else group)
    at = groups.abs().argmax(2, keepdim=True)
    largest = groups.gather(2, at).squeeze(2)
    scale = largest / -8 if n_bits == 4 else largest.abs() / (448 if n_bits == FLOAT8 else 127)
    scale = scale.where(scale != 0, 1.0)
    numbers = (groups / scale[..., None]).flatten(1)
    if n_bits == FLOAT8:
        return Grouped(numbers.to(torch.float8_e4m3fn), scale, None, FLOAT8)
    low, high = (-127, 127) if n_bits == 8 else (-8, 7)
    return Grouped(numbers.round().clamp(low, high).to(torch.int8), scale, None, n_bits)


def concatenate(parts: Sequence[Tensor | Grouped], dtype: torch.dtype) -> Tensor | Grouped:
    """Returns one weight with the outputs of all given weights. Quantised weights may differ in format: the result has
    the smallest of their groups, 8 bits if their formats differ, and minimums if any has minimums. If any weight is a
    Tensor, or some are in E4M3 and others not, the result is a Tensor in `dtype`."""
    small = [part for part in parts if isinstance(part, Grouped)]
    if len(small) < len(parts) or len({part.n_bits == FLOAT8 for part in small}) > 1:
        return torch.cat([part.dequantise(dtype) if isinstance(part, Grouped) else part.to(dtype) for part in parts])
    if len(small) == 1:
        return small[0]
    n_bits = small[0].n_bits if len({part.n_bits for part in small}) == 1 else 8
    n_groups = max(part.scale.shape[1] for part in small)
    has_minimum = any(part.minimum is not None for part in small)
    numbers, scales, minimums = [], [], []
    for part in small:
        times = n_groups // part.scale.shape[1]
        scale = part.scale.repeat_interleave(times, 1)
        minimum = torch.zeros_like(scale) if part.minimum is None else part.minimum.repeat_interleave(times, 1)
        if has_minimum and n_bits == 4 and part.minimum is None:  # -8 to 7 becomes 0 to 15
            part, minimum = part._replace(numbers=part.numbers + 8), -8 * scale
        numbers.append(part.numbers)
        scales.append(scale)
        minimums.append(minimum)
    return Grouped(
        torch.cat(numbers), torch.cat(scales), torch.cat(minimums) if has_minimum else None, n_bits,
        all(part.is_w8a8 for part in small),
    )  # fmt: skip
