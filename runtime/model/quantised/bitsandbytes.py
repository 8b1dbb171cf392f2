"""Reads bitsandbytes' formats. In 8 bits, each output has a scale. In 4 bits (NF4, FP4), a number is an index into a
table of 16 values, and a block of consecutive weights has a scale; blocks may extend over rows of the matrix. These
scales may be quantised too."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from torch import Tensor

from banyan.kernels.linear.grouped import Grouped
from banyan.runtime.model.quantised.config import Scheme
from banyan.runtime.model.quantised.layer import StoredLayer, unpack

Size = Annotated[int, Meta(ge=1, lt=1 << 31)]


def read_int8(layer: StoredLayer, scheme: Scheme) -> Grouped:
    n_out, n_in = layer.shape("weight")
    if "weight_format" in layer and layer.take("weight_format", dtype="U8").item():
        raise layer.broken("weight_format must be 0 (rows)")
    scale = layer.take("SCB", n_out).float()[:, None] / 127
    return Grouped(layer.take("weight", n_out, n_in, dtype="I8"), scale, None, 8)


class BlockState(msgspec.Struct):
    """bitsandbytes' description of a 4-bit weight (its quant_state), which a checkpoint stores as JSON in a uint8
    tensor."""

    shape: tuple[Size, Size]
    blocksize: Annotated[int, Meta(ge=1, le=4096)]
    nested_blocksize: Annotated[int, Meta(ge=1, le=4096)] | None = None
    nested_offset: float = 0.0


def read_4bit(layer: StoredLayer, scheme: Scheme) -> Tensor:
    kind = next((kind for kind in ("nf4", "fp4") if f"weight.quant_state.bitsandbytes__{kind}" in layer), "nf4")
    described = layer.take(f"weight.quant_state.bitsandbytes__{kind}", dtype="U8")
    try:
        state = msgspec.json.decode(bytes(described.tolist()), type=BlockState)
    except msgspec.DecodeError as e:
        raise layer.broken(f"its quant_state cannot be read: {e}") from e
    n_out, n_in = state.shape
    n_blocks = -(-n_out * n_in // state.blocksize)
    packed = layer.take("weight", -(-n_out * n_in // 2), 1, dtype="U8")
    table = layer.take("weight.quant_map", 16).float()
    if state.nested_blocksize:
        indexes = layer.take("weight.absmax", n_blocks, dtype="U8").int()
        outer = layer.take("weight.nested_absmax", -(-n_blocks // state.nested_blocksize)).float()
        outer = outer.repeat_interleave(state.nested_blocksize)[:n_blocks]
        scale = layer.take("weight.nested_quant_map", 256).float()[indexes] * outer + state.nested_offset
    else:
        scale = layer.take("weight.absmax", n_blocks).float()
    codes = unpack(packed, 4).flip(1).flatten()[: n_out * n_in].int()  # the first of two is in the high bits
    return (table[codes] * scale.repeat_interleave(state.blocksize)[: len(codes)]).view(n_out, n_in)
