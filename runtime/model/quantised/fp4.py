"""Reads 4-bit floats (E2M1): MXFP4, in groups of 32 whose scale is a power of 2, and NVFP4, in groups of 16 whose scale
is an 8-bit float times one scale for the tensor. Numbers are kept in int8 as twice their value: the doubles are
integers from -12 to 12."""

from __future__ import annotations

import torch
from torch import Tensor

from banyan.kernels.linear.grouped import FLOAT4, Grouped
from banyan.runtime.model.quantised.config import Scheme
from banyan.runtime.model.quantised.layer import StoredLayer, unpack

_DOUBLES = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=torch.int8)


def read(layer: StoredLayer, scheme: Scheme) -> Grouped:
    n_out, n_bytes = layer.shape("weight_packed")
    group = 32 if scheme.format == "mxfp4" else 16
    if 2 * n_bytes % group:
        raise layer.broken(f"its {2 * n_bytes} inputs are not a multiple of {group}, the size of a group")
    numbers = _DOUBLES[unpack(layer.take("weight_packed", n_out, n_bytes, dtype="U8"), 4).int()]
    shape = n_out, 2 * n_bytes // group
    if scheme.format == "mxfp4":
        scale = _power(layer.take("weight_scale", *shape, dtype="U8"))
    else:
        scale = layer.take("weight_scale", *shape, dtype="F8_E4M3").float()
        scale = scale / layer.per_output("weight_global_scale", n_out).float()
    return Grouped(numbers, scale / 2, None, 8)


def read_experts(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantises gpt-oss's experts to `dtype`. blocks: uint8 [n, n_out, n_groups, 16], two 4-bit floats in a byte.
    scales: uint8 [n, n_out, n_groups], exponents of 2. Returns [n, n_in, n_out]."""
    n, n_out, n_groups, n_bytes = blocks.shape
    numbers = _DOUBLES[unpack(blocks.reshape(-1, n_bytes), 4).int()].view(n, n_out, n_groups, 2 * n_bytes)
    weight = numbers * (_power(scales) / 2)[..., None]
    return weight.flatten(2).to(dtype).transpose(1, 2).contiguous()


def regroup(weight: Tensor, is_known: bool = False) -> Grouped | Tensor:
    """Quantises a weight [n_out, n_in] to MXFP4, in groups of 32, if MXFP4 represents it exactly; otherwise returns it
    unchanged. A group's scale is the power of 2 for which the group's largest absolute value becomes 4 or 6, the two
    largest numbers of MXFP4. is_known: the caller knows that MXFP4 is exact, so this is not checked."""
    if weight.shape[1] % 32:
        return weight
    groups = weight.float().view(len(weight), -1, 32)
    scale = _power(groups.abs().amax(2).frexp().exponent + 123)  # of the doubles: the largest becomes 8 or 12
    numbers = groups / scale[..., None]
    if not is_known and not torch.isin(numbers, _DOUBLES.to(numbers)).all():
        return weight
    return Grouped(numbers.to(torch.int8).flatten(1), scale, None, FLOAT4)


def _power(exponents: Tensor) -> Tensor:
    """Returns 2^(exponent - 127) for each exponent, in float32."""
    return torch.ldexp(torch.ones(exponents.shape), exponents.int() - 127)
