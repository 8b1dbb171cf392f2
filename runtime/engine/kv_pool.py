"""The KV pool: the memory of the pages. All other code refers to pages by their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from banyan.kernels import ops
from banyan.kernels.attention.ragged import to_device
from banyan.kernels.kv_layout import HALVES, KV_KINDS, Pool, kv_pools, parts, slot_bytes, stored
from banyan.radix_cache.host_tier import Move
from banyan.radix_cache.pagefile import NotAPageFile, PageFile
from banyan.runtime.config import Config, KVDtype, Resolved
from banyan.runtime.errors import ConfigError, OutOfMemory
from banyan.runtime.model.spec import ModelSpec
from banyan.runtime.protocol.wire import KVFormat

if TYPE_CHECKING:
    from banyan.runtime.model.recurrent import StatePool

LAYOUT = 1  # version of a page's layout and computation; pages with another version cannot be used


class KVPool:
    """K and V of all pages, per layer: [n_pages, page, n_kv_heads, head_dim], on the model's device, in the model's
    dtype or quantised with scales. With latent attention, only K has memory. All memory is allocated in the
    constructor. If windowed layers have their own pages, these are numbered separately. `copy` and `copy_slots` then
    take page p of windowed layers as ~p, and slot s as ~s, which are negative."""

    def __init__(
        self, spec: ModelSpec, n_pages: int, page: int, device: str, n_host: int = 0, file: PageFile | None = None,
        kv_dtype: KVDtype = "auto", n_window_pages: int = 0,
    ) -> None:  # fmt: skip
        """n_host: pages of the second tier, which is in `file` if there is one. n_window_pages: pages for the layers
        with a window (`ModelSpec.windows`); 0: these layers use the same pages as the others."""
        self.dtype: torch.dtype = getattr(torch, spec.dtype)  # the dtype of computation
        self.n_pages, self.page = n_pages, page
        self.n_window_pages = n_window_pages
        self.spare = range(n_pages * page, (n_pages + 1) * page)  # unused slots, for padding rows of CUDA graphs
        null = n_window_pages  # `WindowPages.null`; padding rows must not write to it, so they have the page after it
        self.window_spare = range((null + 1) * page, (null + 2) * page)
        self.device = torch.device(device)
        n_windowed = spec.n_windowed if n_window_pages else 0
        full = self._claim(spec, n_pages, spec.n_kv_layers - n_windowed, kv_dtype)
        windowed = self._claim(spec, n_window_pages, n_windowed, kv_dtype, n_spare=2)
        for part in _parts(windowed):
            part[null].zero_()  # fills gaps of page tables; even numbers that a mask hides must be finite
        own, others = iter(windowed), iter(full)
        self.kv: list[tuple[Pool, Pool]] = (
            [next(own if window else others) for window in spec.windows] if n_windowed else full
        )
        self._pools, self._window_pools = _parts(full), _parts(windowed)
        self.features: Tensor | None = None
        self.states: StatePool | None = None  # for a model with a recurrent state
        self.file = file
        self.host = self._claim_host(n_host, page * bytes_per_token(spec, kv_dtype)) if n_host else None

    def _claim(
        self, spec: ModelSpec, n_pages: int, n_layers: int, kv_dtype: KVDtype, n_spare: int = 1
    ) -> list[tuple[Pool, Pool]]:
        """Allocates the pools of some layers, with n_spare more pages."""
        shape = n_pages + n_spare, self.page, spec.n_kv_heads, spec.head_dim
        try:
            return kv_pools(n_layers, shape, dtypes(spec, kv_dtype), self.device, spec.latent_dim)
        except (torch.OutOfMemoryError, RuntimeError) as e:
            size = n_pages * self.page * bytes_per_token(spec, kv_dtype, n_layers) / 2**20
            raise OutOfMemory(
                f"{n_pages} KV pages are {size:.0f} MiB and do not fit on {self.device}; lower `kv_memory`"
            ) from e

    def _claim_host(self, n_host: int, page_bytes: int) -> Tensor:
        """Allocate the second tier, in host memory or in the file: uint8 [n_host, page_bytes]. Each row holds one page:
        its parts of all pools, one after the other."""
        shape = n_host, page_bytes
        if self.file is not None:
            return torch.frombuffer(self.file.pages, dtype=torch.uint8, count=prod(shape)).view(shape)
        try:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        except RuntimeError as e:
            size = prod(shape) / 2**20
            raise OutOfMemory(f"{size:.0f} MiB of host memory are not available; lower `host_memory`") from e

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy the start of pages to other pages, in all layers. copies: (source page, destination page, number of
        slots to copy)."""
        if not copies:
            return
        whole = [copy for copy in copies if copy[0] >= 0]
        windowed = [(~source, ~destination, n) for source, destination, n in copies if source < 0]
        for some, kinds in ((whole, self._kinds()), (windowed, [self._window_pools])):
            if some:
                table = to_device(np.array(some, np.int32), self.device)
                for pools in filter(None, kinds):
                    ops.copy_pages(pools, table)

    def copy_slots(self, paths: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Copy K and V from slots to slots, in all layers. paths: for each request, (source slots, destination slots),
        lists of equal length. A slot is page * page_size + offset. See `ops.copy_slots`."""
        if not paths:
            return
        whole = [path for path in paths if min(path[0], default=0) >= 0]
        windowed = [([~s for s in sources], [~s for s in to]) for sources, to in paths if min(sources, default=0) < 0]
        for some, kinds in ((whole, self._kinds()), (windowed, [self._window_pools])):
            if some:
                lists = np.full((2, len(some), max(len(sources) for sources, _ in some)), -1, np.int64)
                for i, path in enumerate(some):
                    for row, slots in zip(lists[:, i], path, strict=True):
                        row[: len(slots)] = slots
                for pools in filter(None, kinds):
                    ops.copy_slots(pools, *to_device(lists, self.device))

    def keep_features(self, width: int) -> Tensor:
        """Allocate a hidden state for each slot: [n_slots, width]. Hidden states are copied with the slot's KV, but not
        to host memory. So drafters that read them draft badly on pages that came back from host memory."""
        shape = self.n_pages + 1, self.page, 1, width
        self.features = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return self.features.view(-1, width)

    def _kinds(self) -> list[Sequence[Tensor]]:
        return [self._pools] if self.features is None else [self._pools, (self.features,)]

    def release(self) -> None:
        """Close the file, so that another process may open it. No page may be moved afterwards."""
        self.host = None
        if self.file is not None:
            self.file.close()

    def move(self, moves: Sequence[Move]) -> None:
        """Move pages between the device and host memory, in order. Call it before all copies and writes of a plan."""
        for is_out, run in groupby(moves, attrgetter("is_out")):
            (self._move_out if is_out else self._move_in)(list(run))

    def _move_out(self, moves: list[Move]) -> None:
        assert self.host is not None
        last = {move.host: move for move in moves}  # if two moves have the same destination, the later one counts
        if self.file is not None:
            for i in last:
                self.file.begin(i)
        device = torch.tensor([move.device for move in last.values()], device=self.device)
        host = torch.tensor(list(last))
        for pool, place in self._places():
            self.host[host, place] = pool[device].flatten(1).view(torch.uint8).cpu()
        if self.file is not None:
            for i, move in last.items():
                self.file.seal(i, move.label)

    def _move_in(self, moves: list[Move]) -> None:
        assert self.host is not None
        last = {move.device: move for move in moves}
        device = torch.tensor(list(last), device=self.device)
        host = torch.tensor([move.host for move in last.values()])
        for pool, place in self._places():
            pool[device] = self.host[host, place].view(pool.dtype).view(-1, *pool.shape[1:]).to(self.device)

    # ---- pages of other engines --------------------------------------------------------------------------------

    def export(self, pages: Sequence[int], memory: Tensor, first: int, n_pages: int) -> None:
        """Copy pages into a buffer for other engines. pages: the pages of this pool. memory: the buffer, uint8
        [export_bytes(n_pages)], with room for n_pages pages. first: place in the buffer, counted in pages, of the first
        copied page; the others follow it."""
        index = torch.tensor(pages, device=self.device)
        for pool, place in self._exported(memory, first, len(pages), n_pages):
            if pool.is_cuda:
                place.copy_(pool[index])
            else:
                torch.index_select(pool, 0, index, out=place)

    def load(self, pages: Sequence[int], memory: Tensor, first: int, n_pages: int) -> None:
        """Copy pages from a buffer that `export` has filled into this pool. pages: the destinations. first: place in
        the buffer, counted in pages, of the first source page. n_pages: the pages for which the buffer has room."""
        index = torch.tensor(pages, device=self.device)
        for pool, place in self._exported(memory, first, len(pages), n_pages):
            pool.index_copy_(0, index, place.to(self.device))

    def export_bytes(self, n_pages: int) -> int:
        """How many bytes n_pages exported pages take."""
        return sum(_aligned(n_pages * pool[0].numel() * pool.element_size()) for pool in self._pools)

    def _exported(self, memory: Tensor, first: int, n: int, n_pages: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each pool: the pool, and a view [n, page, ...] of the part of the buffer `memory` that holds this
        pool's data of n pages. first: place of the first of these pages in the buffer. n_pages: the pages for which the
        buffer has room. The data of one pool lies together, so that it is copied with one call."""
        at = 0
        for pool in self._pools:
            size = pool[0].numel() * pool.element_size()
            place = memory[at + first * size : at + (first + n) * size]
            yield pool, place.view(pool.dtype).view(n, *pool.shape[1:])
            at += _aligned(n_pages * size)

    def _places(self) -> Iterator[tuple[Tensor, slice]]:
        """Yield for each pool: the pool, and the range of bytes in a page of the second tier that holds the pool's
        part."""
        at = 0
        for pool in self._pools:
            end = at + pool[0].numel() * pool.element_size()
            yield pool, slice(at, end)
            at = end


def _parts(pools: Sequence[tuple[Pool, Pool]]) -> list[Tensor]:
    return [part for pair in pools for pool in stored(*pair) for part in parts(pool)]


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // 64) * 64


def kv_format(config: Config, resolved: Resolved, spec: ModelSpec, weights: bytes) -> KVFormat | None:
    """The format of this engine's pages. Two engines can exchange pages if their formats are equal. None: no other
    engine can use these pages, because the cache is off, the model has a recurrent state, windowed layers have their
    own pages, or the option `window` changes the contents of pages. weights: `weights.fingerprint`."""
    if spec.kv_layers is not None or resolved.n_window_pages or config.window or not config.cache:
        return None
    return KVFormat(
        LAYOUT, weights, resolved.device, spec.dtype, config.kv_dtype, config.page, spec.n_kv_layers, spec.n_kv_heads,
        spec.head_dim, resolved.context, config.deterministic,
    )  # fmt: skip


def bytes_per_token(spec: ModelSpec, kv_dtype: KVDtype, n_layers: int | None = None) -> int:
    """Bytes that one token takes in the pools of n_layers layers, including scales, for a model that computes in
    spec.dtype. n_layers None: all layers."""
    kinds = dtypes(spec, kv_dtype)[: 1 if spec.latent_dim else 2]
    sizes = (slot_bytes(spec.n_kv_heads, spec.head_dim, dtype) for dtype in kinds)
    return (spec.n_kv_layers if n_layers is None else n_layers) * sum(sizes)


def dtypes(spec: ModelSpec, kv_dtype: KVDtype) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes in which keys and values are stored. ConfigError: this model's values cannot be stored in 4 bits."""
    own = getattr(torch, spec.dtype)
    found = KV_KINDS.get(kv_dtype, (own, own))
    if HALVES in found and spec.latent_dim:
        raise ConfigError(
            f"kv_dtype is {kv_dtype}, but {spec.name} has latent attention: values are part of its keys; use "
            "kv_dtype='int8'"
        )
    if HALVES in found and spec.head_dim % 16:
        raise ConfigError(
            f"kv_dtype is {kv_dtype}, but the model's head dimension {spec.head_dim} is not a multiple of 16; use "
            "kv_dtype='int8'"
        )
    return found


def open_file(config: Config, resolved: Resolved, spec: ModelSpec, weights: str) -> PageFile:
    """Open the file of the second tier. Its contents are discarded if they come from other weights, another device
    (which sums in another order), another context length (some models' positions depend on it) or another layout.
    Raises ConfigError if it cannot be opened."""
    facts = (
        LAYOUT, weights, resolved.device, resolved.context, spec.n_layers, spec.n_kv_heads, spec.head_dim, spec.dtype,
        config.kv_dtype, config.deterministic,
    )  # fmt: skip
    identity = blake2b(repr(facts).encode(), digest_size=32).digest()
    page_bytes = config.page * bytes_per_token(spec, config.kv_dtype)
    try:
        return PageFile(Path(config.host_file), resolved.n_host, config.page, page_bytes, identity)
    except BlockingIOError as e:
        raise ConfigError(f"host_file {config.host_file} is used by another server; name another file") from e
    except NotAPageFile as e:
        raise ConfigError(f"host_file: {e}") from e
    except OSError as e:
        size = resolved.n_host * page_bytes / 2**20
        raise ConfigError(f"host_file {config.host_file} cannot hold {size:.0f} MiB: {e.strerror}") from e
