"""A linear layer. On a CPU its weight is packed when it is loaded, for the native library or for oneDNN.

torch computes float32 on a CPU with MKL, which is slow on AMD. oneDNN with packed weights is 2 to 4.5 times faster at 1
to 256 rows (8192 x 2048, 2 cores of AMD EPYC Zen 5, torch 2.13) at the same accuracy. The two ops for it are private to
torch, so they are tested once; if they fail, F.linear is used. The native library (`kernels/linear/cpu.py`) is as fast
as oneDNN on many rows and faster on few.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels import ops
from banyan.kernels.linear.grouped import Grouped
from banyan.runtime.errors import ConfigError

TILE = 64
"""The number of rows of every matrix product in deterministic mode, because a library's choice of kernel depends on the
number of rows. A decode batch usually fits into one tile."""


class Linear:
    """Computes y = x W^T + b, for x [n_rows, n_in] and W [n_out, n_in]. Keeps one copy of W, packed or not."""

    __slots__ = ("bias", "is_onednn", "is_tiled", "weight")

    def __init__(self, weight: Tensor | Grouped, bias: Tensor | None = None, deterministic: bool = False,
                 dtype: torch.dtype = torch.float32) -> None:  # fmt: skip
        """deterministic: the bits of a row of y do not depend on the other rows. dtype: the dtype of x, if the weight
        is quantised. The weight is dequantised if no kernel multiplies it by x of this dtype. ConfigError:
        deterministic mode is not possible on this machine."""
        packed = ops.pack(weight, deterministic, dtype)
        if isinstance(weight, Grouped):
            weight = weight.dequantise(dtype) if packed is None else weight.numbers
        self.is_tiled = deterministic and not isinstance(packed, ops.Packed)
        if self.is_tiled and packed is None and weight.device.type == "cpu":
            n_in, name = weight.shape[1], str(weight.dtype).removeprefix("torch.")
            raise ConfigError(f"deterministic in {name} has no kernel for {n_in} inputs; use dtype='float32'")
        self.is_onednn = packed is None and weight.device.type == "cpu" and _can_pack(weight.dtype)
        if self.is_onednn:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.weight: ops.AnyWeight = weight if packed is None else packed
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_onednn:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return y
        return tiled(x, self.weight, self.bias) if self.is_tiled else ops.linear(x, self.weight, self.bias)


def tiled(x: Tensor, weight: ops.AnyWeight, bias: Tensor | None) -> Tensor:
    """Computes `ops.linear` on tiles of TILE rows; the last tile is padded. Libraries choose a kernel, and with it the
    order of sums, by the shape of the product. All tiles have one shape, so the bits of a row do not depend on the
    number of rows."""
    tiles = torch.split(F.pad(x, (0, 0, 0, -len(x) % TILE)), TILE)
    if len(tiles) == 1:
        return ops.linear(tiles[0], weight, bias)[: len(x)]
    return torch.cat([ops.linear(tile, weight, bias) for tile in tiles])[: len(x)]


@cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN's packed linear op works on this machine and agrees with F.linear. float16 is not packed, because
    oneDNN is slow in float16."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    grid = torch.linspace(-1, 1, 24 * 40).sin()
    weight, x, bias = grid.view(24, 40).to(dtype), grid[:120].view(3, 40).to(dtype), grid[:24].to(dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        got = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    except (RuntimeError, AttributeError):
        return False
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    return torch.allclose(got, F.linear(x, weight, bias), atol=tolerance, rtol=tolerance)
