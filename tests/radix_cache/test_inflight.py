"""The index of prompts that are being computed."""

from __future__ import annotations

import random
from array import array

import pytest

from banyan.radix_cache.inflight import InFlight


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def n_shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_who_shares_most_is_found() -> None:
    index: InFlight[str] = InFlight()
    index.claim("a", ids(1, 2, 3, 4))
    index.claim("b", ids(1, 2, 5))
    assert index.find(ids(1, 2, 3, 9)) == ("a", 3)
    assert index.find(ids(1, 2, 5, 6)) == ("b", 3)
    assert index.find(ids(7)) is None
    assert index.find(ids(1, 2, 3), b"other") is None


def test_as_a_look_at_all_of_them_would_find() -> None:
    chance, index = random.Random(0), InFlight[int]()
    claims: dict[int, tuple[int, ...]] = {}
    for step in range(500):
        if claims and chance.random() < 0.4:
            owner = chance.choice(list(claims))
            del claims[owner]
            index.release(owner)
        else:
            claims[step] = tuple(chance.randrange(3) for _ in range(chance.randrange(1, 9)))
            index.claim(step, ids(*claims[step]))
        assert len(index) == len(claims)
        wanted = tuple(chance.randrange(3) for _ in range(8))
        best = max((n_shared(wanted, some) for some in claims.values()), default=0)
        found = index.find(ids(*wanted))
        if not best:
            assert found is None
        else:
            assert found is not None
            assert found[1] == best == n_shared(wanted, claims[found[0]])


def test_of_equal_prompts_the_first_claim_is_found() -> None:
    index: InFlight[str] = InFlight()
    for owner in "abc":
        index.claim(owner, ids(1, 2))
    for owner in "abc":
        assert index.find(ids(1, 2)) == (owner, 2)
        index.release(owner)
    assert index.find(ids(1, 2)) is None


def test_a_release_may_come_twice_and_a_claim_not() -> None:
    index: InFlight[str] = InFlight()
    index.claim("a", ids(1))
    with pytest.raises(ValueError, match="'a' has a claim already"):
        index.claim("a", ids(2))
    index.release("a")
    index.release("a")
    assert len(index) == 0
