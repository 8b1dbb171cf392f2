"""`check` names each violated invariant. `quarantine` then restores all invariants and keeps sound nodes."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing

import pytest

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.check import Corrupt, check
from banyan.radix_cache.quarantine import quarantine
from cache_support import ids, open_published
from cache_violations import PROMPT, VIOLATIONS, Scene, free_cached_page, remove_free_page


@pytest.mark.parametrize(("violate", "message"), VIOLATIONS)
def test_violation_is_named_and_all_invariants_restored(violate: Callable[[Scene], None], message: str) -> None:
    scene = Scene()
    cache = scene.cache
    stats = cache.stats()
    check(cache)
    assert cache.stats() == stats, "a check changes nothing"
    violate(scene)
    before = set(cache.leases)
    with pytest.raises(Corrupt, match=message):
        check(cache)
    ended = quarantine(cache)  # calls `check` at its end
    assert {*ended, *cache.leases} == before
    assert not any(lease.is_open for lease in ended)
    assert all(lease.is_open for lease in cache.leases)
    assert cache.conserved()
    assert cache.stats().n_mended == 1
    use_until_empty(cache)


def use_until_empty(cache: Cache) -> None:
    """Uses the cache normally, then resets it. All pages must be free."""
    rng = random.Random(1)
    for _ in range(60):
        prompt = ids(*(rng.randrange(3) for _ in range(rng.randrange(1, 20))))
        with closing(cache.open(prompt)) as lease:
            if lease.grow(len(prompt) // 4):
                lease.take_copies()
                lease.publish(prompt)
        check(cache)
    for lease in list(cache.leases):
        lease.close()
    cache.hints.clear()
    cache.reset()
    check(cache)
    assert cache.stats().n_free == cache.n_pages


def test_conserved_detects_a_lost_page() -> None:
    scene = Scene()
    assert scene.cache.conserved()
    remove_free_page(scene)
    assert not scene.cache.conserved()


def test_quarantine_keeps_sound_nodes() -> None:
    scene = Scene()
    cache = scene.cache
    free_cached_page(scene)
    quarantine(cache)
    for tail, n in ((ids(20, 20, 20, 20), 8), (ids(30, 30, 30, 30), 12), (ids(40, 40), 10)):
        with closing(cache.open(PROMPT + tail)) as lease:
            assert lease.n_cached == n
    assert len(cache.quarantined) == 1
    assert scene.lease in cache.leases


def test_quarantine_keeps_the_eviction_order() -> None:
    cache = Cache(40, 4)
    for k in range(8):
        open_published(cache, ids(*[k] * 8)).close()
    handle = cache.handle(ids(*([0] * 8)))
    handle.expect(5)
    cache.handle(ids(*([7] * 8))).drop()
    cache._n_leased += 1
    quarantine(cache)
    cache.hints.evict(6)
    n_cached = []
    for k in range(8):
        with closing(cache.open(ids(*[k] * 8))) as lease:
            n_cached.append(lease.n_cached)
    assert n_cached == [8, 0, 0, 8, 8, 8, 8, 0], "evicts the dead node, then the least recently used; keeps held nodes"


def test_quarantine_empties_the_host_tier() -> None:
    cache = Cache(6, 4, n_host=20)
    for k in range(6):
        open_published(cache, ids(*[k] * 12)).close()
    assert cache.stats().n_host_cached > 0
    cache.pool.free.append(3)
    quarantine(cache)
    assert cache.stats().n_host_cached == 0
    assert cache.tree.n_nodes > 0
    use_until_empty(cache)


def test_listener_receives_the_whole_tree_after_quarantine() -> None:
    scene = Scene()
    events = scene.cache.listen()
    number = events.since(-1).next
    free_cached_page(scene)
    quarantine(scene.cache)
    assert events.since(number).is_all
