"""What drafters propose, against a plain search; what they keep, and how fast they are found in a million tokens."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation import ngram, tree
from banyan.runtime.engine.speculation.ngram import NgramDrafter
from banyan.runtime.engine.speculation.ngram_index import NgramIndex, Piece
from banyan.runtime.engine.speculation.tree import TreeDrafter
from banyan.runtime.protocol.wire import Sampling

SAMPLING = Sampling(max_tokens=10_000)


def request(fake: ModuleType, ids: Iterable[int], rid: int = 0, n_cached: int = 0, **fields: Any) -> Request:
    r = Request(fake.run(rid, ids, SAMPLING, **fields), 1 << 20)
    r.n_cached = n_cached
    return r


def proposed(drafter: Any, r: Request, n: int = 8) -> list[int]:
    (*chain,) = drafter.propose(r, n)
    assert len(chain) <= 1
    return list(chain[0].tokens) if chain else []


def ended(drafter: Any, r: Request, said: Iterable[int] = ()) -> None:
    for token in said:
        r.extend((token,))
    drafter.end(r)


def some(n: int, seed: int = 0, vocab: int = 1 << 30) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(vocab) for _ in range(n)]


# ---- the index -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", [(1,), (2,), (7, 4, 2)])
@pytest.mark.parametrize("together", [False, True])
def test_runs_are_found_where_they_stood_last(orders: tuple[int, ...], together: bool) -> None:
    ids = array("i", some(300, vocab=4) + some(50))
    grams = NgramIndex(orders, 1 << 22)  # so large that hardly two runs share a place
    pieces = [Piece(ids, start, stop, (5,), 1000) for start, stop in ((0, 199), (200, len(ids)))]
    for some_pieces in [pieces] if together else [[piece] for piece in pieces]:
        grams.put(some_pieces)
    for i in range(1, len(ids) + 1):
        found, others = list(grams.find(ids[:i], 5)), list(grams.find(ids[:i], 6))
        for order, number in zip(orders, found, strict=True):
            if order <= i:
                run = ids[i - order : i]
                assert number == 1000 + max(j for j in range(order, len(ids) + 1) if ids[j - order : j] == run)
        assert set(others) <= {-1, *range(1000, 1400)}, "another salt: nothing, or another's place"


def test_each_piece_has_its_salts_and_numbers() -> None:
    ours, theirs = array("i", some(40)), array("i", some(40, seed=1))
    grams = NgramIndex((3,), 1 << 22)
    grams.put([Piece(ours, 0, 40, (5, 1), 1000), Piece(theirs, 20, 40, (6, 1), 2000)])
    assert list(grams.find(ours[:30], 5, 1, 6)) == [1030, 1030, -1]
    assert list(grams.find(theirs[:30], 5, 1, 6)) == [-1, 2030, 2030]
    assert list(grams.find(theirs[:20], 6)) == [2020], "the first is of what comes before its start"
    assert list(grams.find(theirs[:10], 6)) == [-1], "what ended long before is not put"


def test_short_texts_have_no_runs() -> None:
    grams = NgramIndex((4,), 16)
    grams.put([Piece(array("i", [1, 2, 3]), 0, 3, (1,))])
    assert list(grams.find(array("i", [1, 2, 3]), 1, 7)) == [-1, -1]


# ---- the own text --------------------------------------------------------------------------------------------------


def test_ngram_copies_what_followed(fake: ModuleType) -> None:
    text = some(40)
    drafter = NgramDrafter()
    assert proposed(drafter, request(fake, text + text[10:14], 0)) == text[14:22]
    assert proposed(drafter, request(fake, text + text[10:12], 1), 3) == text[12:15]
    assert proposed(drafter, request(fake, text, 2)) == []
    assert proposed(drafter, request(fake, [7], 3)) == []


def test_ngram_goes_on_reading_and_sees_what_is_new(fake: ModuleType) -> None:
    text = some(60)
    r = request(fake, text + text[10:14])
    drafter = NgramDrafter()
    for i in range(14, 40):
        assert proposed(drafter, r, 4) == text[i : i + 4]
        r.extend((text[i],))
    new = some(30, seed=1)
    for token in new + new[:6]:
        r.extend((token,))
    assert proposed(drafter, r, 4) == new[6:10], "the output is known too"
    drafter.end(r)
    assert not drafter._texts


def test_ngram_proposes_only_what_stands_in_the_text(fake: ModuleType) -> None:
    """Against a plain search: where a run of an order stood before, something that followed such a run is proposed."""
    chance = random.Random(5)
    r = request(fake, some(20, vocab=3))
    drafter = NgramDrafter()
    for _ in range(400):
        r.extend((chance.randrange(3),))
        ids = list(r.ids)
        draft = proposed(drafter, r, 5)
        if draft:
            n = min(ngram.ORDERS)
            run = ids[-n:]
            assert any(ids[i - n : i] == run and ids[i : i + len(draft)] == draft for i in range(n, len(ids)))


# ---- other texts ---------------------------------------------------------------------------------------------------


def test_tree_copies_from_ended_and_running_texts(fake: ModuleType) -> None:
    drafter = TreeDrafter()
    prompt, said = some(30), some(40, seed=1)
    ended(drafter, request(fake, prompt), said)
    again = request(fake, prompt, 1)
    assert proposed(drafter, again) == said[:8], "from the end of a prompt on"
    runs = request(fake, some(20, seed=2), 2)
    proposed(drafter, runs)
    for token in some(3 * tree.STRIDE, seed=3):
        runs.extend((token,))
    proposed(drafter, runs)
    beside = request(fake, some(3 * tree.STRIDE, seed=3)[:10], 3)
    assert proposed(drafter, beside) == some(3 * tree.STRIDE, seed=3)[10:18]


def test_tree_knows_what_ended_though_nobody_asked(fake: ModuleType) -> None:
    """What ends is put into the index with others, and before it is more than some pages."""
    drafter = TreeDrafter()
    texts = [some(1000, seed=rid) for rid in range(20)]
    for rid, text in enumerate(texts):
        ended(drafter, request(fake, text[:900], rid), text[900:])
        assert sum(len(piece.ids) for piece in drafter._pieces) <= tree.MAX_PENDING + 1000
    for rid, text in enumerate(texts):
        assert proposed(drafter, request(fake, text[:900], 100 + rid)) == text[900:908]
    assert not drafter._pieces


def test_many_are_learned_together(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    put = NgramIndex.put
    monkeypatch.setattr(NgramIndex, "put", lambda self, pieces: (calls.append(len(pieces)), put(self, pieces)))
    for drafter in (TreeDrafter(), NgramDrafter()):
        calls.clear()
        texts = [some(60, seed=rid) for rid in range(10)]
        asks = [(request(fake, text + text[:20], rid), 8) for rid, text in enumerate(texts)]
        drafter.prepare(asks)
        assert [proposed(drafter, r, n) for r, n in asks] == [text[20:28] for text in texts]
        assert calls == [10]


def test_tree_prefers_its_own_program(fake: ModuleType) -> None:
    drafter = TreeDrafter()
    head, ours, others = some(10), some(10, seed=1), some(10, seed=2)
    ended(drafter, request(fake, head, 0, order=(7, 0, 0), client=1), ours)
    ended(drafter, request(fake, head, 1, order=(8, 0, 0), client=1), others)
    ended(drafter, request(fake, head, 2, order=(7, 0, 0), client=2), others)
    assert proposed(drafter, request(fake, head, 3, order=(7, 1, 0), client=1)) == ours[:8]
    assert proposed(drafter, request(fake, head, 4, order=(9, 0, 0), client=1)) == others[:8], "the latest"


def test_tree_tells_nobody_of_another_namespace(fake: ModuleType) -> None:
    drafter = TreeDrafter(256)  # a small table, so that runs share places
    for rid in range(20):
        ended(drafter, request(fake, some(30, seed=rid), rid, namespace=b"a"), some(30, seed=rid + 100))
    for rid in range(20):
        assert proposed(drafter, request(fake, some(30, seed=rid), 50 + rid, namespace=b"b")) == []
    assert any(proposed(drafter, request(fake, some(30, seed=rid), 90 + rid, namespace=b"a")) for rid in range(20))


def test_tree_is_bounded_and_forgets_the_oldest(fake: ModuleType) -> None:
    drafter = TreeDrafter(1000)
    for rid in range(50):
        ended(drafter, request(fake, some(50, seed=rid), rid), some(50, seed=1000 + rid))
        assert drafter.n_tokens <= 1000
    assert len(drafter._texts) == 10
    assert proposed(drafter, request(fake, some(50, seed=49), 60)) == some(50, seed=1049)[:8]
    assert proposed(drafter, request(fake, some(50, seed=3), 61)) == []


def test_tree_learns_of_a_prompt_what_was_not_in_the_tree(fake: ModuleType) -> None:
    drafter = TreeDrafter()
    prompt, said = some(100), some(20, seed=1)
    ended(drafter, request(fake, prompt, 0, n_cached=90), said)
    assert drafter.n_tokens == 30 + max(tree.ORDERS)
    assert proposed(drafter, request(fake, prompt[:50], 2)) == []
    assert proposed(drafter, request(fake, prompt[:95], 1)) == [*prompt[95:], *said[:3]]


def test_tree_keeps_nothing_of_one_that_never_ran(fake: ModuleType) -> None:
    drafter = TreeDrafter()
    ended(drafter, request(fake, some(30), n_cached=-1))
    assert drafter.n_tokens == 0
    assert not drafter._texts


def test_a_look_is_quick_in_a_million_tokens(fake: ModuleType) -> None:
    """Per request and step; the best of some rounds, as the machine may be busy."""
    drafters: Sequence[Any] = (TreeDrafter(), NgramDrafter())
    for rid in range(512):
        ended(drafters[0], request(fake, some(1024, seed=rid), rid), some(1024, seed=1000 + rid))
    assert drafters[0].n_tokens == 1 << 20
    for drafter in drafters:
        best = 1.0
        for seed in range(8):
            r = request(fake, some(2048, seed=seed), 2000 + seed)
            drafter.propose(r, 8)
            start = time.thread_time()
            for token in some(64, seed=seed + 1000):
                r.extend((token,))
                drafter.propose(r, 8)
            best = min(best, (time.thread_time() - start) / 64)
        assert best < 20e-6, (drafter.name, best)
