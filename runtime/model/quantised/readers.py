"""Reads the weights of linear layers, whatever format a checkpoint stores them in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from banyan.kernels.linear.grouped import FLOAT8, Grouped
from banyan.runtime.errors import BadModel
from banyan.runtime.model.quantised import awq, bitsandbytes, fp4, fp8, gptq, integers
from banyan.runtime.model.quantised.config import EXPERTS, Quantisation, Scheme
from banyan.runtime.model.quantised.layer import ACTIVATIONS, StoredLayer
from banyan.runtime.model.weights import Checkpoint, Headers

READERS: dict[str, Callable[[StoredLayer, Scheme], Grouped | Tensor]] = {
    "gptq": gptq.read,
    "gptq_v2": gptq.read,
    "awq": awq.read,
    "fp8": fp8.read,
    "mxfp4": fp4.read,
    "nvfp4": fp4.read,
    "pack-quantized": integers.read_packed,
    "int-quantized": integers.read_bytes,
    "bitsandbytes-int8": bitsandbytes.read_int8,
    "bitsandbytes-4bit": bitsandbytes.read_4bit,
}


def read_linear(weights: Checkpoint, quantisation: Quantisation | None, name: str, n_out: int, n_in: int
                ) -> Grouped | Tensor:  # fmt: skip
    """Read the weight [n_out, n_in] of the linear layer `name`. Returns Grouped, or floats if the weight is stored in
    floats or Grouped cannot represent it. BadModel: the checkpoint is broken; Unsupported: the layer has a tensor or
    dtype that its format does not have."""
    if quantisation is None or not quantisation.packs(weights.tensors, name):
        return weights.take(f"{name}.weight", n_out, n_in)
    if isinstance(weights, Headers):
        return _empty(weights, quantisation.scheme(name), name, n_out, n_in)
    weight = _read(weights, quantisation, name)
    shape = weight.numbers.shape if isinstance(weight, Grouped) else weight.shape
    if shape != (n_out, n_in):
        raise BadModel(f"{name}.weight has shape {list(shape)}, but the configuration requires {[n_out, n_in]}")
    return weight


def _empty(weights: Headers, scheme: Scheme, name: str, n_out: int, n_in: int) -> Grouped | Tensor:
    """Returns a weight like the one that a reader would return, with the same shapes and dtypes, but undefined content.
    If the checkpoint stores zero points for the layer, the result always has minimums; a reader leaves the minimums out
    if all zero points are in the middle of their range."""
    group, dtype = {"mxfp4": 32, "nvfp4": 16}.get(scheme.format, scheme.group), torch.int8
    n_bits = 8 if scheme.format in ("mxfp4", "nvfp4") else scheme.n_bits
    if scheme.format == "fp8":
        n_bits, dtype, group = FLOAT8, torch.float8_e4m3fn, fp8.group_of(weights, scheme, name)
    group = n_in if group < 0 else min(group, n_in)
    if scheme.format == "bitsandbytes-4bit" or n_in % group:
        return torch.empty(n_out, n_in, device=weights.device)
    scale = torch.empty(n_out, n_in // group, device=weights.device)
    minimum = torch.empty_like(scale) if weights.modules[name] & {"qzeros", "weight_zero_point"} else None
    numbers = torch.empty(n_out, n_in, dtype=dtype, device=weights.device)
    return Grouped(numbers, scale, minimum, n_bits, scheme.is_w8a8)


def floats(weight: Grouped | Tensor, dtype: torch.dtype) -> Tensor:
    return weight.dequantise(dtype) if isinstance(weight, Grouped) else weight.to(dtype)


def state_dict(weights: Checkpoint, quantisation: Quantisation, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a checkpoint, with its weights dequantised to `dtype`."""
    found = {}
    for module, names in weights.modules.items():
        is_packed = quantisation.packs(weights.tensors, module)
        if is_packed:
            found[f"{module}.weight"] = floats(_read(weights, quantisation, module), dtype)
        for name in {"bias"} & names if is_packed else names.difference(ACTIVATIONS):
            full, (stem, end) = f"{module}.{name}", (name[:-7], name[-7:])
            if end == EXPERTS[0]:
                found[f"{module}.{stem}"] = _experts(weights, f"{module}.{stem}", dtype)
            elif end != EXPERTS[1] or f"{stem}{EXPERTS[0]}" not in names:
                stored = weights.tensors[full].dtype
                found[full] = weights.take(full, dtype=None if stored in ("I8", "F8_E4M3") else stored)
    return found


def _read(weights: Checkpoint, quantisation: Quantisation, name: str) -> Grouped | Tensor:
    layer, scheme = StoredLayer(weights, name), quantisation.scheme(name)
    weight = READERS[scheme.format](layer, scheme)
    layer.finish()
    return weight._replace(is_w8a8=scheme.is_w8a8) if isinstance(weight, Grouped) else weight


def _experts(weights: Checkpoint, name: str, dtype: torch.dtype) -> Tensor:
    """Read gpt-oss's experts, dequantised: [n, n_in, n_out]."""
    blocks, scales = (weights.take(f"{name}{end}", dtype="U8") for end in EXPERTS)
    if blocks.ndim != 4 or blocks.shape[3] != 16 or scales.shape != blocks.shape[:3]:
        shapes = f"{list(blocks.shape)}, which do not fit scales of shape {list(scales.shape)}"
        raise BadModel(f"{name} has blocks of shape {shapes}")
    return fp4.read_experts(blocks, scales, dtype)
