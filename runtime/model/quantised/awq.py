"""Reads AWQ, as AutoAWQ writes it for its GEMM kernels: a word holds the weights of one input for 8 outputs, first the
even ones."""

from __future__ import annotations

from torch import Tensor

from banyan.kernels.linear.grouped import Grouped
from banyan.runtime.model.quantised.config import Scheme
from banyan.runtime.model.quantised.layer import StoredLayer, grouped, unpack

_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where the outputs 0 to 7 are in a word."""


def read(layer: StoredLayer, scheme: Scheme) -> Grouped | Tensor:
    n_in, n_words = layer.shape("qweight")
    n_groups = layer.shape("scales")[0]
    numbers = _unpack(layer.take("qweight", n_in, n_words, dtype="I32"))
    zero = _unpack(layer.take("qzeros", n_groups, n_words, dtype="I32"))
    scale = layer.take("scales", n_groups, 8 * n_words).T.float()
    return grouped(layer, numbers, scale, zero, scheme.n_bits, scheme.group)


def _unpack(words: Tensor) -> Tensor:
    """int32 [n, n_words] -> uint8 [8 n_words, n]"""
    return unpack(words, 4).view(len(words), -1, 8)[:, :, _PLACES].flatten(1).T.contiguous()
