"""Snapshots match the tree: shown nodes, folded nodes, and the order of eviction."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random

import pytest

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.node import Node
from banyan.radix_cache.snapshot import MAX_NODES, N_IDS, NodeSnapshot, TreeSnapshot, snapshot

PAGE = 4


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def store(cache: Cache, text: bytes, namespace: bytes = b"") -> Lease:
    lease = cache.open(text, namespace)
    assert lease.grow(len(text) // 4)
    lease.take_copies()
    lease.publish(text)
    return lease


def random_cache(seed: int, n: int = 40) -> Cache:
    chance, cache = Random(seed), Cache(400, PAGE)
    texts = [ids(*(chance.randrange(3) for _ in range(chance.randrange(1, N_IDS)))) for _ in range(n)]
    for text in texts:
        with store(cache, text, b"ab"[chance.randrange(2) :][:1]):
            pass
    return cache


def all_nodes(cache: Cache) -> list[Node]:
    found: list[Node] = list(cache.tree.roots.values())
    for node in found:
        found += node.children.values()
    return found


def paths(drawn: TreeSnapshot) -> Iterator[tuple[NodeSnapshot, list[int]]]:
    """Each shown node, and the tokens of its path as far as the snapshot has them."""
    known: list[list[int]] = []
    for node in drawn.nodes:
        before = [node.namespace] if node.parent < 0 else known[node.parent]
        known.append([*before, *node.ids])  # type: ignore[list-item]
        yield node, known[-1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [1, 7, 30, 1000])
def test_shown_and_folded_together_are_the_tree(seed: int, most: int) -> None:
    cache = random_cache(seed)
    drawn = snapshot(cache, most)
    assert len(drawn.nodes) == min(most, len(all_nodes(cache)))
    n_missing = sum(node.parent < 0 for node in drawn.nodes) - drawn.n_roots
    if not n_missing:
        n = sum(node.parent >= 0 for node in drawn.nodes) + sum(node.n_folded for node in drawn.nodes)
        assert n == drawn.n_nodes == cache.tree.n_nodes
        assert sum(node.n_tokens + node.n_folded_tokens for node in drawn.nodes) == cache.tree.n_tokens
    if most == 1000:
        said = {tuple(path) for node, path in paths(drawn)}
        assert said == {
            (root.namespace.hex(), *array("i", node.path).tolist())
            for root in cache.tree.roots.values()
            for node in below(root)
        }


def below(root: Node) -> list[Node]:
    found = [root]
    for node in found:
        found += node.children.values()
    return found


def test_the_biggest_are_shown_first() -> None:
    cache = Cache(100, PAGE)
    for first, n in ((1, 40), (2, 8), (3, 20)):
        with store(cache, ids(*[first] * n)):
            pass
    drawn = snapshot(cache, 3)
    assert [node.n_tokens for node in drawn.nodes] == [0, 40, 20]
    assert (drawn.nodes[0].n_folded, drawn.nodes[0].n_folded_tokens) == (1, 8)
    assert drawn.nodes[1].ids == [1] * N_IDS


@pytest.mark.parametrize("seed", range(5))
def test_so_many_pages_go_before_a_node(seed: int) -> None:
    n_all = len(snapshot(random_cache(seed), 1000).nodes)
    for i in range(n_all):
        cache = random_cache(seed)
        node = snapshot(cache, 1000).nodes[i]
        if node.parent < 0:
            continue
        assert node.n_before >= 0
        cache.evict(node.n_before)
        nodes = snapshot(cache, 1000).nodes
        assert any(one.n_before == 0 and one.n_pages == node.n_pages and one.ids == node.ids for one in nodes)


def test_what_is_read_pinned_and_expected_says_so() -> None:
    cache = Cache(100, PAGE)
    shared, texts = [9] * 8, [[i] * 8 for i in range(4)]
    leases = [store(cache, ids(*shared, *text)) for text in texts]
    for lease in leases[1:]:
        lease.close()
    cache.handle(ids(*shared, *texts[1])).pin(5.0)
    cache.handle(ids(*shared, *texts[2])).expect(3)
    found = {tuple(node.ids): node for node in snapshot(cache, 100).nodes}
    trunk, used, pinned, expected, free = (found[tuple(key)] for key in (shared, *texts))
    assert [node.n_locks for node in (trunk, used, pinned, expected, free)] == [1, 1, 0, 0, 0]
    assert [node.is_pinned for node in (trunk, used, pinned, expected, free)] == [True, False, True, False, False]
    assert [node.is_expected for node in (trunk, used, pinned, expected, free)] == [True, False, False, True, False]
    assert [node.n_before for node in (trunk, used, pinned, expected, free)] == [-1, -1, -1, -1, 0]


def test_what_lies_in_host_memory_says_so() -> None:
    cache = Cache(8, PAGE, n_host=8)
    with store(cache, ids(*[1] * 16)):
        pass
    cache.evict(4)
    (_, node) = snapshot(cache, 10).nodes
    assert (node.n_pages, node.n_host, node.n_before) == (0, 4, -1)


def test_the_answer_is_bounded() -> None:
    cache = Cache(2 * MAX_NODES, 1)
    for i in range(MAX_NODES + 10):
        with store(cache, ids(i)):
            pass
    assert len(snapshot(cache, 10**9).nodes) == MAX_NODES
    assert snapshot(cache, 0).nodes == []
