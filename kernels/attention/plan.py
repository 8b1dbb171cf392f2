"""Cuts a step's attention into work items: an item says which rows of q read which keys. Does not import torch.

Requests that begin with the same KV pages form a subtree. If it saves time, one item reads the keys of a subtree once
for all of its requests, so this item holds rows of several requests. Each of these rows then has one more partial
result to merge (Hydragen, Juravsky et al., 2024; the choice by cost follows FastTree, Pan et al., 2025).
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

MIN_SPLIT = 256  # keys per part of a split item, at least: with fewer, the merge costs more than the split saves
LARGE_SPLIT = 2, 512
"""The values of WAVES and MIN_SPLIT for large items on a GPU, measured on an H100. Large items are split less than
small ones, since each part writes a partial result for each of its rows, and large items have many rows."""
ALIGN = 64  # items begin at multiples of this, or where a shared prefix ends, so they have whole blocks and pages
WAVES = 4  # items per multiprocessor to aim for when items are split
CHUNK = 256  # keys per item of a deterministic plan; another number would change the last bits of results
MERGE_KEYS = {"cpu": 48.0, "cuda": 384.0}
"""The argument `merge_keys` of `plan`, by device type. On a CPU, sharing 48 keys per row takes 0.85 to 1.02 times as
long as separate reads. On an H100, sharing 256 keys takes 1.2 times as long, and sharing 512 takes 0.95 times."""
MAX_DRAFT = 64  # rows of a draft tree, at most: an ancestor mask covers the last 64 keys of a request


class Subtree(NamedTuple):
    """A prefix that several requests share: their first `n_keys` keys are in the same pages. All of these keys were
    computed before this step."""

    requests: tuple[int, ...]
    n_keys: int


class AttentionPlan(NamedTuple):
    """The work items of one step's attention. All layers with the same window and head counts use the same plan.

    small, large  the items for the small and for the large tile, int32 [n_items, 8]; those that read most keys first,
                  unless deterministic. Columns: 0: first entry in `rows`; 1: number of rows; 2: request whose pages are
                  read; 3: first key; 4: end of keys; 5: position of the first row (each further row is one position
                  later); 6: first key that the ancestor mask covers; 7: 1 if the item reads the first keys of the text
                  (`AttentionOptions.first`): it then takes queries from `first_q` and applies no window; else 0
    rows          int32 [n, 2]: row of q; index of its partial result (-1: the item reads all keys of the row, and
                  writes the final result)
    merges        int32 [n_split_rows, 4]: row of q, its first partial result, number of partial results, 0
    n_partials    number of all partial results
    """

    small: np.ndarray
    large: np.ndarray
    rows: np.ndarray
    merges: np.ndarray
    n_partials: int


class Tiles(NamedTuple):
    """How many rows of q one item of each kind can hold. (A tile has a row for each of these rows and each query head
    of a group.)"""

    small: int
    large: int
    shared: int  # of a large item with rows of several requests
    few: int  # of a small item with rows of several requests that share many keys


def subtrees(table: np.ndarray, contexts: Sequence[int], page_size: int) -> list[Subtree]:
    """Finds the shared prefixes of a batch. Returns parents before children.

    table [n, max_pages]: page ids, padded. contexts: how many tokens of each request are in KV before this step. Pages
    that the step writes to are never shared.
    """
    n = len(table)
    if n < 2 or len(set(table[:, 0].tolist())) == n:
        return []
    flat = [row.tobytes() for row in table]
    order = sorted(range(n), key=flat.__getitem__)  # any order works that puts equal prefixes side by side
    paths, full = table[order], np.array(contexts)[order] // page_size
    same = paths[1:] == paths[:-1]
    depths = np.where(same.all(1), table.shape[1], same.argmin(1))
    depths = np.minimum(depths, np.minimum(full[1:], full[:-1]))

    found: list[Subtree] = []  # children first: an interval of `order` ends where the depth drops
    stack: list[tuple[int, int]] = []  # open intervals: depth, left end
    for i, depth in enumerate((*depths.tolist(), 0)):
        left = i
        while stack and stack[-1][0] > depth:
            deepest, left = stack.pop()
            found.append(Subtree(tuple(sorted(order[left : i + 1])), deepest * page_size))
        if depth > 0 and (not stack or stack[-1][0] < depth):
            stack.append((depth, left))
    return found[::-1]


def plan(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    tiles: Tiles,
    programs: tuple[int, int],
    n_processors: int,
    window: int = 0,
    first: int = 0,
    shared: Sequence[Subtree] = (),
    merge_keys: float = 0.0,
    large_split: tuple[int, int] | None = None,
    deterministic: bool = False,
) -> AttentionPlan:
    """Cuts the attention of a ragged batch into work items. If there are too few items to occupy all processors, items
    that read many keys are split.

    A request whose rows fit a small tile becomes one small item, any other becomes one or more large items. If several
    items read keys for one row, the partial results of the row are numbered in the order of these keys.

    q_lens         number of rows of q, by request
    kv_lens        number of keys, including those of the rows of q, by request
    tiles          how many rows an item can hold
    programs       Triton programs per small item and per large item: the number of KV heads if a program computes one
                   KV head; 1 if it computes all heads
    n_processors   multiprocessors of the GPU; on the CPU, threads
    window         number of keys that a row sees, including its own; 0: all
    first          with a window: number of keys at the beginning of the text that each row sees too. Separate items
                   read these keys, except where the window hides nothing
    shared         subtrees that may be read once for several requests, parents first
    merge_keys     cost of merging one more partial result of a row, as the number of keys that an item reads in that
                   time. A subtree is shared if this saves more reads of keys than its merges cost
    large_split    for splitting large items: (items per processor to aim for, least number of keys per part); None: as
                   for small items
    deterministic  no item reads across a multiple of CHUNK. Then the order in which a row's sum is computed depends
                   only on the row's position, `window` and `first`, not on the batch
    """
    is_plain = not window and not deterministic
    if is_plain and not shared and max(q_lens, default=0) == min(q_lens, default=0) == 1:
        longest = max(kv_lens)
        if n_processors == 1 or longest < 2 * _split_size(sum(kv_lens), programs[0], WAVES * n_processors, MIN_SPLIT):
            return _decodes(kv_lens)
    first_rows = [0, *itertools.accumulate(q_lens)]
    align = CHUNK if deterministic else ALIGN
    if deterministic:
        shared = [Subtree(requests, n_keys // CHUNK * CHUNK) for requests, n_keys in shared]
    begins, small, large = _share(q_lens, kv_lens, first_rows, tiles, window, first, align, shared, merge_keys)
    for request, (q_len, kv_len, begin) in enumerate(zip(q_lens, kv_lens, begins, strict=True)):
        if q_len == 1 and is_plain:  # the general case below gives the same in twice the time; most rows are decodes
            small.append(((first_rows[request],), request, begin, kv_len, kv_len - 1, kv_len - MAX_DRAFT, begin > 0, 0))
            continue
        size, items = (tiles.small, small) if q_len <= tiles.small else (tiles.large, large)
        row, context = first_rows[request], kv_len - q_len
        for at, n in _tiles(context, q_len, size, CHUNK if deterministic else 0):
            position = context + at
            # The position of a row of a draft tree can be smaller than its index in the cache.
            nearest = context if q_len <= MAX_DRAFT and not deterministic else position
            start = max(begin, _oldest(nearest, window, align))
            rows, end, tail = range(row + at, row + at + n), position + n, kv_len - MAX_DRAFT
            is_part = bool(window) or position >= CHUNK if deterministic else begin > 0
            if first and (deterministic or begin > first or end > window):
                is_part = True
                items.append((rows, request, 0, min(first, end), position, tail, True, 1))
            elif first:
                start, is_part = 0, False
            if start < end:
                items.append((rows, request, start, end, position, tail, is_part, 0))
    if deterministic:
        return _tables(_chunks(small), _chunks(large), first_rows[-1])
    n_small, n_large = programs
    if n_processors > 1:
        waves, least = large_split or (WAVES, MIN_SPLIT)
        small = _split(small, n_small, WAVES * n_processors, MIN_SPLIT)
        large = _split(large, n_large, waves * n_processors, least)
    return _tables(_by_length(small), _by_length(large), first_rows[-1])


# rows, request, first key, end, position of the first row, first key of the ancestor mask, whether other items read
# other keys for these rows, whether it reads the first keys of the text (1) or others (0)
_Item = tuple[Sequence[int], int, int, int, int, int, bool, int]


def _oldest(position: int, window: int, align: int) -> int:
    """The first key that a row attends to, rounded down to a multiple of `align`."""
    return max(0, position - window + 1) // align * align if window else 0


def _tiles(context: int, q_len: int, size: int, cut: int) -> Iterator[tuple[int, int]]:
    """Yields (first row, number of rows) of each tile of a request. No tile crosses a multiple of `cut`; 0: no cut."""
    first = 0
    while first < q_len:
        n = min(size, q_len - first, cut - (context + first) % cut if cut else size)
        yield first, n
        first += n


def _share(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    first_rows: Sequence[int],
    tiles: Tiles,
    window: int,
    first: int,
    align: int,
    shared: Sequence[Subtree],
    merge_keys: float,
) -> tuple[list[int], list[_Item], list[_Item]]:
    """Decides which subtrees are read once for several requests. Goes through `shared` from parents to children. If
    sharing a subtree does not pay, its children may still be shared.

    Returns (for each request, the first key that it does not share; the small items that read shared keys; the large
    items that read shared keys). A request that shares nothing has `first`.
    """
    begins = [first] * len(q_lens)
    small: list[_Item] = []
    large: list[_Item] = []
    for requests, n_keys in shared:
        needed = [(begins[i], i) for i in requests if q_lens[i]]
        if window:
            needed = [(max(begin, _oldest(kv_lens[i] - q_lens[i], window, align)), i) for begin, i in needed]
        if needed and n_keys <= max(needed)[0]:
            needed = [(start, i) for start, i in needed if start < n_keys]
        n_rows = sum([q_lens[i] for _, i in needed])
        if len(needed) < 2:
            continue
        start = min(needed)[0]
        is_long = n_keys - start >= 4 * MIN_SPLIT  # enough splits for all processors
        size, items = tiles.shared, large
        if n_rows <= tiles.small or (n_rows <= tiles.few and is_long):
            size, items = tiles.few, small
        alone = sum([(n_keys - at) * (1 if q_lens[i] <= tiles.small else -(-q_lens[i] // tiles.large))
                     for at, i in needed])  # fmt: skip
        if alone - (n_keys - start) * -(-n_rows // size) <= merge_keys * n_rows:
            continue
        rows = [first_rows[i] for _, i in needed]
        if n_rows > len(rows):
            rows = [row for _, i in needed for row in range(first_rows[i], first_rows[i] + q_lens[i])]
        for at in range(0, n_rows, size):  # every row comes after all of these keys
            items.append((rows[at : at + size], needed[0][1], start, n_keys, n_keys, n_keys, True, 0))
        for _, i in needed:
            begins[i] = n_keys
    return begins, small, large


def _split(items: list[_Item], n_programs: int, n_wanted: int, least: int) -> list[_Item]:
    """Splits items with many keys into parts of `least` keys or more, to get about `n_wanted` programs. n_programs:
    programs per item."""
    size = _split_size(sum([item[3] - item[2] for item in items]), n_programs, n_wanted, least)
    cut: list[_Item] = []
    for item in items:
        n_splits = (item[3] - item[2]) // size
        if n_splits < 2:
            cut.append(item)
            continue
        rows, request, start, end, position, tail, is_part, which = item
        step = -(-(end - start) // n_splits)
        step = -(-step // ALIGN) * ALIGN
        is_part = is_part or step < end - start
        cut += [
            (rows, request, at, min(at + step, end), position, tail, is_part, which) for at in range(start, end, step)
        ]
    return cut


def _by_length(items: list[_Item]) -> list[_Item]:
    """Sorts items by the number of keys that they read, most keys first."""
    return sorted(items, key=lambda item: item[3] - item[2], reverse=True)


def _split_size(n_keys: int, n_programs: int, n_wanted: int, least: int) -> int:
    """How many keys a part of a split item should have, at least `least`, so that there are about `n_wanted` programs.
    n_keys: the keys of all items together. n_programs: programs per item."""
    return max(least, n_keys * n_programs // n_wanted)


def _decodes(kv_lens: Sequence[int]) -> AttentionPlan:
    """Returns the plan of decodes that share no keys, have no window and are not split, as in most steps. The general
    case would return the same plan, but takes longer."""
    small: list[int] = []
    for i in sorted(range(len(kv_lens)), key=kv_lens.__getitem__, reverse=True):
        end = kv_lens[i]
        small += (i, 1, i, 0, end, end - 1, end - MAX_DRAFT, 0)
    return AttentionPlan(np.array(small, np.int32).reshape(-1, 8), *_rows_alone(len(kv_lens)), 0)


@functools.lru_cache(256)
def _rows_alone(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the tables `large`, `rows` and `merges` of an AttentionPlan for n decodes, if each is one small item.
    They depend only on n."""
    rows = np.full((n, 2), -1, np.int32)
    rows[:, 0] = np.arange(n)
    return np.empty((0, 8), np.int32), rows, np.empty((0, 4), np.int32)


def _chunks(items: list[_Item]) -> list[_Item]:
    """Splits items so that none reads keys on both sides of a multiple of CHUNK."""
    return [
        (rows, request, max(at, start), min(at + CHUNK, end), position, tail, is_part, which)
        for rows, request, start, end, position, tail, is_part, which in items
        for at in range(start // CHUNK * CHUNK, end, CHUNK)
    ]


def _tables(small: list[_Item], large: list[_Item], n_rows: int) -> AttentionPlan:
    """Builds the tables of an AttentionPlan from its items. The partial results of a row get consecutive numbers, in
    the order of their keys."""
    parts = [item for items in (small, large) for item in items if item[6]]  # read only a part of a row's keys
    counts = [len(item[0]) for item in parts]
    entries = itertools.accumulate(counts, initial=n_rows)  # index in `rows`, where they follow one entry per row
    tables = []
    for items in (small, large):
        table: list[int] = []  # flat: numpy converts tuples slowly
        for rows, request, start, end, position, tail, is_part, which in items:
            table += (next(entries) if is_part else rows[0], len(rows), request, start, end, position, tail, which)
        tables.append(np.array(table, np.int32).reshape(-1, 8))

    all_rows = np.full((n_rows + sum(counts), 2), -1, np.int32)
    all_rows[:n_rows, 0] = np.arange(n_rows)
    if not parts:
        return AttentionPlan(tables[0], tables[1], all_rows, np.empty((0, 4), np.int32), 0)
    all_rows[n_rows:, 0] = listed = np.fromiter(itertools.chain.from_iterable([item[0] for item in parts]), np.int32)
    keys = listed.astype(np.int64) << 32 | np.repeat(np.array([item[2] for item in parts]), counts)
    all_rows[n_rows + np.argsort(keys), 1] = np.arange(len(listed))
    n_parts = np.bincount(listed, minlength=n_rows)
    split = np.flatnonzero(n_parts)
    merges = np.zeros((len(split), 4), np.int32)
    merges[:, 0], merges[:, 2] = split, n_parts[split]
    merges[:, 1] = np.cumsum(merges[:, 2]) - merges[:, 2]
    return AttentionPlan(tables[0], tables[1], all_rows, merges, len(listed))
