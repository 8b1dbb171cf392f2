"""Reads the integer formats of compressed-tensors: several weights in a word, or one in a byte."""

from __future__ import annotations

import torch
from torch import Tensor

from banyan.kernels.linear.grouped import Grouped
from banyan.runtime.model.quantised.config import Scheme
from banyan.runtime.model.quantised.layer import StoredLayer, grouped, unpack


def read_packed(layer: StoredLayer, scheme: Scheme) -> Grouped | Tensor:
    """Read a weight of 4 or 8 bits from the format pack-quantized. A word packs the weights of consecutive inputs; a
    word of zero points packs those of consecutive outputs. The first number is in the lowest bits. Returns Grouped, or
    floats [n_out, n_in] if the groups are scattered or differ in size."""
    n_bits, per_word = scheme.n_bits, 32 // scheme.n_bits
    n_out, n_words = layer.shape("weight_packed")
    rows, n_in = layer.take("weight_shape", 2, dtype="I64").tolist()
    if rows != n_out or -(-n_in // per_word) != n_words:
        raise layer.broken(f"{n_out} rows of {n_words} words do not fit a weight_shape of {[rows, n_in]}")
    numbers = unpack(layer.take("weight_packed", n_out, n_words, dtype="I32"), n_bits)[:, :n_in]
    scale = layer.per_output("weight_scale", n_out).float()
    zero = index = None
    if "weight_zero_point" in layer:
        packed = layer.take("weight_zero_point", -(-n_out // per_word), scale.shape[1], dtype="I32")
        zero = unpack(packed.T, n_bits)[:, :n_out].T
    if "weight_g_idx" in layer:
        index = layer.take("weight_g_idx", n_in, dtype="I32")
    return grouped(layer, numbers, scale, zero, n_bits, scheme.group, index)


def read_bytes(layer: StoredLayer, scheme: Scheme) -> Grouped | Tensor:
    n_out, n_in = layer.shape("weight")
    numbers = _unsigned(layer.take("weight", n_out, n_in, dtype="I8"))
    scale = layer.per_output("weight_scale", n_out).float()
    has_zero = "weight_zero_point" in layer
    zero = _unsigned(layer.per_output("weight_zero_point", n_out, dtype="I8")) if has_zero else None
    return grouped(layer, numbers, scale, zero, 8, scheme.group)


def _unsigned(numbers: Tensor) -> Tensor:
    """Add 128 to int8 numbers, -128 to 127. Returns uint8, 0 to 255."""
    return numbers.view(torch.uint8) ^ 128
