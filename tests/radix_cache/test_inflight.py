"""The index of prompts that are being computed."""

from __future__ import annotations

import random

import pytest

from banyan.radix_cache.inflight import InFlight
from cache_support import ids, n_shared


def test_find_returns_the_claim_with_the_longest_common_prefix() -> None:
    index = InFlight()
    index.claim("a", ids(1, 2, 3, 4))
    index.claim("b", ids(1, 2, 5))
    assert index.find(ids(1, 2, 3, 9)) == ("a", 3)
    assert index.find(ids(1, 2, 5, 6)) == ("b", 3)
    assert index.find(ids(7)) is None
    assert index.find(ids(1, 2, 3), b"other") is None


def test_find_agrees_with_a_linear_search() -> None:
    rng, index = random.Random(0), InFlight()
    claims: dict[int, tuple[int, ...]] = {}
    for step in range(500):
        if claims and rng.random() < 0.4:
            owner = rng.choice(list(claims))
            del claims[owner]
            index.release(owner)
        else:
            claims[step] = tuple(rng.randrange(3) for _ in range(rng.randrange(1, 9)))
            index.claim(step, ids(*claims[step]))
        assert len(index) == len(claims)
        prompt = tuple(rng.randrange(3) for _ in range(8))
        best = max((n_shared(prompt, claim) for claim in claims.values()), default=0)
        found = index.find(ids(*prompt))
        if not best:
            assert found is None
        else:
            assert found is not None
            assert found[1] == best == n_shared(prompt, claims[found[0]])


def test_first_of_equal_claims_is_found() -> None:
    index = InFlight()
    for owner in "abc":
        index.claim(owner, ids(1, 2))
    for owner in "abc":
        assert index.find(ids(1, 2)) == (owner, 2)
        index.release(owner)
    assert index.find(ids(1, 2)) is None


def test_second_claim_raises_and_second_release_does_nothing() -> None:
    index = InFlight()
    index.claim("a", ids(1))
    with pytest.raises(ValueError, match="'a' has a claim already"):
        index.claim("a", ids(2))
    index.release("a")
    index.release("a")
    assert len(index) == 0
