"""Reads GPTQ, as AutoGPTQ and GPTQModel write it.

A word of `qweight` packs the weights of 32 / bits inputs for one output, a word of `qzeros` the zero points of 32 /
bits outputs for one group. The first version of the format stores each zero point minus 1, modulo 2^bits. `g_idx` is
the group of each input: with `desc_act`, inputs are quantised in the order of their importance, so the inputs of a
group are scattered.
"""

from __future__ import annotations

from torch import Tensor

from banyan.kernels.linear.grouped import Grouped
from banyan.runtime.model.quantised.config import Scheme
from banyan.runtime.model.quantised.layer import StoredLayer, grouped, unpack


def read(layer: StoredLayer, scheme: Scheme) -> Grouped | Tensor:
    n_words, n_out = layer.shape("qweight")
    n_groups = layer.shape("scales")[0]
    index = layer.take("g_idx", dtype="I32")
    n_bits = 32 * n_words // max(1, index.numel())  # not the scheme's: with `dynamic`, layers differ
    if n_bits not in (4, 8) or index.shape != (32 // n_bits * n_words,):
        shape = f"{list(index.shape)}, which does not fit {n_words} words of {scheme.n_bits} bits"
        raise layer.broken(f"g_idx has shape {shape}")
    per_word = 32 // n_bits
    numbers = unpack(layer.take("qweight", n_words, n_out, dtype="I32").T, n_bits)
    zero = unpack(layer.take("qzeros", n_groups, -(-n_out // per_word), dtype="I32"), n_bits)[:, :n_out].T
    if scheme.format == "gptq":
        zero = zero + 1 & (1 << n_bits) - 1
    scale = layer.take("scales", n_groups, n_out).T.float()
    return grouped(layer, numbers, scale, zero, n_bits, index=index)
