"""Drafters on texts that are empty or shorter than the runs they look for."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import Drafter
from banyan.runtime.engine.speculation.ngram import NgramDrafter
from banyan.runtime.engine.speculation.ngram_index import NgramIndex, Piece
from banyan.runtime.engine.speculation.quotes import N_KEY, QuoteIndex, QuoteState
from banyan.runtime.engine.speculation.tree import TreeDrafter
from banyan.runtime.protocol.wire import Sampling
from forms import examples

tokens = st.integers(0, 2)


def texts(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(tokens, max_size=most)


# ---- the index -----------------------------------------------------------------------------------------------------


@examples(
    20,
    100,
    given(
        orders=st.sampled_from([(1,), (2,), (4, 2, 1), (16, 6, 3)]),
        indexed=st.lists(st.tuples(texts(6), st.integers(0, 6), st.integers(0, 6)), max_size=4),
        query=texts(6),
    ),
    suppress_health_check=list(HealthCheck),
)
@example(orders=(16, 6, 3), indexed=[([1], 0, 0)], query=[1])
@example(orders=(4, 2, 1), indexed=[], query=[])
@example(orders=(4, 2, 1), indexed=[([], 0, 0), ([1, 2, 1], 0, 3)], query=[2, 1])
def test_index_supports_pieces_of_any_length(
    orders: tuple[int, ...], indexed: Sequence[tuple[list[int], int, int]], query: list[int]
) -> None:
    """An indexed run is found at its last position or a later one."""
    grams = NgramIndex(orders, 1 << 16)
    pieces = []
    for k, (ids, a, b) in enumerate(indexed):
        start, stop = sorted((min(a, len(ids)), min(b, len(ids))))
        pieces.append(Piece(array("i", ids), start, stop, (7,), 100 * k))
    grams.put(pieces)
    found = list(grams.find(array("i", query), 7))
    assert len(found) == len(orders)
    for order, number in zip(orders, found, strict=True):
        run = query[len(query) - order :] if order <= len(query) else None
        ends = [
            piece.base + i
            for piece in pieces
            for i in range(max(piece.start + 1, order), piece.stop + 1)
            if list(piece.ids[i - order : i]) == run
        ]
        assert number >= ends[-1] if ends else number >= -1


# ---- drafters that copy --------------------------------------------------------------------------------------------


@examples(
    15,
    100,
    given(
        requests=st.lists(st.tuples(texts(5), texts(5), st.booleans(), st.booleans()), min_size=1, max_size=5),
        n=st.integers(1, 3),
        name=st.sampled_from(["tree", "ngram"]),
    ),
    suppress_health_check=list(HealthCheck),
)
@example(requests=[([0], [], True, True)] * 3, n=1, name="tree")
@example(requests=[([], [], False, False), ([], [0], True, True)], n=2, name="ngram")
@example(requests=[([0], [], False, False)] * 2, n=1, name="tree")
def test_drafters_support_texts_of_any_length(
    fake: ModuleType, requests: Sequence[tuple[list[int], list[int], bool, bool]], n: int, name: str
) -> None:
    """requests: of each, its prompt, its output, whether it is constrained and whether it is drafted before it ends."""
    drafter: Drafter = TreeDrafter(1 << 6) if name == "tree" else NgramDrafter()
    drafter.set_vocabulary([b"a", b" a", b"b"], [2])
    vocabulary = {token for prompt, output, *_ in requests for token in (*prompt, *output)} | {0, 1}
    for rid, (prompt, output, is_constrained, is_drafted) in enumerate(requests):
        guide = fake.Pattern([None] * 100) if is_constrained else None
        request = Request(fake.run(rid, prompt, Sampling(max_tokens=100)), 1 << 20, guide)
        request.n_cached = 0
        for upto in range(len(output) + 1):
            if is_drafted:
                drafter.prepare([(request, n)])
                for proposal in drafter.propose(request, n):
                    assert set(proposal.tokens) <= vocabulary
                    assert 0 <= proposal.kind < drafter.n_kinds
            request.extend(output[upto : upto + 1])
        drafter.end(request)
    if isinstance(drafter, NgramDrafter):
        assert not drafter._texts
    else:
        assert isinstance(drafter, TreeDrafter)
        assert not drafter._readers


@examples(15, 100, given(
    requests=st.lists(st.tuples(texts(8), texts(6)), min_size=1, max_size=5), prompt=texts(8), last=texts(N_KEY),
    has_vocabulary=st.booleans(),
), suppress_health_check=list(HealthCheck))  # fmt: skip
def test_quotes_are_spans_of_the_prompt(
    fake: ModuleType,
    requests: Sequence[tuple[list[int], list[int]]],
    prompt: list[int],
    last: list[int],
    has_vocabulary: bool,
) -> None:
    quotes = QuoteIndex()
    if has_vocabulary:
        quotes.set_vocabulary([b"a", b" a", b"b"], [2])
    for before, output in requests:
        quotes.learn(array("i", before + output), len(before), b"")
    request = Request(fake.run(0, prompt), 1 << 20, fake.Pattern([None] * 100))
    quoting = QuoteState(request)
    quote = quotes.find(array("i", last), quoting, b"")
    if quote is not None:
        rest = quote.tokens[quote.n_lead :].tobytes()
        assert rest
        assert quotes._to_plain(array("i", rest)) in quotes._to_plain(quoting.prompt)
    proposed, uncertain = quotes.propose(quoting, request, 4, 0.0)
    assert all(0 <= i < len(proposed) for i in uncertain)
    assert request.guide is not None
    assert request.guide.at == 0  # type: ignore[attr-defined]


# ---- in an engine --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_constrained", [True, False])
@pytest.mark.parametrize("n_prompt", [1, 2, 3])
def test_empty_output_finishes_with_stop(fake: ModuleType, n_prompt: int, is_constrained: bool) -> None:
    e = fake.engine(speculate="tree,ngram,grammar")
    end = fake.greedy(range(n_prompt), 1)[0]
    sampling = Sampling(temperature=0.0, max_tokens=8)
    outputs: dict[int, Any] = {}
    for rid in range(4):
        run = fake.run(rid, range(n_prompt), sampling, stop_ids=array("i", [end]).tobytes())
        if is_constrained:
            e.scheduler.take(run, guide=fake.Pattern([]), end_ids=(end,))
        else:
            e.take(run)
        fake.drive(e, [], outputs, check=True, limit=20)
        assert outputs[rid].failed is None
        assert outputs[rid].ids in ([], [end])
        assert outputs[rid].finish.reason == "stop"
