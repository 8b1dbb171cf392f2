"""Properties of the tree that `check` does not assert: matches without side effects, the exact order of eviction, and
eviction page by page."""

from __future__ import annotations

import random
from contextlib import closing
from itertools import chain

import pytest

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.check import check
from banyan.radix_cache.digests import n_common
from banyan.radix_cache.node import Node
from banyan.radix_cache.policy import POLICIES
from cache_support import ids, n_shared, open_published


def store(cache: Cache, prompt: bytes, namespace: bytes = b"") -> None:
    open_published(cache, prompt, namespace).close()


def n_found(cache: Cache, prompt: bytes, namespace: bytes = b"") -> int:
    root = cache.tree.roots.get(namespace)
    return cache.tree.match(root, prompt, len(prompt) // 4)[1] if root else 0


def state(cache: Cache) -> object:
    """The nodes of a tree with keys, pages and locks, its order of eviction, and its counters."""

    def describe(node: Node) -> object:
        children = [describe(node.children[key]) for key in node.order]
        return node.key, node.start, tuple(node.pages), node.n_locks, children

    roots = {namespace: describe(root) for namespace, root in cache.tree.roots.items()}
    return roots, eviction_order(cache), cache.stats()


def eviction_order(cache: Cache) -> list[bytes]:
    """The keys of the unlocked nodes, in the order in which they are evicted."""
    return [node.key for node in chain.from_iterable(cache.tree.queues)]


# ---- match ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 4, 16])
def test_match_is_exact_to_the_token(page: int) -> None:
    cache, tokens = Cache(64, page), list(range(1, 43))
    store(cache, ids(*tokens))
    store(cache, ids(*tokens[:20], 99, 98, 97))
    for n in range(43):
        assert n_found(cache, ids(*tokens[:n])) == n
        assert n_found(cache, ids(*tokens[:n], 77, 78)) == n
        assert cache.tree.match(cache.tree.roots[b""], ids(*tokens), n)[1] == n
    assert n_found(cache, ids(*tokens[:20], 99, 98, 55)) == 22


def test_match_changes_nothing() -> None:
    cache = Cache(64, 4)
    for tail in range(5):
        store(cache, ids(1, 2, 3, 4, 5, 6, 7, 8, tail, tail, 9))
    before = state(cache)
    for n in range(12):
        for tail in range(6):
            n_found(cache, ids(1, 2, 3, 4, 5, 6, 7, 8, tail, tail, 9)[: 4 * n] + ids(tail))
    assert state(cache) == before


def test_match_finds_the_closest_of_many_children() -> None:
    """The children share less than a page with the prompt."""
    rng = random.Random(0)
    cache = Cache(4000, 16)
    stored_prompts = {tuple(rng.randrange(2) for _ in range(16)) for _ in range(500)}
    for stored in stored_prompts:
        store(cache, ids(*stored))
    for _ in range(200):
        prompt = tuple(rng.randrange(2) for _ in range(15))
        best = max(n_shared(prompt, stored) for stored in stored_prompts)
        assert n_found(cache, ids(*prompt)) == best


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000])
def test_n_common_counts_tokens_not_bytes(n: int) -> None:
    same = ids(*range(n))
    assert n_common(same, 0, same) == n
    assert n_common(ids(7) + same, 4, same + ids(1)) == n
    assert n_common(same + ids(0x01020304), 0, same + ids(0x05020304)) == n, "the tokens differ in one byte only"
    assert n_common(same + ids(5, 6), 0, same + ids(4, 6)) == n
    for at in range(0, n, 1 + n // 100):
        assert n_common(ids(7) + same, 4, same[: 4 * at] + ids(-1) + same[4 * at + 4 :]) == at


def test_namespaces_share_no_nodes_and_leave_no_empty_root() -> None:
    cache, prompt = Cache(16, 4), ids(*range(10))
    store(cache, prompt, b"one")
    assert n_found(cache, prompt, b"one") == 10
    assert n_found(cache, prompt, b"two") == 0
    cache.open(prompt, b"two").close()
    assert list(cache.tree.roots) == [b"one"]
    cache.reset()
    assert not cache.tree.roots


# ---- split ---------------------------------------------------------------------------------------------------------


def test_split_keeps_pages_locks_and_eviction_order() -> None:
    cache = Cache(64, 4)
    store(cache, ids(*range(16)))
    store(cache, ids(50, 51, 52, 53))
    lease = cache.open(ids(*range(16)))
    other = cache.open(ids(*range(8), 99, 99, 99, 99))
    assert other.pages == lease.pages[:2]
    assert cache.stats().n_nodes == 3
    check(cache)
    lease.close()
    assert eviction_order(cache) == [ids(50, 51, 52, 53), ids(*range(8, 16))], "the lower half is unlocked"
    other.close()
    assert eviction_order(cache)[-1] == ids(*range(8))
    check(cache)


# ---- eviction ------------------------------------------------------------------------------------------------------


def test_least_recently_used_is_evicted_first() -> None:
    cache = Cache(8, 4)
    prompts = [ids(*[name] * 8) for name in range(4)]
    for prompt in prompts:
        store(cache, prompt)
    cache.open(prompts[0]).close()
    n_found(cache, prompts[1])  # a match is not a use
    for expected in ([8, 0, 8, 8], [8, 0, 0, 8], [8, 0, 0, 0], [0, 0, 0, 0]):
        assert cache.hints.evict(2) == 2
        assert [n_found(cache, prompt) for prompt in prompts] == expected
    assert cache.hints.evict(2) == 0
    assert cache.stats().n_evicted_pages == 8


def test_leaf_is_evicted_page_by_page_from_its_end() -> None:
    cache, prompt = Cache(8, 4), ids(*range(18))
    store(cache, prompt)
    for expected in (16, 12, 8, 4, 0):
        assert cache.hints.evict(1) == 1
        assert n_found(cache, prompt) == expected
        check(cache)


def test_children_are_evicted_before_their_parent() -> None:
    cache = Cache(32, 4)
    trunk = list(range(8))
    for branch in range(4):
        store(cache, ids(*trunk, *[branch] * 4))
    for n_left in (4, 3, 2, 1):
        assert n_found(cache, ids(*trunk)) == 8
        assert cache.stats().n_cached == 2 + n_left
        cache.hints.evict(1)
    cache.hints.evict(1)
    assert n_found(cache, ids(*trunk)) == 4


def test_lock_protects_only_the_path() -> None:
    cache, trunk = Cache(32, 4), list(range(8))
    store(cache, ids(*trunk, 1, 1, 1, 1))
    store(cache, ids(*trunk, 2, 2, 2, 2))
    lease = cache.open(ids(*trunk, 1, 1, 1, 1))
    assert cache.n_available == 32 - 3
    assert cache.hints.evict(100) == 1
    assert n_found(cache, ids(*trunk, 1, 1, 1, 1)) == 12
    lease.close()
    assert cache.n_available == 32


def test_cost_of_trimming_a_leaf_is_independent_of_its_length() -> None:
    """An eviction copies the key of the leaf, so the key must almost always be short."""
    cache, prompt = Cache(1000, 4), ids(*range(4000))
    store(cache, prompt)
    n_long = 0
    for n in range(1, 1001):
        n_long += len(eviction_order(cache)[0]) > 64 * 16
        assert cache.hints.evict(1) == 1
        assert n_found(cache, prompt) == 4000 - 4 * n
    assert n_long <= 1000 // 64 + 1
    check(cache)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_dead_node_is_evicted_before_its_ancestors_after_its_hold_ends(policy: str) -> None:
    cache, prompt = Cache(64, 4, policy=policy), ids(*range(17))
    store(cache, prompt[:8])
    store(cache, prompt)
    handle = cache.handle(prompt)
    cache.handle(prompt[:4]).drop(1)
    handle.expect(0)
    handle.release()
    check(cache)
    while cache.hints.evict(1):
        check(cache)


@pytest.mark.parametrize("n_spilled", [0, 16, 40])
@pytest.mark.parametrize("n_shared", [0, 120, 400, 640])
def test_dropped_branch_leaves_host_memory(n_spilled: int, n_shared: int) -> None:
    cache, prompt = Cache(60, 16, n_host=100), ids(*range(640))
    store(cache, prompt)
    cache.hints.evict(n_spilled)
    assert cache.stats().n_host_cached == n_spilled
    cache.handle(prompt).drop(n_shared)
    check(cache)
    n_kept, n_device = -(-n_shared // 16), 40 - n_spilled
    assert cache.tree.dead.n_pages == max(0, n_device - n_kept)
    assert cache.stats().n_host_cached == max(0, n_kept - n_device)
    assert n_found(cache, prompt) == 16 * max(n_device, n_kept)


@pytest.mark.parametrize("n_spilled", [0, 16, 40])
def test_drop_leaves_what_others_have(n_spilled: int) -> None:
    """Pages may be in host memory, and the end of the dropped branch may not be stored."""
    cache, prompt, other = Cache(60, 16, n_host=100), ids(*range(640)), ids(*range(560), *[7] * 80)
    store(cache, prompt)
    store(cache, other)
    cache.hints.evict(n_spilled)
    cache.handle(prompt + ids(1, 2)).drop()
    check(cache)
    assert n_found(cache, other) == 640
    assert n_found(cache, prompt) == (640 if n_spilled == 0 else 560)
    cache.handle(ids(*range(600), 9)).drop()
    cache.handle(other[:2000] + ids(9)).drop()
    check(cache)
    assert n_found(cache, other) == 640


# ---- pages that are not full ---------------------------------------------------------------------------------------


def test_leaf_is_removed_when_a_longer_page_contains_it() -> None:
    cache = Cache(16, 4)
    store(cache, ids(1, 2))
    assert cache.stats().n_cached == 1
    with closing(cache.open(ids(1, 2, 3, 4, 5), limit=1)) as lease:  # copies the first token: the leaf is not extended
        assert lease.grow(5)
        assert lease.take_copies()
        lease.publish(ids(1, 2, 3, 4, 5))
        assert cache.stats().n_cached == 2, "[1, 2, 3, 4] replaces the leaf [1, 2]"
    store(cache, ids(1, 2, 3))
    assert cache.stats().n_cached == 2
    check(cache)


def test_second_lease_shares_a_page_that_the_first_has_filled() -> None:
    """Two leases fill their own pages with the same tokens. The later one then uses the page of the earlier one."""
    cache = Cache(16, 4)
    first, second = cache.open(ids(1, 2)), cache.open(ids(1, 2))
    for lease, n in ((first, 2), (second, 2), (second, 4), (first, 4)):
        lease.grow(n)
        lease.publish(ids(1, 2, 3, 4)[: 4 * n])
        check(cache)
    assert first.pages == second.pages
    assert cache.stats()[1:4] == (15, 0, 1), "free, leased, cached"


def test_redundant_leaf_is_removed_with_its_last_lock() -> None:
    cache = Cache(16, 4)
    first, second = cache.open(ids(1, 2)), cache.open(ids(1, 2))
    first.grow(2)
    first.publish(ids(1, 2))
    second.grow(3)
    second.publish(ids(1, 2, 3))
    assert cache.stats().n_cached == 2, "each lease writes to its own page"
    first.close()
    assert cache.stats().n_cached == 1
    check(cache)
    assert n_found(cache, ids(1, 2)) == 2
