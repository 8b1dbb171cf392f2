"""A snapshot matches the tree: shown nodes, folded nodes, and the order of eviction."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random

import pytest

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.snapshot import MAX_NODES, N_IDS, NodeSnapshot, TreeSnapshot, snapshot
from cache_support import ids, open_published
from forms import in_short

PAGE = 4


def random_cache(seed: int, n: int = 40) -> Cache:
    rng, cache = Random(seed), Cache(400, PAGE)
    prompts = [ids(*(rng.randrange(3) for _ in range(rng.randrange(1, N_IDS)))) for _ in range(n)]
    for prompt in prompts:
        open_published(cache, prompt, b"ab"[rng.randrange(2) :][:1]).close()
    return cache


def paths(tree: TreeSnapshot) -> Iterator[tuple[NodeSnapshot, list[int]]]:
    """Yields each shown node, and [namespace, *tokens of its path] as far as the snapshot has them."""
    known: list[list[int]] = []
    for node in tree.nodes:
        before = [node.namespace] if node.parent < 0 else known[node.parent]
        known.append([*before, *node.ids])  # type: ignore[list-item]
        yield node, known[-1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("max_nodes", [1, 7, 30, 1000])
def test_shown_and_folded_nodes_are_the_whole_tree(seed: int, max_nodes: int) -> None:
    cache = random_cache(seed)
    tree = snapshot(cache, max_nodes)
    assert len(tree.nodes) == min(max_nodes, cache.tree.n_nodes + len(cache.tree.roots))
    n_missing = sum(node.parent < 0 for node in tree.nodes) - tree.n_roots
    if not n_missing:
        n = sum(node.parent >= 0 for node in tree.nodes) + sum(node.n_folded for node in tree.nodes)
        assert n == tree.n_nodes == cache.tree.n_nodes
        assert sum(node.n_tokens + node.n_folded_tokens for node in tree.nodes) == cache.tree.n_tokens
    if max_nodes == 1000:
        actual = {tuple(path) for node, path in paths(tree)}
        assert actual == {
            (root.namespace.hex(), *array("i", node.path).tolist())
            for root in cache.tree.roots.values()
            for node in cache.tree.subtree(root)
        }


def test_largest_nodes_are_shown_first() -> None:
    cache = Cache(100, PAGE)
    for token, n in ((1, 40), (2, 8), (3, 20)):
        open_published(cache, ids(*[token] * n)).close()
    tree = snapshot(cache, 3)
    assert [node.n_tokens for node in tree.nodes] == [0, 40, 20]
    assert (tree.nodes[0].n_folded, tree.nodes[0].n_folded_tokens) == (1, 8)
    assert tree.nodes[1].ids == [1] * N_IDS


@pytest.mark.parametrize("seed", in_short([0], range(5)))
def test_n_before_counts_the_pages_evicted_before_a_node(seed: int) -> None:
    n_all = len(snapshot(random_cache(seed), 1000).nodes)
    for i in range(n_all):
        cache = random_cache(seed)
        node = snapshot(cache, 1000).nodes[i]
        if node.parent < 0:
            continue
        assert node.n_before >= 0
        cache.hints.evict(node.n_before)
        nodes = snapshot(cache, 1000).nodes
        assert any(other.n_before == 0 and other.n_pages == node.n_pages and other.ids == node.ids for other in nodes)


def test_snapshot_marks_locked_pinned_and_expected_nodes() -> None:
    cache = Cache(100, PAGE)
    shared, tails = [9] * 8, [[i] * 8 for i in range(4)]
    leases = [open_published(cache, ids(*shared, *tail)) for tail in tails]
    leases[0].owner = 5
    for lease in leases[1:]:
        lease.close()
    cache.handle(ids(*shared, *tails[1])).pin(5.0)
    cache.handle(ids(*shared, *tails[2])).expect(3)
    found = {tuple(node.ids): node for node in snapshot(cache, 100).nodes}
    trunk, used, pinned, expected, free = (found[tuple(key)] for key in (shared, *tails))
    assert [node.n_locks for node in (trunk, used, pinned, expected, free)] == [1, 1, 0, 0, 0]
    assert [node.owners for node in (trunk, used, pinned)] == [[5], [5], []]
    assert [node.is_pinned for node in (trunk, used, pinned, expected, free)] == [True, False, True, False, False]
    assert [node.is_expected for node in (trunk, used, pinned, expected, free)] == [True, False, False, True, False]
    assert [node.n_before for node in (trunk, used, pinned, expected, free)] == [-1, -1, -1, -1, 0]


def test_snapshot_counts_pages_in_host_memory() -> None:
    cache = Cache(8, PAGE, n_host=8)
    open_published(cache, ids(*[1] * 16)).close()
    cache.hints.evict(4)
    (_, node) = snapshot(cache, 10).nodes
    assert (node.n_pages, node.n_host, node.n_before) == (0, 4, -1)


def test_number_of_nodes_is_bounded() -> None:
    cache = Cache(2 * MAX_NODES, 1)
    for i in range(MAX_NODES + 10):
        open_published(cache, ids(i)).close()
    assert len(snapshot(cache, 10**9).nodes) == MAX_NODES
    assert snapshot(cache, 0).nodes == []
