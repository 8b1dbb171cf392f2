"""GPTQ, as AutoGPTQ and GPTQModel write it.

`qweight` packs 32 / bits inputs of an output in a word, `qzeros` as many outputs of a group. The first version of the
format stores each zero point less 1, modulo 2^bits. `g_idx` is the group of each input: with `desc_act`, inputs are
quantised in the order of their importance, and groups lie scattered.
"""

from __future__ import annotations

from torch import Tensor

from banyan.kernels.linear.grouped import Grouped
from banyan.runtime.model.quantised.config import Scheme
from banyan.runtime.model.quantised.layer import StoredLayer, grouped, unpack


def read(layer: StoredLayer, scheme: Scheme) -> Grouped | Tensor:
    n_words, n_out = layer.shape("qweight")
    n_groups = layer.shape("scales")[0]
    n_bits, per_word = scheme.n_bits, 32 // scheme.n_bits
    numbers = unpack(layer.take("qweight", n_words, n_out, dtype="I32").T, n_bits)
    zero = unpack(layer.take("qzeros", n_groups, -(-n_out // per_word), dtype="I32"), n_bits)[:, :n_out].T
    if scheme.format == "gptq":
        zero = zero + 1 & (1 << n_bits) - 1
    scale = layer.take("scales", n_groups, n_out).T.float()
    index = layer.take("g_idx", n_words * per_word, dtype="I32")
    return grouped(layer, numbers, scale, zero, n_bits, index=index)
