"""Weights in GGUF's formats as numbers. A block is a row of bytes; see FORMATS for its sizes.

The formats are those of ggml-quants.c (dequantize_row_*) in llama.cpp. `d` is a block's scale and `m` what is added or
subtracted, both float16. Of a byte with two weights, the low half belongs to the first half of the block.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from banyan.runtime.model.gguf.container import FORMATS
from banyan.runtime.model.stored import Stored

_CHUNK = 1 << 15
"""Weights that are dequantised at a time, so that what is computed on the way stays in the cache. torch runs ops of
this size on one thread; on two, 135 M weights took 30 s instead of 1 s where other processes used both cores."""


def read_tensor(stored: Stored, dtype: torch.dtype) -> Tensor:
    """A tensor on the CPU in `dtype`. OSError, ValueError: the file cannot be read."""
    _, block, n_bytes = FORMATS[stored.dtype]
    out = torch.empty(stored.shape, dtype=dtype)
    n_blocks = out.numel() // block
    step = max(1, _CHUNK // block)
    with stored.file.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as data:
        raw = torch.frombuffer(data, dtype=torch.uint8, count=n_blocks * n_bytes, offset=stored.offset)
        chunks = zip(
            torch.split(out.view(-1, block), step), torch.split(raw.view(n_blocks, n_bytes), step), strict=True
        )
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            done = pool.map(lambda pair: pair[0].copy_(_DEQUANTISE[stored.dtype](pair[1]).view_as(pair[0])), chunks)
            deque(done, maxlen=0)  # raises what a chunk raised
        del raw, chunks, done  # a mapping that is in use cannot be closed
    return out


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte of each block, as float32 [n_blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[..., n] bytes -> [..., 2, n] numbers of 4 bits, low halves first."""
    return torch.stack((packed & 15, packed >> 4), -2)


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """The 32 bits at a byte of each block, times 16: [n_blocks, 32]."""
    bits = blocks[:, at : at + 4, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten(1) << 4


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 2:]).flatten(1).float() - 8) * _half(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:]).flatten(1) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    return ((_nibbles(blocks[:, 6:]).flatten(1) | _fifth_bits(blocks, 2)).float() - 16) * _half(blocks, 0)


def _q5_1(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 8:]).flatten(1) | _fifth_bits(blocks, 4)) * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8) * _half(blocks, 0)


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minimums of the 8 groups of 32 weights of Q4_K and Q5_K, [n_blocks, 8, 1]. They are numbers of 6 bits
    in 12 bytes, times two float16."""
    scales = blocks[:, 4:16]
    low, high, mixed = scales[:, :4], scales[:, 4:8], scales[:, 8:]
    d = torch.cat((low & 63, mixed & 15 | low >> 2 & 48), 1)
    m = torch.cat((high & 63, mixed >> 4 | high >> 2 & 48), 1)
    return (d * _half(blocks, 0))[..., None], (m * _half(blocks, 2))[..., None]


def _q4_k(blocks: Tensor) -> Tensor:
    d, m = _k_scales(blocks)
    return _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).flatten(1, 2) * d - m


def _q5_k(blocks: Tensor) -> Tensor:
    d, m = _k_scales(blocks)
    fifth = (blocks[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1) << 4  # [n_blocks, 8, 32]
    return (_nibbles(blocks[:, 48:].reshape(-1, 4, 32)).flatten(1, 2) | fifth) * d - m


def _q6_k(blocks: Tensor) -> Tensor:
    """Two halves of 128 weights; a half has 4 groups of 32, of which 64 bytes hold the low 4 bits and 32 bytes the high
    2. Each 16 weights have a scale of 8 bits."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)  # [n_blocks, 2, 4, 32]
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    d = blocks[:, 192:208].view(torch.int8) * _half(blocks, 208)
    return ((low | high << 4).view(-1, 16, 16).float() - 32) * d[..., None]


_DEQUANTISE: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": lambda blocks: blocks.contiguous().view(torch.float32),
    "F16": lambda blocks: blocks.contiguous().view(torch.float16),
    "BF16": lambda blocks: blocks.contiguous().view(torch.bfloat16),
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
