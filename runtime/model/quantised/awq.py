"""Reads AWQ, as AutoAWQ writes it for its GEMM kernels. A word holds the 4-bit weights of one input for 8 outputs, in
the order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits."""

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
    """Unpack words, int32 [n, n_words], and transpose the result: uint8 [8 n_words, n], in the order of the outputs."""
    return unpack(words, 4).view(len(words), -1, 8)[:, :, _PLACES].flatten(1).T.contiguous()
