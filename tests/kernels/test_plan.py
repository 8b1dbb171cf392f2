"""Work items cover each (row, key) pair of attention exactly once."""

import itertools
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from banyan.kernels.attention import plan
from banyan.kernels.attention.plan import AttentionPlan, Subtree, Tiles
from forms import examples

lengths = st.one_of(st.integers(0, 40), st.integers(0, 5000))
PAGE = 16


@examples(
    30,
    200,
    given(
        requests=st.lists(st.tuples(st.integers(0, 90), lengths), max_size=6),
        tiles=st.sampled_from([Tiles(1, 4, 8, 5), Tiles(4, 32, 32, 4), Tiles(16, 16, 16, 16)]),
        window=st.sampled_from([0, 1, 50, 1000]),
        first=st.sampled_from([0, 4, 100]),
        n_processors=st.sampled_from([1, 2, 108]),
        common=st.lists(st.integers(0, 200), min_size=6, max_size=6),
        merge_keys=st.sampled_from([0.0, 20.0, 1e9]),
        deterministic=st.booleans(),
    ),
)
def test_items_cover_every_visible_key_once(
    requests: list[tuple[int, int]],
    tiles: Tiles,
    window: int,
    first: int,
    n_processors: int,
    common: list[int],
    merge_keys: float,
    deterministic: bool,
) -> None:
    first *= window > 0
    q_lens, kv_lens = [q for q, _ in requests], [q + context for q, context in requests]
    table = page_table(kv_lens, common)
    shared = plan.subtrees(table, [context for _, context in requests], PAGE)
    work = plan.plan(
        q_lens, kv_lens, tiles=tiles, programs=(2, 2), n_processors=n_processors, window=window,
        first=first, shared=shared, merge_keys=merge_keys, deterministic=deterministic,
    )  # fmt: skip
    owner = [request for request, n in enumerate(q_lens) for _ in range(n)]
    first_row = [sum(q_lens[:i]) for i in range(len(q_lens))]
    reads: dict[int, list[tuple[int, int, int]]] = {}  # row of q: (first key, end, index of its partial result)
    for items, size in ((work.small, tiles.small), (work.large, max(tiles.large, tiles.shared))):
        for entry, n, request, start, end, position, tail, reads_first in items.tolist():
            assert 1 <= n <= size
            assert start < end
            is_chunk = (
                start in (first, -(-start // plan.CHUNK) * plan.CHUNK) and end <= (start // plan.CHUNK + 1) * plan.CHUNK
            )
            assert not deterministic or is_chunk or reads_first, "not an absolute chunk"
            assert not reads_first or (start == 0 and end <= first)
            entries = work.rows[entry : entry + n].tolist()
            is_complete = {part < 0 for _, part in entries}
            assert len(is_complete) == 1, "the rows of an item are all complete or all partial"
            for j, (row, part) in enumerate(entries):
                owner_id = owner[row]
                row_position = kv_lens[owner_id] - q_lens[owner_id] + row - first_row[owner_id]
                is_own_item = (
                    owner_id == request and position + j == row_position and tail == kv_lens[owner_id] - plan.MAX_DRAFT
                )
                is_shared_item = end <= position == tail <= kv_lens[owner_id] - q_lens[owner_id] and merge_keys < 1e9
                pages_read = slice(start // PAGE, -(-end // PAGE))
                assert is_own_item or is_shared_item
                assert (table[owner_id, pages_read] == table[request, pages_read]).all()
                reads.setdefault(row, []).append((start, end, part))
    check_reads(work, reads, q_lens, kv_lens, window, first)


def page_table(kv_lens: list[int], common: list[int]) -> np.ndarray:
    """Page tables in which request i shares its first `common[i]` pages with the first request."""
    table = np.zeros((len(kv_lens), max(kv_lens, default=0) // PAGE + 1), np.int32)
    for i, row in enumerate(table):
        row[:] = 1000 * (i + 1) + np.arange(len(row))
        row[: common[i]] = table[0, : common[i]]
    return table


def check_reads(
    work: AttentionPlan,
    reads: dict[int, list[tuple[int, int, int]]],
    q_lens: list[int],
    kv_lens: list[int],
    window: int,
    first: int,
) -> None:
    merged = {row: [part + i for i in range(n)] for row, part, n, _ in work.merges.tolist()}
    assert len(merged) == len(work.merges)
    row = 0
    for q_len, kv_len in zip(q_lens, kv_lens, strict=True):
        for position in range(kv_len - q_len, kv_len):
            row_reads = sorted(reads.pop(row))
            oldest = max(0, position - window + 1) if window else 0
            for a, b in itertools.pairwise(row_reads):
                assert a[1] == b[0] or a[1] < b[0] <= oldest, "a key is read twice or not at all"
            assert row_reads[0][0] <= (0 if first else oldest)
            assert row_reads[0][1] >= min(first, position + 1)
            assert row_reads[-1][1] > position
            assert row_reads[-1][1] <= kv_len
            parts = [part for *_, part in row_reads]  # merged in the order of their keys
            assert parts == merged.pop(row, [-1])
            row += 1
    assert not reads
    assert not merged
    used = [part for _, part in work.rows.tolist() if part >= 0]
    assert sorted(used) == list(range(work.n_partials))


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=20), st.sampled_from((1, 2, 8, 132)), st.sampled_from((1, 4))
)
def test_short_way_for_decodes_gives_the_plan_of_the_general_case(
    kv_lens: list[int], n_processors: int, n_programs: int
) -> None:
    def found(shared: list[Subtree]) -> AttentionPlan:
        q_lens, tiles, programs = [1] * len(kv_lens), Tiles(1, 4, 8, 5), (n_programs, 2)
        return plan.plan(q_lens, kv_lens, tiles=tiles, programs=programs, n_processors=n_processors, shared=shared)

    general = found([Subtree((0,), 0)])  # shares nothing, but any subtree turns the short way off
    for short, long in zip(found([]), general, strict=True):
        np.testing.assert_array_equal(short, long, strict=True)


def test_subtree_is_shared_above_the_threshold() -> None:
    shared = [plan.Subtree((0, 1, 2, 3), 320), plan.Subtree((2, 3), 2000)]

    def reads(merge_keys: float) -> list[tuple[int, int, int]]:
        work = plan.plan([1] * 4, [2100] * 4, tiles=Tiles(1, 8, 8, 1), programs=(1, 1), n_processors=1, shared=shared,
                         merge_keys=merge_keys)  # fmt: skip
        return [(n, start, end) for _, n, _, start, end, *_ in work.large.tolist()]

    assert reads(100.0) == [(2, 320, 2000), (4, 0, 320)]  # 240 keys saved for each of four rows, 840 for each of two
    assert reads(300.0) == [(2, 0, 2000)]  # below the threshold: the keys of the upper subtree go to the lower one
    assert reads(1100.0) == []


def test_only_few_long_reads_are_split_over_the_processors() -> None:
    def n_items(kv_lens: list[int], n_processors: int = 132) -> int:
        work = plan.plan(
            [1] * len(kv_lens), kv_lens, tiles=Tiles(1, 8, 8, 1), programs=(8, 8), n_processors=n_processors
        )  # fmt: skip
        return len(work.small)

    assert n_items([32768]) >= 60
    assert n_items([4096] * 256) == 256
    assert n_items([255]) == 1
    assert n_items([32768], n_processors=1) == 1


def test_plan_does_not_import_torch() -> None:
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('plan', {plan.__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
