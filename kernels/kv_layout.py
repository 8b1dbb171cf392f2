"""Pools: tensors that hold the keys or the values of one layer, in pages.

A pool is a tensor in the model's dtype, or `Quantized`: 8 bits per number, with one scale per slot and head. With a
scale for each token and head, nothing has to be calibrated and one token's outliers do not affect the others. Values
can also have 4 bits, with a scale and a minimum per group of a head. The scales are stored by page like the numbers,
and are copied and moved with them.

The values of latent attention (MLA; DeepSeek-V2, 2024) have no memory of their own: their pool is a view of the keys'.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

KINDS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}  # 8-bit dtypes, by the names of the option
HALVES = torch.uint8  # the dtype of 4-bit pools: two numbers in a byte
KV_KINDS = {name: (dtype, dtype) for name, dtype in KINDS.items()} | {"k8v4": (torch.int8, HALVES)}
"""For each value of the option `kv_dtype`: the dtypes of the keys' and of the values' numbers."""
LIMIT = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # the largest number of each dtype
_NATIVE_KINDS = {dtypes: i for i, dtypes in enumerate(KV_KINDS.values(), 1)}


class Quantized(NamedTuple):
    """A pool in 8 or 4 bits. A key or value is its number times its scale; in 4 bits, plus a minimum."""

    numbers: Tensor  # int8 or float8_e4m3fn [n_pages, page_size, n_kv_heads, head_dim]; HALVES [..., head_dim / 2]
    scale: Tensor  # float32 [n_pages, page_size, n_kv_heads]; 4 bits: bfloat16 [..., n_groups, 2], scale and minimum

    @property
    def shape(self) -> torch.Size:
        """The shape in numbers: a byte of a 4-bit pool counts as two."""
        *sizes, last = self.numbers.shape
        return torch.Size((*sizes, 2 * last if self.numbers.dtype == HALVES else last))

    @property
    def bits(self) -> Tensor:
        """`numbers` viewed as uint8: torch can copy it on every device, also where it cannot copy float8."""
        return self.numbers.view(torch.uint8)


Pool = Tensor | Quantized


def stacked(n: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> list[Pool]:
    """Returns n uninitialised pools in one allocation, so that one kernel launch can copy pages in all of them (see
    `stacks`).

    shape: [n_pages, page_size, n_kv_heads, head_dim]. A `dtype` of KV_KINDS gives `Quantized` pools.
    """
    if dtype == HALVES:
        dim = shape[3]
        bytes_ = torch.empty((n, *shape[:3], dim // 2), dtype=dtype, device=device)
        groups = torch.empty((n, *shape[:3], dim // group_of(dim), 2), dtype=torch.bfloat16, device=device)
        return [Quantized(*pair) for pair in zip(bytes_, groups, strict=True)]
    numbers = torch.empty((n, *shape), dtype=dtype, device=device)
    if dtype not in LIMIT:
        return list(numbers)
    scales = torch.empty((n, *shape[:3]), dtype=torch.float32, device=device)
    return [Quantized(*pair) for pair in zip(numbers, scales, strict=True)]


def kv_pools(
    n: int, shape: Sequence[int], dtypes: tuple[torch.dtype, torch.dtype], device: torch.device | str = "cpu",
    latent_dim: int = 0,
) -> list[tuple[Pool, Pool]]:  # fmt: skip
    """Allocates the KV pools of n layers, uninitialised. Returns (pool of keys, pool of values) for each layer.

    shape: [n_pages, page_size, n_kv_heads, head_dim]. dtypes: of keys, and of values. latent_dim: with latent
    attention, how many of a key's first numbers are its value, so that values need no memory; 0: values have pools of
    their own.
    """
    keys, values = dtypes
    if latent_dim:
        return [(pool, values_of(pool, latent_dim)) for pool in stacked(n, shape, keys, device)]
    if keys == values:
        pools = stacked(2 * n, shape, keys, device)
        return list(zip(pools[::2], pools[1::2], strict=True))
    return list(zip(stacked(n, shape, keys, device), stacked(n, shape, values, device), strict=True))


def values_of(k_pool: Pool, latent_dim: int) -> Pool:
    """The pool of values in latent attention (MLA): a view of the first `latent_dim` numbers of each key."""
    if isinstance(k_pool, Quantized):
        return Quantized(k_pool.numbers[..., :latent_dim], k_pool.scale)
    return k_pool[..., :latent_dim]


def is_latent(k_pool: Pool, v_pool: Pool) -> bool:
    """Whether the two pools are those of latent attention (MLA): `v_pool` is then a view of `k_pool`, made by
    `values_of`, and has a smaller head_dim."""
    return v_pool.shape[3] != k_pool.shape[3]


def stored(k_pool: Pool, v_pool: Pool) -> tuple[Pool, ...]:
    """The pools that have their own memory: both pools of a pair, or with latent attention only that of the keys."""
    return (k_pool,) if is_latent(k_pool, v_pool) else (k_pool, v_pool)


def stacks(pools: Iterable[Tensor]) -> Iterator[Tensor]:
    """Groups pools into views [n, *shape], so that one launch can work on n pools. Each pool is in exactly one view.

    Pools share a view if they have one shape and dtype and lie at equal distances in one allocation. Any other pool
    gets a view with n = 1. All pools must be contiguous.
    """
    groups: dict[tuple[torch.Size, torch.dtype, int], list[Tensor]] = {}
    for pool in pools:
        assert pool.is_contiguous(), "a pool must be contiguous"
        groups.setdefault((pool.shape, pool.dtype, pool.untyped_storage().data_ptr()), []).append(pool)
    for (shape, _, _), group in groups.items():
        first, *others = offsets = [int(pool.storage_offset()) for pool in group]
        step = others[0] - first if others else 0
        if step < 0 or offsets != [first + i * step for i in range(len(group))]:
            yield from (pool.unsqueeze(0) for pool in group)
        else:
            yield group[0].as_strided((len(group), *shape), (step, *group[0].stride()))


def parts(pool: Pool) -> tuple[Tensor, ...]:
    """The tensors of a pool, each [n_pages, page_size, ...], in dtypes that torch can copy."""
    return (pool.bits, pool.scale) if isinstance(pool, Quantized) else (pool,)


def slot_bytes(n_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """How many bytes one token takes in one pool."""
    if dtype == HALVES:
        return n_kv_heads * (head_dim // 2 + 4 * (head_dim // group_of(head_dim)))
    return n_kv_heads * (head_dim * dtype.itemsize + (4 if dtype in LIMIT else 0))


def read(pool: Pool, pages: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the content of `pages` (int64 [n]) as [n, page_size, n_kv_heads, head_dim] in `dtype`."""
    if not isinstance(pool, Quantized):
        return pool.index_select(0, pages).to(dtype)
    real = torch.promote_types(dtype, torch.float32)
    if pool.numbers.dtype == HALVES:
        numbers = pool.numbers[pages]
        scale, minimum = pool.scale[pages].to(real).unbind(-1)
        groups = torch.stack((numbers & 15, numbers >> 4), -1).view(*scale.shape, group_of(pool.shape[3])).to(real)
        return (groups * scale[..., None] + minimum[..., None]).flatten(3).to(dtype)
    numbers = pool.bits[pages].view(pool.numbers.dtype).to(real)
    return (numbers * pool.scale[pages].unsqueeze(-1)).to(dtype)


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantises x [..., head_dim]. Returns (numbers, scales), in the forms of the two fields of a `Quantized` pool.

    The error is at most half a scale in int8. In e4m3 it is at most a sixteenth of the number, or 2**-10 of the scale.
    In 4 bits, scale and minimum are rounded to bfloat16. So the error is at most half a scale, plus 2**-8 of the
    smallest and of the largest number of the group. A NaN in x makes its scale NaN.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if dtype == HALVES:
        *rows, dim = x.shape
        groups = x.reshape(*rows, dim // group_of(dim), group_of(dim))
        low, high = groups.aminmax(dim=-1)
        by = torch.stack(((high - low) / 15, low), -1).to(torch.bfloat16)
        scale, minimum = by.to(x.dtype).unsqueeze(-2).unbind(-1)
        steps = ((groups - minimum) / torch.where(scale > 0, scale, 1.0)).nan_to_num().round().clamp(0, 15).to(HALVES)
        pairs = steps.reshape(*rows, dim // 2, 2)
        return pairs[..., 0] | pairs[..., 1] << 4, by
    scale = (x.abs().amax(-1) / LIMIT[dtype]).float()
    steps = (x / torch.where(scale > 0, scale, 1.0).unsqueeze(-1)).clamp(-LIMIT[dtype], LIMIT[dtype])
    steps = steps.nan_to_num()
    return (steps.round() if dtype == torch.int8 else steps).to(dtype), scale


def group_of(head_dim: int) -> int:
    """How many numbers of a head share a scale and a minimum in 4 bits; the same as in native/vector.h."""
    return 16 if head_dim % 32 else 32


# ---- pools as arguments of the C++ library -------------------------------------------------------------------------


def native_kind(k_pool: Pool, v_pool: Pool) -> int:
    """The C++ library's number for the dtypes of a pair of pools. 0: both are in the dtype of the computation; 1
    and more: the entries of KV_KINDS, in order; -1: the library does not support the pair."""
    if not isinstance(k_pool, Quantized) or not isinstance(v_pool, Quantized):
        return -1 if isinstance(k_pool, Quantized) or isinstance(v_pool, Quantized) else 0
    return _NATIVE_KINDS.get((k_pool.numbers.dtype, v_pool.numbers.dtype), -1)


def are_native(k_pool: Pool, v_pool: Pool, dtype: torch.dtype) -> bool:
    """Whether the C++ library can compute in `dtype` on these two pools."""
    return native_kind(k_pool, v_pool) >= 0 and all(
        (isinstance(pool, Quantized) or pool.dtype == dtype) and all(part.is_contiguous() for part in parts(pool))
        for pool in stored(k_pool, v_pool)
    )


def address(x: Tensor | None) -> int | None:
    """The address of a tensor's numbers; None (a null pointer) for None."""
    return None if x is None else x.data_ptr()


def pointers(pool: Pool) -> tuple[int, int | None]:
    """Addresses of a pool's numbers and of its scales (None if it has none)."""
    numbers, scale = pool if isinstance(pool, Quantized) else (pool, None)
    return numbers.data_ptr(), address(scale)
