"""Work items cover every (row, key) that attention must read, once."""

import itertools
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.kernels.attention import plan
from banyan.kernels.attention.plan import Plan, Tiles

lengths = st.one_of(st.integers(0, 40), st.integers(0, 5000))


@settings(max_examples=200, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 90), lengths), max_size=6),
    tiles=st.sampled_from([Tiles(1, 4), Tiles(4, 32), Tiles(16, 16)]),
    window=st.sampled_from([0, 1, 50, 1000]),
    n_processors=st.sampled_from([1, 2, 108]),
)
def test_items_cover_what_rows_see(
    requests: list[tuple[int, int]], tiles: Tiles, window: int, n_processors: int
) -> None:
    q_lens, kv_lens = [q for q, _ in requests], [q + context for q, context in requests]
    made = plan.plan(q_lens, kv_lens, tiles=tiles, n_kv_heads=2, n_processors=n_processors, window=window)
    first_rows = [sum(q_lens[:i]) for i in range(len(q_lens))]
    reads: dict[int, list[tuple[int, int, int]]] = {}  # row of q: (first key, end, partial row)
    for items, size in ((made.small, tiles.small), (made.large, tiles.large)):
        for row, n, position, request, start, end, part, _ in items.tolist():
            assert 1 <= n <= size
            assert start < end
            assert start % plan.ALIGN == 0
            assert position == kv_lens[request] - q_lens[request] + row - first_rows[request]
            for j in range(n):
                reads.setdefault(row + j, []).append((start, end, -1 if part < 0 else part + j))
    check_reads(made, reads, q_lens, kv_lens, window)


def check_reads(
    made: Plan, reads: dict[int, list[tuple[int, int, int]]], q_lens: list[int], kv_lens: list[int], window: int
) -> None:
    merged = {row: [part + i * step for i in range(n)] for row, part, step, n in made.merges.tolist()}
    assert len(merged) == len(made.merges)
    row = 0
    for q_len, kv_len in zip(q_lens, kv_lens, strict=True):
        for position in range(kv_len - q_len, kv_len):
            own = sorted(reads.pop(row))
            assert all(a[1] == b[0] for a, b in itertools.pairwise(own)), "a key twice, or not at all"
            assert own[0][0] <= (max(0, position - window + 1) if window else 0)
            assert own[-1][1] > position
            assert own[-1][1] <= kv_len
            parts = [part for *_, part in own]
            assert parts == merged.pop(row, [-1])
            row += 1
    assert not reads
    assert not merged
    used = [part for items in (made.small, made.large) for *_, n, part in items[:, [1, 6]].tolist() if part >= 0]
    assert len(set(used)) == len(used)


def test_one_long_read_is_cut_for_the_whole_machine_and_many_are_not() -> None:
    def n_items(kv_lens: list[int], n_processors: int = 132) -> int:
        made = plan.plan(
            [1] * len(kv_lens), kv_lens, tiles=Tiles(1, 8), n_kv_heads=8, n_processors=n_processors
        )  # fmt: skip
        return len(made.small)

    assert n_items([32768]) >= 60
    assert n_items([4096] * 256) == 256
    assert n_items([255]) == 1
    assert n_items([32768], n_processors=1) == 1


def test_planning_needs_no_torch() -> None:
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('plan', {plan.__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
