"""From counts and pages to work items: who reads which keys for which rows. No torch, no tokens, no chance.

Requests that begin with the same pages have a subtree of the batch in common. Its keys are read once for all rows below
it, where that pays: an item then holds rows of several requests, and each of them merges one more partial result
(Hydragen, Juravsky et al., 2024; the choice by cost is FastTree's, Pan et al., 2025).
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

MIN_SPLIT = 256  # keys per item: below this, merging costs more than a second reader saves
ALIGN = 64  # items begin at multiples of this, or at the end of a shared run: whole key blocks, whole pages
WAVES = 4  # items per multiprocessor to aim for when long reads are split
CHUNK = 256  # keys of an item in a deterministic plan; results depend on it, and on nothing else of a plan
MERGE_KEYS = {"cpu": 48.0, "cuda": 192.0}
"""`merge_keys` of plans, by type of device. `merging.settle` measures it; until then, what 32/8 heads of 64 come to on
2 cores of an AMD EPYC Zen 5, and where published kernels begin to gain."""
DRAFT = 64  # rows of a request that a mask of ancestors may speak of: its last ones


class Subtree(NamedTuple):
    """Requests whose first `n_keys` keys lie in the same pages, all before their rows of this step."""

    requests: tuple[int, ...]
    n_keys: int


class AttentionPlan(NamedTuple):
    """A step's attention, the same for all layers that share window and head counts.

    small, large  items by tile shape, longest read first. int32 [n_items, 8]: first entry of `rows`, how many, request
                  whose pages are read, first key, end of keys, position of the first row (a row behind it stands one
                  further), first key that the row's mask of ancestors speaks of, 0
    rows          int32 [n, 2]: row of q; where its partial result goes (-1: the item sees all its keys, and writes out)
    merges        int32 [n_split_rows, 4]: row of q, its first partial result, how many it has, 0
    n_partials    partial results
    """

    small: np.ndarray
    large: np.ndarray
    rows: np.ndarray
    merges: np.ndarray
    n_partials: int


class Tiles(NamedTuple):
    """Rows of q that one item of each shape may hold (a tile's rows are these times the heads of a group)."""

    small: int
    large: int
    shared: int  # of a large item whose rows are of several requests
    few: int  # rows of several requests that are a small item, if it is long


def subtrees(table: np.ndarray, contexts: Sequence[int], page_size: int) -> list[Subtree]:
    """What a batch has in common, parents before their children.

    table [n, max_pages]: page ids, padded; contexts: tokens of each request that are in KV before this step. Pages that
    a step writes to are never shared.
    """
    n = len(table)
    if n < 2 or len(set(table[:, 0].tolist())) == n:
        return []
    flat = [row.tobytes() for row in table]
    order = sorted(range(n), key=flat.__getitem__)  # any order will do in which equal beginnings lie together
    paths, full = table[order], np.array(contexts)[order] // page_size
    same = paths[1:] == paths[:-1]
    depths = np.where(same.all(1), table.shape[1], same.argmin(1))
    depths = np.minimum(depths, np.minimum(full[1:], full[:-1]))

    found: list[Subtree] = []  # children first: an interval of `order` ends where the depth falls
    open_: list[tuple[int, int]] = []  # depth, left end
    for i, depth in enumerate((*depths.tolist(), 0)):
        left = i
        while open_ and open_[-1][0] > depth:
            deepest, left = open_.pop()
            found.append(Subtree(tuple(sorted(order[left : i + 1])), deepest * page_size))
        if depth > 0 and (not open_ or open_[-1][0] < depth):
            open_.append((depth, left))
    return found[::-1]


def plan(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    tiles: Tiles,
    programs: tuple[int, int],
    n_processors: int,
    window: int = 0,
    shared: Sequence[Subtree] = (),
    merge_keys: float = 0.0,
    deterministic: bool = False,
) -> AttentionPlan:
    """Cut a ragged batch into items, and long reads into splits where there are too few items for the machine.

    A request whose rows fit a small tile is one small item, any other a row of large ones. A row's partial results lie
    in the order of their keys.

    programs    how many programs share an item, small and large: one for each KV head, or one for all
    shared      what may be read once for several requests, parents first
    merge_keys  what one more partial result of a row costs, told in keys that an item reads in the same time: a subtree
                is shared if that saves more
    deterministic
                every item is one chunk of CHUNK keys, cut at multiples of it whatever else runs. What a row sums, and
                in which order, then follows from its position and window: who shares an item changes no bit
    """
    first_rows = [0, *itertools.accumulate(q_lens)]
    align = CHUNK if deterministic else ALIGN
    if deterministic:
        shared = [Subtree(requests, n_keys // CHUNK * CHUNK) for requests, n_keys in shared]
    begins, low, tall = _share(q_lens, kv_lens, first_rows, tiles, window, align, shared, merge_keys)
    is_plain = not window and not deterministic
    for request, (q_len, kv_len, begin) in enumerate(zip(q_lens, kv_lens, begins, strict=True)):
        if q_len == 1 and is_plain:  # what follows comes to the same, in twice the time; most rows are such
            low.append(((first_rows[request],), request, begin, kv_len, kv_len - 1, kv_len - DRAFT, begin > 0))
            continue
        size, into = (tiles.small, low) if q_len <= tiles.small else (tiles.large, tall)
        row, context = first_rows[request], kv_len - q_len
        for first, n in _tiles(context, q_len, size, CHUNK if deterministic else 0):
            position = context + first
            # A row of a tree of drafts stands nearer to the context than its place in the cache says.
            nearest = context if q_len <= DRAFT and not deterministic else position
            start = max(begin, _oldest(nearest, window, align)) if window else begin
            rows = range(row + first, row + first + n)
            is_part = bool(window) or position >= CHUNK if deterministic else begin > 0
            into.append((rows, request, start, position + n, position, kv_len - DRAFT, is_part))
    if deterministic:
        return _tables(_chunks(low), _chunks(tall), first_rows[-1])
    small, large = (_split(items, n, n_processors) for items, n in zip((low, tall), programs, strict=True))
    return _tables(small, large, first_rows[-1])


# rows, request, first key, end, position of the first row, tail, whether other items read other keys for these rows
_Item = tuple[Sequence[int], int, int, int, int, int, bool]


def _oldest(position: int, window: int, align: int) -> int:
    """The first key that a row sees, or an aligned one before it."""
    return max(0, position - window + 1) // align * align if window else 0


def _tiles(context: int, q_len: int, size: int, cut: int) -> Iterator[tuple[int, int]]:
    """(first row, how many) of each tile of a request; none reaches across a multiple of `cut` (0: any may)."""
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
    align: int,
    shared: Sequence[Subtree],
    merge_keys: float,
) -> tuple[list[int], list[_Item], list[_Item]]:
    """The key at which each request's own reads begin (0: it shares none), and the items of shared reads by shape.

    A subtree that does not pay is left to those below it, with its keys.
    """
    begins = [0] * len(q_lens)
    low: list[_Item] = []
    tall: list[_Item] = []
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
        is_long = n_keys - start >= 4 * MIN_SPLIT  # enough for all processors, though no two have the same keys
        size, into = tiles.shared, tall
        if n_rows <= tiles.small or (n_rows <= tiles.few and is_long):
            size, into = tiles.few, low
        alone = sum([(n_keys - at) * (1 if q_lens[i] <= tiles.small else -(-q_lens[i] // tiles.large))
                     for at, i in needed])  # fmt: skip
        if alone - (n_keys - start) * -(-n_rows // size) <= merge_keys * n_rows:
            continue
        rows = [first_rows[i] for _, i in needed]
        if n_rows > len(rows):
            rows = [row for _, i in needed for row in range(first_rows[i], first_rows[i] + q_lens[i])]
        for at in range(0, n_rows, size):  # every row stands behind all of these keys
            into.append((rows[at : at + size], needed[0][1], start, n_keys, n_keys, n_keys, True))
        for _, i in needed:
            begins[i] = n_keys
    return begins, low, tall


def _split(items: list[_Item], n_programs: int, n_processors: int) -> list[_Item]:
    """Long reads cut, where there are too few items to go round; the longest read comes first."""
    if n_processors > 1:
        n_keys = sum([item[3] - item[2] for item in items])
        size = max(MIN_SPLIT, n_keys * n_programs // (WAVES * n_processors))
        cut: list[_Item] = []
        for item in items:
            n_splits = (item[3] - item[2]) // size
            if n_splits < 2:
                cut.append(item)
                continue
            rows, request, start, end, position, tail, is_part = item
            step = -(-(end - start) // n_splits)
            step = -(-step // ALIGN) * ALIGN
            is_part = is_part or step < end - start
            cut += [(rows, request, at, min(at + step, end), position, tail, is_part) for at in range(start, end, step)]
        items = cut
    items.sort(key=_n_keys, reverse=True)
    return items


def _chunks(items: list[_Item]) -> list[_Item]:
    """Reads cut at multiples of CHUNK, where they all begin."""
    return [
        (rows, request, at, min(at + CHUNK, end), position, tail, is_part)
        for rows, request, start, end, position, tail, is_part in items
        for at in range(start, end, CHUNK)
    ]


def _n_keys(item: _Item) -> int:
    return item[3] - item[2]


def _tables(small: list[_Item], large: list[_Item], n_rows: int) -> AttentionPlan:
    """Number the partial results, a row's own side by side, and write all down."""
    parts = [item for items in (small, large) for item in items if item[6]]  # they read some of their rows' keys
    counts = [len(item[0]) for item in parts]
    entries = itertools.accumulate(counts, initial=n_rows)  # of `rows`: theirs lie behind one entry for each row
    tables = []
    for items in (small, large):
        table: list[int] = []  # flat: numpy takes long over tuples
        for rows, request, start, end, position, tail, is_part in items:
            table += (next(entries) if is_part else rows[0], len(rows), request, start, end, position, tail, 0)
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
