"""A picture of the tree for `banyan tree`: the largest subtrees node by node, the rest as numbers."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.node import Node, Root, upward

N_IDS = 24
"""Maximum number of token ids that are shown of a node."""
N_OWNERS = 8
MAX_NODES = 5000
"""Maximum number of nodes in a snapshot, even if the caller asks for more."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node of the tree. A root is a node without tokens.

    parent     the index of its parent in TreeSnapshot.nodes; -1: it is a root
    ids        its first token ids
    n_pages    pages on the device
    n_host     pages in host memory; if n_pages is not 0, they are copies of the pages on the device
    n_locks    leases on it or on a node below it
    n_before   pages that are evicted before it; -1: it is locked, held or not on the device
    n_folded   nodes below it that are not shown; n_folded_tokens: their tokens
    namespace  a root's namespace, in hexadecimal
    owners     programs with a lease that ends at the node or below it, at most N_OWNERS
    """

    parent: int
    ids: list[int]
    n_tokens: int
    n_pages: int
    n_host: int
    n_locks: int
    n_before: int
    is_pinned: bool
    is_expected: bool
    n_folded: int
    n_folded_tokens: int
    namespace: str = ""
    owners: list[Hashable] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """The whole tree. nodes: parents before children; of siblings, the largest subtree first. n_nodes, n_roots: all
    nodes and roots, also those that are not in `nodes`. The other numbers are as in `Stats`."""

    page: int
    n_pages: int
    n_free: int
    n_leased: int
    n_cached: int
    n_held: int
    n_host_pages: int
    n_host_cached: int
    n_nodes: int
    n_roots: int
    nodes: list[NodeSnapshot] = field(default_factory=list)


def snapshot(cache: Cache, n_max: int) -> TreeSnapshot:
    """Takes a snapshot of at most `n_max` nodes: those with the most tokens below them. Walks the whole tree."""
    stats = cache.stats()
    result = TreeSnapshot(
        cache.page, stats.n_pages, stats.n_free, stats.n_leased, stats.n_cached, stats.n_held, stats.n_host_pages,
        stats.n_host_cached, stats.n_nodes, len(cache.tree.roots),
    )  # fmt: skip
    sizes = _sizes(cache)
    chosen = _choose(cache, sizes, min(n_max, MAX_NODES))
    before = _pages_before(cache)
    pinned, expected = (
        {node for place in order for node in upward(place.hint.node) if node.parent}
        for order in (cache.hints.pinned, cache.hints.expected)
    )

    owners: dict[Node, dict[Hashable, None]] = {}
    for lease in cache.leases:
        for node in upward(lease.node):
            if len(found := owners.setdefault(node, {})) < N_OWNERS:
                found[lease.owner] = None

    def largest_first(nodes: Iterable[Node]) -> list[Node]:
        return sorted((node for node in nodes if node in chosen), key=lambda node: -sizes[node][1])

    stack: list[tuple[Node, int]] = [(root, -1) for root in reversed(largest_first(cache.tree.roots.values()))]
    while stack:
        node, parent = stack.pop()
        children = largest_first(node.children.values())
        stack.extend((child, len(result.nodes)) for child in reversed(children))
        n_nodes, n_tokens = sizes[node]
        n_own = len(node.key) // 4
        result.nodes.append(
            NodeSnapshot(
                parent=parent,
                ids=array("i", node.key[: 4 * N_IDS]).tolist(),
                n_tokens=n_own,
                n_pages=len(node.pages),
                n_host=len(node.host),
                n_locks=node.n_locks,
                n_before=before.get(node, -1),
                is_pinned=node in pinned,
                is_expected=node in expected,
                n_folded=n_nodes - 1 - sum(sizes[child][0] for child in children),
                n_folded_tokens=n_tokens - n_own - sum(sizes[child][1] for child in children),
                namespace=node.namespace.hex() if isinstance(node, Root) else "",
                owners=list(owners.get(node, ())),
            )
        )
    return result


def _sizes(cache: Cache) -> dict[Node, tuple[int, int]]:
    """Counts the (nodes, tokens) of each subtree."""
    nodes = [node for root in cache.tree.roots.values() for node in cache.tree.subtree(root)]
    sizes = {node: (1, len(node.key) // 4) for node in nodes}
    for node in reversed(nodes):
        if node.parent:
            (n, n_tokens), (m, m_tokens) = sizes[node.parent], sizes[node]
            sizes[node.parent] = n + m, n_tokens + m_tokens
    return sizes


def _choose(cache: Cache, sizes: dict[Node, tuple[int, int]], n_max: int) -> set[Node]:
    """The n_max nodes with the most tokens in their subtrees."""
    chosen: set[Node] = set()
    heap: list[tuple[int, int, Node]] = []

    def offer(nodes: Iterable[Node]) -> None:
        for node in nodes:
            heappush(heap, (-sizes[node][1], id(node), node))

    offer(cache.tree.roots.values())
    while heap and len(chosen) < n_max:
        node = heappop(heap)[2]
        chosen.add(node)
        offer(node.children.values())
    return chosen


def _pages_before(cache: Cache) -> dict[Node, int]:
    """For each node in an eviction queue: how many pages are evicted before it."""
    before, n = dict[Node, int](), 0
    for node in chain.from_iterable(cache.tree.queues):
        before[node] = n
        n += len(node.pages)
    return before
