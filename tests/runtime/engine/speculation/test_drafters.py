"""Proposals of the copying drafters against a plain search, their memory bounds, and lookup time."""

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


def finish(drafter: Any, r: Request, output: Iterable[int] = ()) -> None:
    for token in output:
        r.extend((token,))
    drafter.end(r)


def tokens(n: int, seed: int = 0, vocab: int = 1 << 30) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(n)]


# ---- the index -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", [(1,), (2,), (7, 4, 2)])
@pytest.mark.parametrize("together", [False, True])
def test_index_finds_the_last_occurrence(orders: tuple[int, ...], together: bool) -> None:
    ids = array("i", tokens(300, vocab=4) + tokens(50))
    grams = NgramIndex(orders, 1 << 22)  # large enough to make collisions rare
    pieces = [Piece(ids, start, stop, (5,), 1000) for start, stop in ((0, 199), (200, len(ids)))]
    for batch in [pieces] if together else [[piece] for piece in pieces]:
        grams.put(batch)
    for i in range(1, len(ids) + 1):
        found, others = list(grams.find(ids[:i], 5)), list(grams.find(ids[:i], 6))
        for order, number in zip(orders, found, strict=True):
            if order <= i:
                run = ids[i - order : i]
                assert number == 1000 + max(j for j in range(order, len(ids) + 1) if ids[j - order : j] == run)
        assert set(others) <= {-1, *range(1000, 1400)}, "another salt finds nothing or a collision"


def test_pieces_have_separate_salts_and_numbers() -> None:
    ours, theirs = array("i", tokens(40)), array("i", tokens(40, seed=1))
    grams = NgramIndex((3,), 1 << 22)
    grams.put([Piece(ours, 0, 40, (5, 1), 1000), Piece(theirs, 20, 40, (6, 1), 2000)])
    assert list(grams.find(ours[:30], 5, 1, 6)) == [1030, 1030, -1]
    assert list(grams.find(theirs[:30], 5, 1, 6)) == [-1, 2030, 2030]
    assert list(grams.find(theirs[:20], 6)) == [2020], "the run before the start is included"
    assert list(grams.find(theirs[:10], 6)) == [-1], "earlier runs are not included"


def test_short_texts_have_no_runs() -> None:
    grams = NgramIndex((4,), 16)
    grams.put([Piece(array("i", [1, 2, 3]), 0, 3, (1,))])
    assert list(grams.find(array("i", [1, 2, 3]), 1, 7)) == [-1, -1]


# ---- the request's own text ----------------------------------------------------------------------------------------


def test_ngram_copies_the_continuation(fake: ModuleType) -> None:
    text = tokens(40)
    drafter = NgramDrafter()
    assert proposed(drafter, request(fake, text + text[10:14], 0)) == text[14:22]
    assert proposed(drafter, request(fake, text + text[10:12], 1), 3) == text[12:15]
    assert proposed(drafter, request(fake, text, 2)) == []
    assert proposed(drafter, request(fake, [7], 3)) == []


def test_ngram_follows_new_output(fake: ModuleType) -> None:
    text = tokens(60)
    r = request(fake, text + text[10:14])
    drafter = NgramDrafter()
    for i in range(14, 40):
        assert proposed(drafter, r, 4) == text[i : i + 4]
        r.extend((text[i],))
    new = tokens(30, seed=1)
    for token in new + new[:6]:
        r.extend((token,))
    assert proposed(drafter, r, 4) == new[6:10], "output is indexed too"
    drafter.end(r)
    assert not drafter._texts


def test_ngram_proposes_only_continuations_in_the_text(fake: ModuleType) -> None:
    """A plain search finds each proposal behind an earlier occurrence of the text's last tokens."""
    rng = random.Random(5)
    r = request(fake, tokens(20, vocab=3))
    drafter = NgramDrafter()
    for _ in range(400):
        r.extend((rng.randrange(3),))
        ids = list(r.ids)
        draft = proposed(drafter, r, 5)
        if draft:
            n = min(ngram.ORDERS)
            run = ids[-n:]
            assert any(ids[i - n : i] == run and ids[i : i + len(draft)] == draft for i in range(n, len(ids)))


# ---- other texts ---------------------------------------------------------------------------------------------------


def test_tree_copies_from_finished_and_running_texts(fake: ModuleType) -> None:
    drafter = TreeDrafter()
    prompt, output = tokens(30), tokens(40, seed=1)
    finish(drafter, request(fake, prompt), output)
    again = request(fake, prompt, 1)
    assert proposed(drafter, again) == output[:8], "from the end of the prompt"
    running = request(fake, tokens(20, seed=2), 2)
    proposed(drafter, running)
    for token in tokens(3 * tree.STRIDE, seed=3):
        running.extend((token,))
    proposed(drafter, running)
    beside = request(fake, tokens(3 * tree.STRIDE, seed=3)[:10], 3)
    assert proposed(drafter, beside) == tokens(3 * tree.STRIDE, seed=3)[10:18]


def test_tree_indexes_finished_texts_without_a_query(fake: ModuleType) -> None:
    """Finished texts are indexed in batches of bounded size."""
    drafter = TreeDrafter()
    texts = [tokens(1000, seed=rid) for rid in range(20)]
    for rid, text in enumerate(texts):
        finish(drafter, request(fake, text[:900], rid), text[900:])
        assert sum(len(piece.ids) for piece in drafter._pieces) <= tree.MAX_PENDING + 1000
    for rid, text in enumerate(texts):
        assert proposed(drafter, request(fake, text[:900], 100 + rid)) == text[900:908]
    assert not drafter._pieces


def test_prepare_indexes_requests_in_one_batch(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    put = NgramIndex.put
    monkeypatch.setattr(NgramIndex, "put", lambda self, pieces: (calls.append(len(pieces)), put(self, pieces)))
    for drafter in (TreeDrafter(), NgramDrafter()):
        calls.clear()
        texts = [tokens(60, seed=rid) for rid in range(10)]
        queries = [(request(fake, text + text[:20], rid), 8) for rid, text in enumerate(texts)]
        drafter.prepare(queries)
        assert [proposed(drafter, r, n) for r, n in queries] == [text[20:28] for text in texts]
        assert calls == [10]


def test_tree_prefers_its_own_program(fake: ModuleType) -> None:
    drafter = TreeDrafter()
    head, own, others = tokens(10), tokens(10, seed=1), tokens(10, seed=2)
    finish(drafter, request(fake, head, 0, order=(7, 0, 0), client=1), own)
    finish(drafter, request(fake, head, 1, order=(8, 0, 0), client=1), others)
    finish(drafter, request(fake, head, 2, order=(7, 0, 0), client=2), others)
    assert proposed(drafter, request(fake, head, 3, order=(7, 1, 0), client=1)) == own[:8]
    assert proposed(drafter, request(fake, head, 4, order=(9, 0, 0), client=1)) == others[:8], "the most recent"


def test_tree_separates_namespaces(fake: ModuleType) -> None:
    drafter = TreeDrafter(256)  # a small table with collisions
    for rid in range(20):
        finish(drafter, request(fake, tokens(30, seed=rid), rid, namespace=b"a"), tokens(30, seed=rid + 100))
    for rid in range(20):
        assert proposed(drafter, request(fake, tokens(30, seed=rid), 50 + rid, namespace=b"b")) == []
    assert any(proposed(drafter, request(fake, tokens(30, seed=rid), 90 + rid, namespace=b"a")) for rid in range(20))


def test_tree_is_bounded_and_evicts_the_oldest(fake: ModuleType) -> None:
    drafter = TreeDrafter(1000)
    for rid in range(50):
        finish(drafter, request(fake, tokens(50, seed=rid), rid), tokens(50, seed=1000 + rid))
        assert drafter.n_tokens <= 1000
    assert len(drafter._texts) == 10
    assert proposed(drafter, request(fake, tokens(50, seed=49), 60)) == tokens(50, seed=1049)[:8]
    assert proposed(drafter, request(fake, tokens(50, seed=3), 61)) == []


def test_tree_indexes_only_the_uncached_part_of_a_prompt(fake: ModuleType) -> None:
    drafter = TreeDrafter()
    prompt, output = tokens(100), tokens(20, seed=1)
    finish(drafter, request(fake, prompt, 0, n_cached=90), output)
    assert drafter.n_tokens == 30 + max(tree.ORDERS)
    assert proposed(drafter, request(fake, prompt[:50], 2)) == []
    assert proposed(drafter, request(fake, prompt[:95], 1)) == [*prompt[95:], *output[:3]]


def test_tree_ignores_requests_that_never_ran(fake: ModuleType) -> None:
    drafter = TreeDrafter()
    finish(drafter, request(fake, tokens(30), n_cached=-1))
    assert drafter.n_tokens == 0
    assert not drafter._texts


@pytest.mark.long
def test_lookup_is_fast_in_a_million_tokens(fake: ModuleType) -> None:
    """CPU time per request and step; the best of several rounds."""
    drafters: Sequence[Any] = (TreeDrafter(), NgramDrafter())
    for rid in range(512):
        finish(drafters[0], request(fake, tokens(1024, seed=rid), rid), tokens(1024, seed=1000 + rid))
    assert drafters[0].n_tokens == 1 << 20
    for drafter in drafters:
        best = 1.0
        for seed in range(8):
            r = request(fake, tokens(2048, seed=seed), 2000 + seed)
            drafter.propose(r, 8)
            start = time.thread_time()
            for token in tokens(64, seed=seed + 1000):
                r.extend((token,))
                drafter.propose(r, 8)
            best = min(best, (time.thread_time() - start) / 64)
        assert best < 200e-6, (drafter.name, best)  # 10 to 30 us; a lookup that reads all texts takes milliseconds
