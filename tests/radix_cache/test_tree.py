"""Properties of the tree that `check` does not assert: matches change nothing, ages are exact, eviction is by page."""

from __future__ import annotations

import random
from array import array

import pytest

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.check import check
from banyan.radix_cache.node import Node, n_common
from banyan.radix_cache.policy import POLICIES


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def n_shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def store(cache: Cache, some: bytes, namespace: bytes = b"") -> None:
    """Computes and publishes a prompt, and closes the lease."""
    with cache.open(some, namespace) as lease:
        assert lease.grow(len(some) // 4)
        lease.take_copies()
        lease.publish(some)


def found(cache: Cache, some: bytes, namespace: bytes = b"") -> int:
    root = cache.tree.roots.get(namespace)
    return cache.tree.match(root, some, len(some) // 4)[1] if root else 0


def picture(cache: Cache) -> object:
    """The whole state of a tree: its nodes with keys, pages and locks, and their order of age."""

    def draw(node: Node) -> object:
        return node.key, node.start, tuple(node.pages), node.n_locks, [draw(node.children[key]) for key in node.order]

    return {name: draw(root) for name, root in cache.tree.roots.items()}, age(cache), cache.stats()


def age(cache: Cache) -> list[bytes]:
    """The keys of unused nodes in the order of eviction."""
    order = []
    for queue in cache.tree.queues:
        node: Node = queue
        while (node := node.next) is not queue:
            order.append(node.key)
    return order


# ---- match ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 4, 16])
def test_a_match_is_exact_to_the_token_wherever_it_ends(page: int) -> None:
    cache, tokens = Cache(64, page), list(range(1, 43))
    store(cache, ids(*tokens))
    store(cache, ids(*tokens[:20], 99, 98, 97))
    for n in range(43):
        assert found(cache, ids(*tokens[:n])) == n
        assert found(cache, ids(*tokens[:n], 77, 78)) == n
        assert cache.tree.match(cache.tree.roots[b""], ids(*tokens), n)[1] == n
    assert found(cache, ids(*tokens[:20], 99, 98, 55)) == 22


def test_a_match_changes_nothing() -> None:
    cache = Cache(64, 4)
    for tail in range(5):
        store(cache, ids(1, 2, 3, 4, 5, 6, 7, 8, tail, tail, 9))
    before = picture(cache)
    for n in range(12):
        for tail in range(6):
            found(cache, ids(1, 2, 3, 4, 5, 6, 7, 8, tail, tail, 9)[: 4 * n] + ids(tail))
    assert picture(cache) == before


def test_of_children_that_share_less_than_a_page_the_closest_is_found() -> None:
    """Among many children, the closest is found at any place."""
    chance = random.Random(0)
    cache = Cache(4000, 16)
    prompts = {tuple(chance.randrange(2) for _ in range(16)) for _ in range(500)}
    for prompt in prompts:
        store(cache, ids(*prompt))
    for _ in range(200):
        wanted = tuple(chance.randrange(2) for _ in range(15))
        best = max(n_shared(wanted, prompt) for prompt in prompts)
        assert found(cache, ids(*wanted)) == best


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000])
def test_n_common_counts_tokens_not_bytes(n: int) -> None:
    same = ids(*range(n))
    assert n_common(same, 0, same) == n
    assert n_common(ids(7) + same, 4, same + ids(1)) == n
    assert n_common(same + ids(0x01020304), 0, same + ids(0x05020304)) == n, "the lower bytes are equal"
    assert n_common(same + ids(5, 6), 0, same + ids(4, 6)) == n


def test_namespaces_share_nothing_and_leave_nothing() -> None:
    cache, some = Cache(16, 4), ids(*range(10))
    store(cache, some, b"one")
    assert found(cache, some, b"one") == 10
    assert found(cache, some, b"two") == 0
    cache.open(some, b"two").close()
    assert list(cache.tree.roots) == [b"one"]
    cache.reset()
    assert not cache.tree.roots


# ---- split ---------------------------------------------------------------------------------------------------------


def test_a_split_keeps_pages_locks_and_age() -> None:
    cache = Cache(64, 4)
    store(cache, ids(*range(16)))
    store(cache, ids(50, 51, 52, 53))
    lease = cache.open(ids(*range(16)))
    other = cache.open(ids(*range(8), 99, 99, 99, 99))
    assert other.pages == lease.pages[:2]
    assert cache.stats().n_nodes == 3
    check(cache)
    lease.close()
    assert age(cache) == [ids(50, 51, 52, 53), ids(*range(8, 16))], "the lower half is free, the upper still locked"
    other.close()
    assert age(cache)[-1] == ids(*range(8))
    check(cache)


# ---- eviction ------------------------------------------------------------------------------------------------------


def test_the_longest_unused_goes_first() -> None:
    cache = Cache(8, 4)
    prompts = [ids(*[name] * 8) for name in range(4)]
    for prompt in prompts:
        store(cache, prompt)
    cache.open(prompts[0]).close()
    found(cache, prompts[1])  # a match is not a use
    for left in ([8, 0, 8, 8], [8, 0, 0, 8], [8, 0, 0, 0], [0, 0, 0, 0]):
        assert cache.evict(2) == 2
        assert [found(cache, prompt) for prompt in prompts] == left
    assert cache.evict(2) == 0
    assert cache.stats().n_evicted_pages == 8


def test_a_tail_is_taken_page_by_page() -> None:
    cache, prompt = Cache(8, 4), ids(*range(18))
    store(cache, prompt)
    for left in (16, 12, 8, 4, 0):
        assert cache.evict(1) == 1
        assert found(cache, prompt) == left
        check(cache)


def test_a_parent_outlives_its_children() -> None:
    cache = Cache(32, 4)
    trunk = list(range(8))
    for branch in range(4):
        store(cache, ids(*trunk, *[branch] * 4))
    for n_left in (4, 3, 2, 1):
        assert found(cache, ids(*trunk)) == 8
        assert cache.stats().n_cached == 2 + n_left
        cache.evict(1)
    cache.evict(1)
    assert found(cache, ids(*trunk)) == 4


def test_a_lock_keeps_the_path_and_only_the_path() -> None:
    cache, trunk = Cache(32, 4), list(range(8))
    store(cache, ids(*trunk, 1, 1, 1, 1))
    store(cache, ids(*trunk, 2, 2, 2, 2))
    lease = cache.open(ids(*trunk, 1, 1, 1, 1))
    assert cache.n_available == 32 - 3
    assert cache.evict(100) == 1
    assert found(cache, ids(*trunk, 1, 1, 1, 1)) == 12
    lease.close()
    assert cache.n_available == 32


def test_a_long_leaf_is_trimmed_at_a_cost_that_does_not_grow_with_it() -> None:
    """Measured without a clock: an eviction copies the key of the leaf, so that must almost always be short."""
    cache, prompt = Cache(1000, 4), ids(*range(4000))
    store(cache, prompt)
    n_long = 0
    for n in range(1, 1001):
        n_long += len(age(cache)[0]) > 64 * 16
        assert cache.evict(1) == 1
        assert found(cache, prompt) == 4000 - 4 * n
    assert n_long <= 1000 // 64 + 1
    check(cache)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_dead_node_that_was_held_goes_before_what_stands_above_it(policy: str) -> None:
    cache, some = Cache(64, 4, policy=policy), ids(*range(17))
    store(cache, some[:8])
    store(cache, some)
    whole = cache.handle(some)
    cache.handle(some[:4]).drop(1)
    whole.expect(0)
    whole.release()
    check(cache)
    while cache.evict(1):
        check(cache)


# ---- pages that are not full ---------------------------------------------------------------------------------------


def test_what_a_longer_page_says_too_is_not_kept_twice() -> None:
    cache = Cache(16, 4)
    store(cache, ids(1, 2))
    assert cache.stats().n_cached == 1
    with cache.open(ids(1, 2, 3, 4, 5), limit=1) as lease:  # copies the first token: the leaf is not extended
        assert lease.grow(5)
        assert lease.take_copies()
        lease.publish(ids(1, 2, 3, 4, 5))
        assert cache.stats().n_cached == 2, "the leaf [1, 2] went when [1, 2, 3, 4] came"
    store(cache, ids(1, 2, 3))
    assert cache.stats().n_cached == 2
    check(cache)


def test_a_page_that_another_has_finished_is_shared() -> None:
    """Two leases fill their copies of one page with the same tokens. The later one gets the page of the earlier."""
    cache = Cache(16, 4)
    one, two = cache.open(ids(1, 2)), cache.open(ids(1, 2))
    for lease, n in ((one, 2), (two, 2), (two, 4), (one, 4)):
        lease.grow(n)
        lease.publish(ids(1, 2, 3, 4)[: 4 * n])
        check(cache)
    assert one.pages == two.pages
    assert cache.stats()[1:4] == (15, 0, 1), "free, leased, cached"


def test_a_leaf_that_says_nothing_goes_with_its_last_lock() -> None:
    cache = Cache(16, 4)
    one, two = cache.open(ids(1, 2)), cache.open(ids(1, 2))
    one.grow(2)
    one.publish(ids(1, 2))
    two.grow(3)
    two.publish(ids(1, 2, 3))
    assert cache.stats().n_cached == 2, "each of them writes to its page"
    one.close()
    assert cache.stats().n_cached == 1
    check(cache)
    assert found(cache, ids(1, 2)) == 2
