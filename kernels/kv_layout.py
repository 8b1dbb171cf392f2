"""Pools: where keys or values lie, in pages; as they were computed, or in 8 bits with a scale per slot and head.

A scale of its own for each token and head follows that token's largest number, so that nothing has to be measured ahead
and no token spoils another's. The scales of a page stand beside it under the same page number and move with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

KINDS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
LIMIT = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # the largest number that each takes


class Quantized(NamedTuple):
    """A pool in 8 bits: what stands at a slot is `numbers` times `scale`."""

    numbers: Tensor  # int8 or float8_e4m3fn [n_pages, page_size, n_kv_heads, head_dim]
    scale: Tensor  # float32 [n_pages, page_size, n_kv_heads]

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    @property
    def bits(self) -> Tensor:
        """`numbers` as uint8: what torch can move, whatever it knows of the type."""
        return self.numbers.view(torch.uint8)


Pool = Tensor | Quantized


def stacked(n: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> list[Pool]:
    """n pools of one shape, whose parts lie in one piece of memory each: what copies in all of them is one launch."""
    numbers = torch.empty((n, *shape), dtype=dtype, device=device)
    if dtype not in LIMIT:
        return list(numbers)
    scales = torch.empty((n, *shape[:3]), dtype=torch.float32, device=device)
    return [Quantized(*pair) for pair in zip(numbers, scales, strict=True)]


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Pool:
    """A pool of [n_pages, page_size, n_kv_heads, head_dim], holding anything; with scales where `dtype` has 8 bits."""
    (pool,) = stacked(1, shape, dtype, device)
    return pool


def parts(pool: Pool) -> tuple[Tensor, ...]:
    """The tensors of a pool, each [n_pages, page_size, ...], of types that torch can copy."""
    return (pool.bits, pool.scale) if isinstance(pool, Quantized) else (pool,)


def slot_bytes(n_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that a token takes in one pool."""
    return n_kv_heads * (head_dim * dtype.itemsize + (4 if dtype in LIMIT else 0))


def read(pool: Pool, pages: Tensor, dtype: torch.dtype) -> Tensor:
    """What stands on `pages` (int64 [n]): [n, page_size, n_kv_heads, head_dim] in `dtype`."""
    if not isinstance(pool, Quantized):
        return pool[pages].to(dtype)
    real = torch.promote_types(dtype, torch.float32)
    numbers = pool.bits[pages].view(pool.numbers.dtype).to(real)
    return (numbers * pool.scale[pages].unsqueeze(-1)).to(dtype)


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [..., head_dim] as numbers of 8 bits, and their scales, float32 [...].

    Off by half a scale at most in int8; in e4m3 by a sixteenth of the number, or 2**-10 of the scale. NaN stays NaN: it
    is the scale that carries it.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = (x.abs().amax(-1) / LIMIT[dtype]).float()
    steps = (x / torch.where(scale > 0, scale, 1.0).unsqueeze(-1)).clamp(-LIMIT[dtype], LIMIT[dtype])
    steps = steps.nan_to_num()
    return (steps.round() if dtype == torch.int8 else steps).to(dtype), scale
