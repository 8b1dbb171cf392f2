"""What attention needs to know about a step's batch: rows, requests, and where their keys and values are."""

from array import array
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.plan import MAX_DRAFT, Subtree, subtrees

MIN_SAVED_ROWS = 64
"""The last layer skips rows whose result nobody needs, if there are at least this many of them. For fewer, the second
plan (`Ragged.tail`) costs more than the skipped rows."""
ALL_KEYS = (1 << MAX_DRAFT) - 1
"""The ancestor mask of a row that attends to all keys up to its own."""

CPU = torch.device("cpu")


class AttentionOptions(NamedTuple):
    """The options of attention that can differ from layer to layer.

    scale      factor of the scores
    softcap c  scores become c * tanh(scores / c); 0: off
    window w   a row at position p attends only to keys at positions > p - w; 0: no window. A draft tree must have at
               most w rows: then all ancestors of a row are inside its window
    sinks      [n_heads]: one more logit per head that takes part in the softmax and has no value
    first f    with a window: a row also attends to the first f keys, however far they are. 0: only to its window
    first_q    queries, shaped as q, that replace q for the first f keys, so that these can seem nearer than they are
               (StreamingLLM; Xiao et al., 2023). In rows at positions below w, first_q must equal q
    """

    scale: float
    softcap: float = 0.0
    window: int = 0
    sinks: Tensor | None = None
    first: int = 0
    first_q: Tensor | None = None


class HostTables(NamedTuple):
    """The tables of a batch as numpy arrays in host memory. Each field holds what the field of `Ragged` with its name
    holds."""

    q_start: np.ndarray
    kv_len: np.ndarray
    page_table: np.ndarray
    slots: np.ndarray
    position: np.ndarray
    ancestors: np.ndarray | None


class Ragged(NamedTuple):
    """A ragged batch over paged KV. Built once per step and shared by all layers.

    The rows of q are the requests' rows, one request after the other. One row is a decode, several rows are a chunk of
    prefill or a draft; nothing else distinguishes them. The key of row j of request i has index
    `kv_len[i] - q_lens[i] + j`. The row attends to all keys up to its own. In a draft tree, it attends to the keys
    before the tree, its ancestors and itself.
    """

    q_start: Tensor  # int32 [n_requests + 1]: rows q_start[i]:q_start[i + 1] of q belong to request i
    kv_len: Tensor  # int32 [n_requests]: tokens in KV once this step's rows are written
    page_table: Tensor  # int32 [n_requests, max_pages], padded with 0
    slots: Tensor  # int64 [n_rows]: page * page_size + offset, where each row's K and V are written
    position: Tensor  # int32 [n_rows]: position of each row in its text
    q_lens: tuple[int, ...]  # host copy of the row counts
    kv_lens: tuple[int, ...]  # host copy of kv_len
    plans: dict[Hashable, Any]  # what an implementation derived from the batch, cached for the step's other layers
    subtrees: tuple[Subtree, ...] = ()  # prefixes that requests share, parents first
    ancestors: Tensor | None = None  # int64 [n_rows]: bit b: the row attends to key kv_len - 64 + b; None: no trees
    n_drafted: int = 0  # rows of the largest draft tree
    deterministic: bool = False  # a row's result has the same bits in every batch
    tail: "Ragged | None" = None  # for the last layer: only the rows whose result is wanted, if these are far fewer
    host: HostTables | None = None  # the tables on the host; None: they are on the device only
    local: "Ragged | None" = None  # the same rows, for layers that attend only inside a chunk; None: self
    windowed: "Ragged | None" = None  # the same rows, with the pages of windowed layers; None: self

    def check(self, window: int) -> None:
        """Raises ValueError if a draft tree is larger than a layer's window."""
        if 0 < window < self.n_drafted:
            raise ValueError(f"a window of {window} is smaller than a tree of {self.n_drafted} drafts")

    def seen_in(self, window: int) -> "Ragged":
        """The batch that a layer with this window needs: `windowed` if windowed layers have their own pages, else this
        batch. window: 0 for a layer without a window."""
        return self.windowed if window and self.windowed is not None else self


def ragged(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    pages: Sequence[Sequence[int]],
    page_size: int,
    device: torch.device | str = "cpu",
    parents: Sequence[Sequence[int] | None] | None = None,
    deterministic: bool = False,
    wanted: Sequence[int] | None = None,
    chunk: int = 0,
) -> Ragged:
    """Builds a batch from counts and page ids. Copies to a GPU are asynchronous.

    q_lens   number of new rows, by request
    kv_lens  number of tokens, including the new rows, by request
    pages    page j of `pages[i]` holds tokens `j * page_size` and up. Pages past the last token are not read
    parents  for a request whose rows are a draft tree: the parent of each row, counted from the request's first row
             (-1: the parent is the last token before the rows). At most 64 rows, parents before children. None: each
             row follows the one before it
    wanted   for each request, how many of its last rows need a result; None: all
    chunk    number of tokens in a chunk, a multiple of page_size, for layers that attend only inside chunks: `local`
             becomes the batch for these layers, in which the rows and keys of each chunk are a separate request.
             Cannot be combined with `parents`

    Raises ValueError if a request has more rows than tokens or too few pages, if `parents` contains an invalid tree, or
    if `chunk` is not a number of whole pages or is given with `parents`.
    """
    n = len(q_lens)
    n_pages = [-(-kv // page_size) for kv in kv_lens]
    for q, kv, need, have in zip(q_lens, kv_lens, n_pages, pages, strict=True):
        if q > kv:
            raise ValueError(f"a request has {q} new rows but only {kv} tokens in all")
        if need > len(have):
            raise ValueError(f"{kv} tokens need {need} pages of {page_size}, but the request has {len(have)}")

    tail = None
    if wanted is not None and sum(q_lens) - sum(wanted) >= MIN_SAVED_ROWS:
        kept = [i for i, n_wanted in enumerate(wanted) if n_wanted]
        trees = None if parents is None else [_last_rows(parents[i], wanted[i]) for i in kept]
        tail_q_lens, tail_kv_lens = ([lens[i] for i in kept] for lens in (wanted, kv_lens))
        tail = ragged(tail_q_lens, tail_kv_lens, [pages[i] for i in kept], page_size, device, trees, deterministic)

    local = None
    if chunk:
        if chunk % page_size or parents is not None:
            raise ValueError(f"chunk is {chunk}; it must be a multiple of {page_size}, without parents")
        parts = [part for request in zip(q_lens, kv_lens, pages, strict=True)
                 for part in _in_chunks(*request, page_size, chunk)]  # fmt: skip
        own_q, own_kv, own_pages = (list(each) for each in zip(*parts, strict=True))
        local = ragged(own_q, own_kv, own_pages, page_size, device)

    width = max(n_pages, default=0) or 1
    flat, padding = array("i"), array("i", bytes(4 * width))
    for own, need in zip(pages, n_pages, strict=True):
        flat.extend(own[:need])  # 0.1 us if `own` is such an array too
        if need < width:
            flat.extend(padding[need:])
    table = np.array(flat).reshape(n, width)
    contexts = [kv - q for q, kv in zip(q_lens, kv_lens, strict=True)]
    ancestors = None
    q_start, position, slots = _rows(q_lens, contexts, pages, page_size)
    if parents is not None:
        ancestors, position = _trees(q_lens, parents, position)

    n_drafted = max((len(own) for own in parents or () if own is not None), default=0)
    tables = HostTables(q_start, np.array(kv_lens, np.int32), table, slots, position, ancestors)
    shared = tuple(subtrees(table, contexts, page_size))
    whole = from_host(tables, tuple(q_lens), tuple(kv_lens), shared, n_drafted, deterministic, tail, device)
    return whole if local is None else whole._replace(local=local)


def from_host(
    tables: HostTables, q_lens: tuple[int, ...], kv_lens: tuple[int, ...], shared: tuple[Subtree, ...], n_drafted: int,
    deterministic: bool, tail: Ragged | None, device: torch.device | str,
) -> Ragged:  # fmt: skip
    """Copies `tables` to `device` and returns a batch with these tables. The other arguments become fields of the
    batch: see `Ragged`. shared: becomes `subtrees`."""
    *always, ancestors = tables
    q_start, kv_len, table, slots, position = (to_device(each, device) for each in always)
    masks = None if ancestors is None else to_device(ancestors, device)
    return Ragged(
        q_start, kv_len, table, slots, position, q_lens, kv_lens, {}, shared, masks, n_drafted, deterministic, tail,
        tables,
    )  # fmt: skip


def _rows(
    q_lens: Sequence[int], contexts: Sequence[int], pages: Sequence[Sequence[int]], page_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the tables `q_start` [n_requests + 1], `position` [n_rows] and `slots` [n_rows] of a batch without draft
    trees; see `Ragged`. contexts: how many tokens of each request are in KV before this step."""
    position, slots = array("i"), array("q")
    for q_len, at, own in zip(q_lens, contexts, pages, strict=True):
        if q_len == 1:  # most requests; saves a few calls
            position.append(at)
            slots.append(own[at // page_size] * page_size + at % page_size)
            continue
        position.extend(range(at, at + q_len))
        for page in range(at // page_size, -(-(at + q_len) // page_size)):
            first = page * page_size
            begin, end = max(at - first, 0), min(at + q_len - first, page_size)
            slots.extend(range(own[page] * page_size + begin, own[page] * page_size + end))
    q_start = np.array([0, *accumulate(q_lens)], np.int32)
    return q_start, np.array(position, np.int32), np.array(slots, np.int64)


def _in_chunks(
    q_len: int, kv_len: int, pages: Sequence[int], page_size: int, chunk: int
) -> Iterator[tuple[int, int, Sequence[int]]]:
    """Yields for each chunk in which a request has rows: the number of these rows, the number of the chunk's keys up to
    the last row, and the chunk's pages."""
    at = kv_len - q_len
    while at < kv_len:
        first = at // chunk * chunk
        end = min(first + chunk, kv_len)
        yield end - at, end - first, pages[first // page_size : -(-end // page_size)]
        at = end


def _last_rows(parents: Sequence[int] | None, n: int) -> list[int] | None:
    """Cuts a draft tree down to its last n rows, and returns their parents. A parent is the index of a row, counted
    from the first of these n rows; -1 if it is not one of them. None if `parents` is None: the rows are a chain.

    The rows that are cut off must be a chain that leads to the tree.
    """
    return None if parents is None else [max(-1, parent - len(parents) + n) for parent in parents[len(parents) - n :]]


def _trees(
    q_lens: Sequence[int], parents: Sequence[Sequence[int] | None], position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (the ancestor masks int64 [n_rows], the positions int32 [n_rows]) of a batch with draft trees; see
    `Ragged`. position: the positions as if each request were a chain. ValueError: an item of `parents` is not a
    tree."""
    masks: list[int] = []
    depth: list[int] = position.tolist()
    for q_len, own in zip(q_lens, parents, strict=True):
        if own is None:
            masks += [ALL_KEYS] * q_len
            continue
        if len(own) != q_len or q_len > MAX_DRAFT or any(not -1 <= parent < j for j, parent in enumerate(own)):
            raise ValueError(f"{list(own)} is no tree of {q_len} rows (at most {MAX_DRAFT})")
        row, before = len(masks), (1 << MAX_DRAFT - q_len) - 1
        bit, start = before + 1, depth[row] if q_len else 0
        for j, parent in enumerate(own):
            masks.append((masks[row + parent] if parent >= 0 else before) | bit)
            depth[row + j] = depth[row + parent] + 1 if parent >= 0 else start
            bit <<= 1
    return np.array(masks, np.uint64).view(np.int64), np.array(depth, np.int32)


def to_device(array: np.ndarray, device: torch.device | str) -> Tensor:
    """Copies a host array to `device`. A copy to a GPU uses pinned memory and is asynchronous."""
    host = torch.from_numpy(array)
    if device == CPU:
        return host
    kind = device.partition(":")[0] if isinstance(device, str) else device.type  # `type` takes 0.5 us
    if kind == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)
