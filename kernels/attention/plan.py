"""From counts to work items: who reads which keys for which rows. No torch, no tokens, no chance."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MIN_SPLIT = 256  # keys per item: below this, merging costs more than a second reader saves
ALIGN = 64  # items begin at multiples of this: whole key blocks, whole pages
WAVES = 4  # items per multiprocessor to aim for when long reads are split


class Plan(NamedTuple):
    """A step's attention, the same for all layers that share window and head counts.

    small, large  items by tile shape, longest read first. int32 [n_items, 8]: first row of q, rows, position of the
                  first row, request, first key, end of keys, first partial row (-1: the item sees all keys of its
                  rows and writes their result), 0
    merges        int32 [n_split_rows, 4]: row of q, its first partial row, step to its next one, how many it has
    n_partials    rows of partial results
    """

    small: np.ndarray
    large: np.ndarray
    merges: np.ndarray
    n_partials: int


class Tiles(NamedTuple):
    """Rows of q that one item of each shape may hold (a tile's rows are these times the heads of a group)."""

    small: int
    large: int


def plan(
    q_lens: Sequence[int], kv_lens: Sequence[int], *, tiles: Tiles, n_kv_heads: int, n_processors: int, window: int = 0
) -> Plan:
    """Cut a ragged batch into items, and long reads into splits where there are too few items for the machine.

    A request whose rows fit a small tile is one small item, any other a row of large ones. Every program handles one
    KV head of one item, so `n_kv_heads` programs share an item. Costs about a microsecond per item.
    """
    tall: list[tuple[int, ...]] = []
    low: list[tuple[int, ...]] = []
    row = 0
    for request, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        size, into = (tiles.small, low) if q_len <= tiles.small else (tiles.large, tall)
        context = kv_len - q_len
        for first in range(0, q_len, size):
            n = min(size, q_len - first)
            position = context + first
            oldest = max(0, position - window + 1) // ALIGN * ALIGN if window else 0
            into.append((row + first, n, position, request, oldest, position + n))
        row += q_len

    merges: list[tuple[int, int, int, int]] = []
    n_partials = 0
    done = []
    for whole in (low, tall):
        n_keys = sum(item[5] - item[4] for item in whole)
        split = max(MIN_SPLIT, n_keys * n_kv_heads // (WAVES * n_processors)) if n_processors > 1 else n_keys
        items: list[tuple[int, ...]] = []
        for item in whole:
            first_row, n, position, request, lo, hi = item
            n_splits = max(1, (hi - lo) // max(1, split))
            if n_splits == 1:
                items.append((*item, -1, 0))
                continue
            size = -(-(hi - lo) // n_splits)
            size = -(-size // ALIGN) * ALIGN
            starts = range(lo, hi, size)
            for s, start in enumerate(starts):
                items.append((first_row, n, position, request, start, min(start + size, hi), n_partials + s * n, 0))
            merges.extend((first_row + j, n_partials + j, n, len(starts)) for j in range(n))
            n_partials += n * len(starts)
        items.sort(key=lambda item: item[4] - item[5])
        done.append(np.array(items, np.int32).reshape(-1, 8))
    return Plan(done[0], done[1], np.array(merges, np.int32).reshape(-1, 4), n_partials)
