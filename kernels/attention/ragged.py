"""What attention must know about a step: which rows belong to which request, and where its keys and values lie."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.plan import DRAFT, Subtree, subtrees

FEW = 128
"""Rows up to which they are laid out one by one: numpy's calls cost more than its work."""

WORTH = 64
"""So many rows that nobody wants are worth a tail: two plans, and not one."""

ALL = (1 << DRAFT) - 1
"""The mask of a row that sees all up to its own."""


class Ragged(NamedTuple):
    """A ragged batch over paged KV, built once per step and shared by all layers.

    Requests lie one behind the other in the rows of q. A request with one row is a decode, one with more a chunk of
    prefill; nothing else tells them apart. Query row j of request i has its key at `kv_len[i] - q_lens[i] + j`, and
    sees the keys up to its own. In a tree of drafts it sees those before the tree and, of the tree, its ancestors and
    itself.
    """

    q_start: Tensor  # int32 [n_requests + 1]: rows q_start[i]:q_start[i + 1] of q belong to request i
    kv_len: Tensor  # int32 [n_requests]: tokens in KV once this step's rows are written
    page_table: Tensor  # int32 [n_requests, max_pages], padded with 0
    slots: Tensor  # int64 [n_rows]: page * page_size + offset, where each row's K and V go
    q_lens: tuple[int, ...]  # host copy of the row counts
    kv_lens: tuple[int, ...]  # host copy of kv_len
    subtrees: tuple[Subtree, ...] = ()  # what requests have in common, parents first
    seen: Tensor | None = None  # int64 [n_rows]: bit b: the row sees position kv_len - 64 + b; None: all up to its own
    position: Tensor | None = None  # int32 [n_rows]: where each row stands in its text, for windows
    n_drafted: int = 0  # rows of the largest tree of drafts
    deterministic: bool = False  # a row's result is the same to the bit in whatever batch it stands
    plans: dict[Hashable, Any] | None = None  # what a path derived from the above, kept for the step's other layers
    tail: "Ragged | None" = None  # the rows that are wanted, where these are far fewer: a last layer computes no others

    def check(self, window: int) -> None:
        """Raise ValueError where a tree of drafts does not fit into a layer's window."""
        if 0 < window < self.n_drafted:
            raise ValueError(f"a window of {window} is smaller than a tree of {self.n_drafted} drafts")


def ragged(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    pages: Sequence[Sequence[int]],
    page_size: int,
    device: torch.device | str = "cpu",
    parents: Sequence[Sequence[int] | None] | None = None,
    deterministic: bool = False,
    wanted: Sequence[int] | None = None,
) -> Ragged:
    """Build a batch from counts and page ids.

    Request i has `q_lens[i]` new rows and `kv_lens[i]` tokens with them; page j of `pages[i]` holds its positions
    `j * page_size` and up. Pages past the last token are allowed and not read. Copies to a GPU are asynchronous.

    parents: for a request whose rows are a tree of drafts, the row that each row follows, counted from its first (-1:
    it follows what was there before); None: each row follows the one before it. At most 64 rows; parents come first.

    wanted: of how many of each request's last rows a model's result is wanted; None: of whichever.

    Raises ValueError when a request has fewer tokens than rows, fewer pages than its tokens need, or no such tree.
    """
    n = len(q_lens)
    n_pages = [-(-kv // page_size) for kv in kv_lens]
    for q, kv, need, have in zip(q_lens, kv_lens, n_pages, pages, strict=True):
        if q > kv:
            raise ValueError(f"a request has {q} new rows but only {kv} tokens in all")
        if need > len(have):
            raise ValueError(f"{kv} tokens need {need} pages of {page_size}, the request has {len(have)}")

    tail = None
    if wanted is not None and sum(q_lens) - sum(wanted) >= WORTH:
        at = [i for i, n_wanted in enumerate(wanted) if n_wanted]
        trees = None if parents is None else [_cut(parents[i], wanted[i]) for i in at]
        lens = [[of[i] for i in at] for of in (wanted, kv_lens)]
        tail = ragged(*lens, [pages[i] for i in at], page_size, device, trees, deterministic)

    table = np.zeros((n, max(n_pages, default=0) or 1), np.int32)
    for row, own, need in zip(table, pages, n_pages, strict=True):
        row[:need] = own[:need]
    contexts = [kv - q for q, kv in zip(q_lens, kv_lens, strict=True)]
    if parents is None and all(q == 1 for q in q_lens):  # decodes, most steps: numpy's calls cost more than its work
        q_start = np.arange(n + 1, dtype=np.int32)
        seen, depth = None, np.array(contexts, np.int32)
        slots = np.array(
            [own[at // page_size] * page_size + at % page_size for own, at in zip(pages, contexts, strict=True)],
            np.int64,
        )
    else:
        is_few = sum(q_lens) <= FEW
        rows = _few_rows(q_lens, contexts, pages, page_size) if is_few else _rows(q_lens, contexts, table, page_size)
        q_start, depth, slots = rows
        seen = None
        if parents is not None:
            seen, depth = _trees(q_lens, parents, depth)

    return Ragged(
        q_start=to_device(q_start, device),
        kv_len=to_device(np.array(kv_lens, np.int32), device),
        page_table=to_device(table, device),
        slots=to_device(slots, device),
        q_lens=tuple(q_lens),
        kv_lens=tuple(kv_lens),
        subtrees=tuple(subtrees(table, contexts, page_size)),
        seen=None if seen is None else to_device(seen, device),
        position=to_device(depth, device),
        n_drafted=max((len(own) for own in parents or () if own is not None), default=0),
        deterministic=deterministic,
        plans={},
        tail=tail,
    )


def _rows(
    q_lens: Sequence[int], contexts: Sequence[int], table: np.ndarray, page_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ragged's `q_start`, `position` and `slots`, for any batch without trees."""
    q_start = np.zeros(len(q_lens) + 1, np.int64)
    np.cumsum(q_lens, out=q_start[1:])
    request = np.repeat(np.arange(len(q_lens)), q_lens)
    position = np.arange(q_start[-1]) - q_start[request] + np.array(contexts, np.int64)[request]
    slots = table[request, position // page_size].astype(np.int64) * page_size + position % page_size
    return q_start.astype(np.int32), position.astype(np.int32), slots


def _few_rows(
    q_lens: Sequence[int], contexts: Sequence[int], pages: Sequence[Sequence[int]], page_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`_rows`, row by row."""
    q_start, position, slots = [0], [], []
    for q_len, context, own in zip(q_lens, contexts, pages, strict=True):
        q_start.append(q_start[-1] + q_len)
        for at in range(context, context + q_len):
            position.append(at)
            slots.append(own[at // page_size] * page_size + at % page_size)
    return np.array(q_start, np.int32), np.array(position, np.int32), np.array(slots, np.int64)


def _cut(parents: Sequence[int] | None, n: int) -> list[int] | None:
    """A tree's last n rows. Rows before them are one behind the other."""
    return None if parents is None else [max(-1, parent - len(parents) + n) for parent in parents[len(parents) - n :]]


def _trees(
    q_lens: Sequence[int], parents: Sequence[Sequence[int] | None], position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ragged's `seen`, and each row's position in the text that it ends."""
    seen: list[int] = []
    depth: list[int] = position.tolist()
    for q_len, own in zip(q_lens, parents, strict=True):
        if own is None:
            seen += [ALL] * q_len
            continue
        if len(own) != q_len or q_len > DRAFT or any(not -1 <= parent < j for j, parent in enumerate(own)):
            raise ValueError(f"{list(own)} is no tree of {q_len} rows, of which there may be {DRAFT}")
        row, before = len(seen), (1 << DRAFT - q_len) - 1
        bit, start = before + 1, depth[row] if q_len else 0
        for j, parent in enumerate(own):
            seen.append((seen[row + parent] if parent >= 0 else before) | bit)
            depth[row + j] = depth[row + parent] + 1 if parent >= 0 else start
            bit <<= 1
    return np.array(seen, np.uint64).view(np.int64), np.array(depth, np.int32)


def to_device(array: np.ndarray, device: torch.device | str) -> Tensor:
    """A host array on `device`; to a GPU from pinned memory, so that the copy runs behind the host's back."""
    host = torch.from_numpy(array)
    kind = device.partition(":")[0] if isinstance(device, str) else device.type
    if kind == "cpu":
        return host
    if kind == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)
