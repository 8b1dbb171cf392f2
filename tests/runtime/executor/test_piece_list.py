from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from banyan.runtime.executor.piece_list import CHUNK, PieceList

BORDERS = st.sampled_from([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5, -1, -CHUNK])


@given(st.sampled_from([0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 3]), st.lists(BORDERS, min_size=2, max_size=2))
def test_same_items_as_a_list(n: int, borders: list[int]) -> None:
    start, stop = borders
    plain = list(range(n))
    pieces = PieceList(plain)
    assert (len(pieces), list(pieces), pieces[start:stop], pieces[start:]) == (
        n,
        plain,
        plain[start:stop],
        plain[start:],
    )
    if n:
        assert (pieces[0], pieces[n // 2], pieces[-1]) == (plain[0], plain[n // 2], plain[-1])


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["copy", "pop", "append"])), max_size=30))
def test_copies_are_independent(steps: list[tuple[int, str]]) -> None:
    plain = [list(range(2 * CHUNK - 3))]
    pieces = [PieceList(plain[0])]
    for which, what in steps:
        k = which % len(plain)
        match what:
            case "copy":
                plain.append(plain[k].copy())
                pieces.append(pieces[k].copy())
            case "pop":
                assert pieces[k].pop() == plain[k].pop()
            case _:
                for number in range(5):
                    plain[k].append(number)
                    pieces[k].append(number)
    assert list(map(list, pieces)) == plain
