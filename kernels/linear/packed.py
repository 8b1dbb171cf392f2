"""The memory layout of weights for native/linear.h and native/grouped.h."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels.kv_layout import address
from banyan.kernels.linear.grouped import FLOAT4, FLOAT8, Grouped

GROUP, COLUMNS = 32, 16  # as in native/grouped.h
HALF = 16
_DOUBLES = 0, 1, 2, 3, 4, 6, 8, 12


class Packed(NamedTuple):
    """A weight in panels of `width` outputs, as the C++ library reads it. Quantised weights have panels of 16 outputs.

    float32    [panels, n_in, width]
    bfloat16   [panels, n_in / 2, width, 2], n_in padded to a multiple of 32
    quantised  bytes [panels, groups of 32 inputs, 512 (8 bits) or 256 (4 bits)]; `scale` and `minimum` are divided by
               the `factor` of their output
    """

    panels: Tensor
    n_out: int
    n_in: int
    dtype: torch.dtype  # dtype of the rows that the weight multiplies
    deterministic: bool = True  # a row of the product has the same bits in any batch
    n_bits: int = 0  # bits of a weight's number; 0: as dtype; or FLOAT4
    scale: Tensor | None = None  # float16 [panels, groups, 16]
    minimum: Tensor | None = None  # likewise
    factor: Tensor | None = None  # float32 [panels * 16]


class GroupedRows(NamedTuple):
    """A quantised weight for linear/kernel.py and w8a8.py. Inputs are padded to a multiple of 32. In 4 bits, a byte
    holds the numbers of two inputs that are HALF (16) apart, the first in the low bits."""

    numbers: Tensor  # 8 bits: int8 [n_out, n_in], or the bits of E4M3 in uint8; 4 bits: uint8 [n_out, n_in / 2]
    scale: Tensor  # float32 [n_out, n_groups]
    minimum: Tensor | None  # likewise
    n_in: int
    n_bits: int
    is_w8a8: bool = False  # see Grouped


AnyWeight = Tensor | Packed | GroupedRows


class Weight(ctypes.Structure):
    """The ctypes form of struct `Weight` in native/grouped.h, a packed weight and its bias."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("panels", "scale", "minimum", "factor", "bias")),
        *((name, ctypes.c_int64) for name in ("n_in", "n_out", "n_bits", "deterministic")),
    )

    @classmethod
    def of(cls, weight: Packed, bias: Tensor | None) -> "Weight":
        """Makes a struct with pointers to the tensors of `weight` and to `bias`. The caller must keep these tensors
        alive."""
        tensors = weight.panels, weight.scale, weight.minimum, weight.factor, bias
        return cls(*map(address, tensors), weight.n_in, weight.n_out, weight.n_bits, weight.deterministic)


def pack(weight: Tensor, width: int) -> Packed:
    """Packs `weight` [n_out, n_in] in panels of `width` output columns, for rows in the weight's dtype. In bfloat16,
    each panel holds pairs of inputs side by side. Panels are padded with 0."""
    n_out, n_in = weight.shape
    pairs = 2 if weight.dtype == torch.bfloat16 else 1
    tall = F.pad(weight, (0, -n_in % GROUP if pairs == 2 else 0, 0, -n_out % width))
    panels = tall.view(-1, width, tall.shape[1] // pairs, pairs).transpose(1, 2).contiguous()
    return Packed(panels if pairs == 2 else panels.squeeze(3), n_out, n_in, weight.dtype)


def pack_grouped(weight: Grouped, dtype: torch.dtype, deterministic: bool) -> Packed | None:
    """Packs a quantised weight that will multiply rows in `dtype`. Returns None if it is in E4M3, or if its groups are
    not multiples of 32 inputs; a weight with a single group may have any number of inputs."""
    numbers, scale, minimum, n_bits, _ = weight
    (n_out, n_in), n_groups = numbers.shape, scale.shape[1]
    if n_bits == FLOAT8 or (n_groups > 1 and n_in // n_groups % GROUP):
        return None
    if n_bits == FLOAT4:
        codes = torch.zeros(256, dtype=torch.int8, device=numbers.device)
        for i, double in enumerate(_DOUBLES):
            codes[-double], codes[double] = i + 8, i
        numbers = codes[numbers.int()]
    zero = 128 if n_bits == 8 else 8 if n_bits == 4 and minimum is None else 0
    tall = F.pad(numbers, (0, -n_in % GROUP, 0, -n_out % COLUMNS))
    quads = (tall.view(-1, COLUMNS, tall.shape[1] // GROUP, 8, 4).to(torch.int16) + zero).to(torch.uint8)
    panels = quads.permute(0, 2, 3, 1, 4).reshape(*quads.shape[::2][:2], 4, 2, 64)  # pairs of quads
    panels = panels if n_bits == 8 else panels[..., 0, :] | panels[..., 1, :] << 4
    largest = scale.abs().amax(1)
    if minimum is not None:
        largest = torch.maximum(largest, minimum.abs().amax(1))
    factor = largest.where(largest > 0, 1.0) / 256  # so that products with numbers of 8 bits just fit into float16

    def part(x: Tensor) -> Tensor:
        """Divides x [n_out, n_groups] by the factor of each output. Returns float16 [panels, groups of 32 inputs,
        16]."""
        each = (x / factor[:, None]).half().repeat_interleave(tall.shape[1] // GROUP // n_groups, 1)
        return F.pad(each, (0, 0, 0, -n_out % COLUMNS)).view(-1, COLUMNS, each.shape[1]).transpose(1, 2).contiguous()

    return Packed(
        panels.flatten(2).contiguous(), n_out, n_in, dtype, deterministic, n_bits, part(scale),
        None if minimum is None else part(minimum), F.pad(factor, (0, -n_out % COLUMNS)),
    )  # fmt: skip


def pack_rows(weight: Grouped) -> GroupedRows:
    """Lays out a quantised weight for linear/kernel.py, on the weight's device. Two 4-bit integers share a byte; any
    other number has its own byte."""
    numbers, scale, minimum, n_bits, is_w8a8 = weight
    n_out, n_in = numbers.shape
    padded = F.pad(numbers.view(torch.uint8) if n_bits == FLOAT8 else numbers, (0, -n_in % (2 * HALF)))
    if n_bits == 4:
        zero = 8 if minimum is None else 0
        low, high = (padded.view(n_out, -1, 2, HALF) + zero).to(torch.uint8).unbind(2)
        padded = (low | high << 4).flatten(1)
    minimum = None if minimum is None else minimum.contiguous()
    return GroupedRows(padded.contiguous(), scale.contiguous(), minimum, n_in, 4 if n_bits == 4 else 8, is_w8a8)
