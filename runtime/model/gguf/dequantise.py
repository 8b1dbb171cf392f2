"""Reads weights in GGUF's formats. A tensor of weights is a sequence of blocks; FORMATS has their sizes.

The formats are those of ggml-quants.c (dequantize_row_*) in llama.cpp. `d` is the scale of a block or group, and `m`
its minimum, which is added or subtracted. If a byte holds two weights, its low half belongs to the first half of the
block.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from banyan.kernels.linear.grouped import Grouped, quantise
from banyan.runtime.model.gguf.container import FORMATS
from banyan.runtime.model.stored import Stored

_CHUNK = 1 << 15
"""The number of weights that are read at a time, so that intermediate results stay in the CPU's cache. torch runs ops
of this size on one thread; with two threads per op, 135 M weights took 30 s instead of 1 s when other processes used
both cores."""


class _Groups(NamedTuple):
    """Quantised weights of some blocks, in groups that share a scale. weight = number * scale + minimum."""

    numbers: Tensor  # [n_blocks, n_groups, size], of 8 bits
    scale: Tensor  # float32 [n_blocks, n_groups, 1]
    minimum: Tensor | None = None  # likewise


def read_tensor(stored: Stored, dtype: torch.dtype) -> Tensor:
    """Reads a tensor to the CPU and converts it to `dtype`. OSError, ValueError: the file cannot be read."""
    block = FORMATS[stored.dtype].block
    out = torch.empty(stored.shape, dtype=dtype)

    def dequantise(raw: Tensor, to: Tensor) -> None:
        if stored.dtype in _FLOATS:
            to.copy_(raw.contiguous().view(_FLOATS[stored.dtype]))
            return
        numbers, scale, minimum = _GROUPS[stored.dtype](raw)
        weights = numbers * scale
        to.copy_((weights if minimum is None else weights.add_(minimum)).view_as(to))

    _read(stored, dequantise, [out.view(-1, block)])
    return out


def read_grouped(stored: Stored) -> Grouped | None:
    """Read a matrix into CPU memory without dequantising it. None: it is stored in floats. OSError, ValueError: the
    file cannot be read.

    The numbers have the bits in which they are stored, with two exceptions: those of Q5 formats become 8 bits, and
    Q6_K, whose groups have 16 weights, is rounded to 8 bits in groups of 32.
    """
    if stored.dtype == "Q6_K":
        return quantise(read_tensor(stored, torch.float32), 8)
    weight = empty_grouped(stored, torch.device("cpu"))
    if weight is None:
        return None
    numbers, scale, minimum, *_ = weight
    block = FORMATS[stored.dtype].block

    def split(raw: Tensor, *to: Tensor) -> None:
        for part, target in zip(_GROUPS[stored.dtype](raw), to, strict=False):
            assert part is not None
            target.copy_(part.view_as(target))

    small = (part.view(-1, block // 32) for part in (scale, minimum) if part is not None)
    _read(stored, split, [numbers.view(-1, block), *small])
    return weight


def empty_grouped(stored: Stored, device: torch.device) -> Grouped | None:
    """Allocate a matrix of the form that `read_grouped` returns, with undefined content. None: it is stored in
    floats."""
    if stored.dtype in _FLOATS:
        return None
    n_out, n_in = stored.shape
    scale = torch.empty(n_out, n_in // 32, device=device)
    minimum = None if stored.dtype.endswith("_0") or stored.dtype == "Q6_K" else torch.empty_like(scale)
    numbers = torch.empty(n_out, n_in, dtype=torch.int8, device=device)
    return Grouped(numbers, scale, minimum, 4 if stored.dtype.startswith("Q4") else 8)


def _read(stored: Stored, convert: Callable[..., None], outputs: Sequence[Tensor]) -> None:
    """Read a tensor in chunks of blocks, on several threads. For each chunk, call convert(blocks, *rows): `blocks` are
    its bytes, uint8 [n, bytes of a block], and `rows` are the n rows of each output that it must fill. Each output has
    one row for each block of the tensor."""
    _, block, n_bytes = FORMATS[stored.dtype]
    n_blocks, step = len(outputs[0]), max(1, _CHUNK // block)
    with stored.file.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as data:
        raw = torch.frombuffer(data, dtype=torch.uint8, count=n_blocks * n_bytes, offset=stored.offset)
        chunks = zip(*(torch.split(x, step) for x in (raw.view(n_blocks, n_bytes), *outputs)), strict=True)
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            done = pool.map(lambda chunk: convert(*chunk), chunks)
            deque(done, maxlen=0)  # raises what a chunk raised
        del raw, chunks, done  # a mapping that is in use cannot be closed


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block, as float32 [n_blocks, 1, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()[:, None]


def _nibbles(packed: Tensor) -> Tensor:
    """Split bytes [..., n] into numbers of 4 bits [..., 2, n]: first all low halves, then all high halves."""
    return torch.stack((packed & 15, packed >> 4), -2)


def _one_group(packed: Tensor) -> Tensor:
    """Split the 16 bytes of each block into a group of 32 numbers of 4 bits: [n_blocks, 16] -> [n_blocks, 1, 32]."""
    return _nibbles(packed).flatten(1)[:, None]


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """Read the fifth bit of each weight in the Q5_0 and Q5_1 formats: 32 bits from byte `at` of each block. Returns 16
    for a set bit, else 0, [n_blocks, 1, 32]."""
    bits = blocks[:, at : at + 4, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten(1)[:, None] << 4


def _centred(numbers: Tensor, zero: int) -> Tensor:
    return numbers.view(torch.int8) - zero


def _q4_0(blocks: Tensor) -> _Groups:
    return _Groups(_centred(_one_group(blocks[:, 2:]), 8), _half(blocks, 0))


def _q4_1(blocks: Tensor) -> _Groups:
    return _Groups(_one_group(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Tensor) -> _Groups:
    return _Groups(_centred(_one_group(blocks[:, 6:]) | _fifth_bits(blocks, 2), 16), _half(blocks, 0))


def _q5_1(blocks: Tensor) -> _Groups:
    return _Groups(_one_group(blocks[:, 8:]) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Tensor) -> _Groups:
    return _Groups(blocks[:, None, 2:].view(torch.int8), _half(blocks, 0))


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Read the scales and minimums of Q4_K and Q5_K, for 8 groups of 32 weights in each block. Returns both as
    [n_blocks, 8, 1]. A block stores them as numbers of 6 bits, in 12 bytes, to be multiplied by two float16."""
    scales = blocks[:, 4:16]
    low, high, mixed = scales[:, :4], scales[:, 4:8], scales[:, 8:]
    d = torch.cat((low & 63, mixed & 15 | low >> 2 & 48), 1)
    m = torch.cat((high & 63, mixed >> 4 | high >> 2 & 48), 1)
    return d[..., None] * _half(blocks, 0), m[..., None] * -_half(blocks, 2)


def _q4_k(blocks: Tensor) -> _Groups:
    return _Groups(_nibbles(blocks[:, 16:].reshape(-1, 4, 32)).flatten(1, 2), *_k_scales(blocks))


def _q5_k(blocks: Tensor) -> _Groups:
    fifth = (blocks[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1) << 4  # [n_blocks, 8, 32]
    return _Groups(_nibbles(blocks[:, 48:].reshape(-1, 4, 32)).flatten(1, 2) | fifth, *_k_scales(blocks))


def _q6_k(blocks: Tensor) -> _Groups:
    """Read blocks of Q6_K. A block has two halves of 4 x 32 weights. For each half, 64 bytes hold the low 4 bits of the
    weights, and 32 bytes the high 2 bits. Every 16 weights share a scale of 8 bits."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)  # [n_blocks, 2, 4, 32]
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    d = blocks[:, 192:208, None].view(torch.int8) * _half(blocks, 208)
    return _Groups(_centred((low | high << 4).view(-1, 16, 16), 32), d)


_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_GROUPS: dict[str, Callable[[Tensor], _Groups]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
