"""The tensors of one linear layer, and functions that the readers of all formats share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels.linear.grouped import Grouped
from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.weights import Checkpoint

ACTIVATIONS = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point",
               "activation_scale", "q_scale", "k_scale", "v_scale")  # fmt: skip
"""Tensors with scales of activations and of the KV cache. They are ignored, because activations and the KV cache are
not quantised with stored scales."""


class StoredLayer:
    """The tensors of the linear layer `name` in a checkpoint. The methods take the suffix of a tensor's name: "qweight"
    for the tensor NAME.qweight."""

    def __init__(self, weights: Checkpoint, name: str) -> None:
        self.name = name
        self._weights = weights
        self._left = weights.modules[name] - {*ACTIVATIONS, "bias"}

    def __contains__(self, suffix: str) -> bool:
        return suffix in self._weights.modules[self.name]

    def shape(self, suffix: str) -> tuple[int, int]:
        """The shape of the matrix `suffix`. BadModel: the layer has no such tensor, or it is not a matrix."""
        stored = self._weights.tensors.get(f"{self.name}.{suffix}")
        shape = () if stored is None else stored.shape
        if len(shape) != 2 or not all(shape):
            raise BadModel(f"{self.name} has no matrix {suffix}; the checkpoint is incomplete")
        return shape[0], shape[1]

    def take(self, suffix: str, *shape: int, dtype: str | None = None) -> Tensor:
        """Take a tensor of the layer. dtype: its stored dtype, as safetensors spells it; None: any float. BadModel:
        there is no such tensor, or it has another shape; Unsupported: it has another dtype."""
        self._left.discard(suffix)
        return self._weights.take(f"{self.name}.{suffix}", *shape, dtype=dtype)

    def per_output(self, suffix: str, n_out: int, dtype: str | None = None) -> Tensor:
        """Take a tensor of scales or zero points: [n_out, n_groups]. A single number, or a vector with one number for
        each output, is returned as [n_out, 1]. BadModel: the tensor has another shape."""
        found = self.take(suffix, dtype=dtype)
        if found.numel() == 1:
            return found.reshape(1, 1).expand(n_out, 1)
        if found.ndim not in (1, 2) or len(found) != n_out:
            raise self.broken(f"{suffix} has shape {list(found.shape)}, which does not fit {n_out} outputs")
        return found.view(n_out, -1)

    def finish(self) -> None:
        """Check that all tensors of the layer were taken. Unsupported: some were not."""
        if self._left:
            raise Unsupported(f"{self.name} has {', '.join(sorted(self._left))}, which its format does not have")

    def broken(self, what: str) -> BadModel:
        return BadModel(f"{self.name}: {what}; the checkpoint is broken")


def unpack(words: Tensor, n_bits: int) -> Tensor:
    """Unpack numbers of 4 or 8 bits: words, int32 or uint8 [n, n_words], become uint8 [n, n_numbers]. The first number
    of a word is in its lowest bits."""
    numbers = words.contiguous().view(torch.uint8)
    return numbers if n_bits == 8 else torch.stack((numbers & 15, numbers >> 4), -1).flatten(1)


def pack(numbers: Tensor, n_bits: int) -> Tensor:
    """Pack numbers of 4 or 8 bits: uint8 [n, n_numbers] becomes int32 [n, n_words]. The first number of a word is in
    its lowest bits. The last word of a row is filled up with zeros."""
    numbers = F.pad(numbers, (0, -numbers.shape[1] % (32 // n_bits)))
    return (numbers if n_bits == 8 else numbers[:, ::2] | numbers[:, 1::2] << 4).contiguous().view(torch.int32)


def grouped(layer: StoredLayer, numbers: Tensor, scale: Tensor, zero: Tensor | None, n_bits: int, group: int = -1,
            index: Tensor | None = None) -> Grouped | Tensor:  # fmt: skip
    """Make the weight (numbers - zero) * scale, with the zero point and scale of each input's group.

    numbers  uint8 [n_out, n_in], 0 to 2^n_bits - 1
    scale    float32 [n_out, n_groups]
    zero     uint8 [n_out, n_groups]; None: 2^(n_bits - 1)
    group    the number of inputs in a group; the last group may have fewer; -1: all
    index    int [n_in]: the group of each input; None: the groups are consecutive inputs
    Returns  Grouped; float32 [n_out, n_in] if the groups have different sizes, or are not consecutive
    """
    n_in, n_groups, middle = numbers.shape[1], scale.shape[1], 1 << n_bits - 1
    in_order = torch.arange(n_in) // (n_in if group < 0 else min(group, n_in))
    index = in_order if index is None else index.long()
    first, last = int(index.min()), int(index.max())
    if first < 0 or last >= n_groups or (index is in_order and last < n_groups - 1):
        raise layer.broken(f"its inputs use groups {first} to {last}, but it has {n_groups} groups")
    if zero is not None and zero.shape != scale.shape:
        raise layer.broken(f"its scales have shape {list(scale.shape)}, but its zero points {list(zero.shape)}")
    if n_in % n_groups or not torch.equal(index, torch.arange(n_in) // (n_in // n_groups)):
        offset = middle if zero is None else zero.float()[:, index]
        return (numbers.float() - offset) * scale[:, index]
    if zero is None or bool((zero == middle).all()):
        return Grouped((numbers - middle).view(torch.int8), scale, None, n_bits)
    if n_bits == 4:
        return Grouped(numbers.view(torch.int8), scale, -scale * zero.float(), n_bits)
    return Grouped((numbers - middle).view(torch.int8), scale, scale * (middle - zero.float()), n_bits)
