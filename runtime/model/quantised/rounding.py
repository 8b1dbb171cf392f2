"""Rounds a weight to 8 or 4 bits: to the nearest numbers (rtn), or so that the layer's outputs change little (gptq,
awq, smoothquant, which use its inputs on a text)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from banyan.kernels.linear.grouped import Grouped

Method = Literal["rtn", "gptq", "awq", "smoothquant"]
_DAMPING = 0.01  # a share of the mean of the diagonal, as in the paper
_BLOCK = 64  # columns whose errors are applied to all later columns in one product
_POWERS = [i / 20 for i in range(20)]


def rtn(weight: Tensor, n_bits: int, group: int, dtype: torch.dtype) -> Grouped:
    """Rounds float32 `weight` [n_out, n_in] to the nearest numbers. group: the number of inputs that share a scale, a
    divisor of n_in. dtype: the dtype that scales have in the checkpoint; they are rounded to it first."""
    groups = weight.unfold(1, group, group)  # [n_out, n_groups, group]
    scale = _scale(groups, n_bits, dtype)
    return Grouped(_numbers(groups, scale[..., None], n_bits).flatten(1).to(torch.int8), scale, None, n_bits)


def gptq(weight: Tensor, products: Tensor, n_bits: int, group: int, dtype: torch.dtype) -> Grouped:
    """Quantises `weight` [n_out, n_in] with GPTQ (Frantar et al., GPTQ: accurate post-training quantization for
    generative pre-trained transformers, 2022): rounds the columns one after the other, those of the largest inputs
    first, and adjusts the remaining columns after each to compensate for the rounding error. products: x^T x of the
    layer's inputs, [n_in, n_in]. The other arguments are as for `rtn`."""
    scale = _scale(weight.unfold(1, group, group), n_bits, dtype)
    size = products.diagonal()
    order = size.argsort(descending=True)
    damped = (products + torch.eye(len(size)) * (_DAMPING * size.mean() + 1e-8))[order][:, order]
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
    left, scales, numbers = weight[:, order], scale[:, order // group], torch.empty_like(weight)
    for start in range(0, len(size), _BLOCK):
        block, rows = left[:, start : start + _BLOCK], factor[start : start + _BLOCK]
        errors = torch.empty_like(block)
        for i in range(block.shape[1]):
            at = start + i
            numbers[:, order[at]] = column = _numbers(block[:, i], scales[:, at], n_bits)
            errors[:, i] = (block[:, i] - column * scales[:, at]) / rows[i, at]
            block[:, i + 1 :] -= errors[:, i, None] * rows[i, at + 1 : start + _BLOCK]
        left[:, start + _BLOCK :] -= errors @ rows[:, start + _BLOCK :]
    return Grouped(numbers.to(torch.int8), scale, None, n_bits)


def awq(weight: Tensor, products: Tensor, n_bits: int, group: int, dtype: torch.dtype) -> Tensor:
    """Returns factors [n_in] for which `rtn` changes the layer's outputs least, if the weight's columns are multiplied
    by them and the inputs divided. A factor is a power of the input's size; the exponent is the best of 20 (Lin et al.,
    AWQ: activation-aware weight quantization, 2023). products: x^T x of the layer's inputs, [n_in, n_in]."""
    size = products.diagonal().sqrt()
    size = size.clamp(min=float(size.max()) * 1e-4 + 1e-8)
    best, least = torch.ones_like(size), float("inf")
    for power in _POWERS:
        factors = size**power
        factors /= (factors.max() * factors.min()).sqrt()
        change = rtn(weight * factors, n_bits, group, dtype).dequantise() / factors - weight
        error = float(((change @ products) * change).sum())
        if error < least:
            best, least = factors, error
    return best


def smoothquant(weight: Tensor, largest: Tensor) -> Tensor:
    """Finds the factors [n_in] by which the weight's columns must be multiplied, and the inputs divided, so that each
    input and its weights are equally hard to quantise (Xiao et al., SmoothQuant: accurate and efficient post-training
    quantization for large language models, 2022, with alpha 0.5). largest: the largest absolute value of each input on
    a text."""
    factors = (largest / weight.abs().amax(0).clamp(min=1e-8)).sqrt()
    return factors.clamp(min=float(factors.max()) * 1e-4 + 1e-8)


def _scale(groups: Tensor, n_bits: int, dtype: torch.dtype) -> Tensor:
    """Returns the scale of each group: [..., group] -> [...]. In 8 bits, the largest absolute value of a group becomes
    127. In 4 bits, 13 scales are tried that make this value about 8, and the one with the least sum of squared errors
    is taken."""
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)).squeeze(-1)
    if n_bits == 8:
        return _stored(largest.abs() / 127, dtype)
    best, least = torch.empty(0), torch.full_like(largest, float("inf"))
    for step in range(13):
        scale = _stored(largest / -8 * (0.7 + step / 30), dtype)
        error = (_numbers(groups, scale[..., None], n_bits) * scale[..., None] - groups).square().sum(-1)
        best = torch.where(error < least, scale, best) if len(best) else scale
        least = least.minimum(error)
    return best


def _stored(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """A scale rounded to `dtype`, as it will be read from the checkpoint; 1 for a group of zeros."""
    scale = scale.to(dtype).float()
    return scale.where(scale != 0, 1.0)


def _numbers(weight: Tensor, scale: Tensor, n_bits: int) -> Tensor:
    half = 1 << n_bits - 1
    return (weight / scale).round().clamp(-half, half - 1)
