"""What stands in the tree, for somebody who looks: the biggest subtrees node by node, the rest as numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.node import Node, Root

N_IDS = 24
"""Ids of a node's beginning that are shown."""
MOST = 5000
"""Nodes of a sketch, however many are asked for."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A node, or a root, which has no tokens.

    parent     its place in Sketch.nodes; -1: it is a root
    ids        the first of its tokens
    n_pages    on the device; n_host: in host memory. Both: it has a copy there
    n_locks    leases that read it or something below it: its sharers
    n_before   pages that are evicted before it; -1: it is locked or held, or not on the device
    n_folded   nodes below it that are not shown, and their tokens
    namespace  of a root, in hexadecimal digits
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


@dataclass(frozen=True, slots=True)
class Sketch:
    """nodes: each behind its parent; of children, first who has most below it. n_nodes, n_roots: shown or not."""

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
    nodes: list[Shown] = field(default_factory=list)


def sketch(cache: Cache, n_most: int) -> Sketch:
    """The tree with at most `n_most` of its nodes, those with most tokens below them. Walks all of it once."""
    stats = cache.stats()
    drawn = Sketch(
        cache.page, stats.n_pages, stats.n_free, stats.n_leased, stats.n_cached, stats.n_held, stats.n_host_pages,
        stats.n_host_cached, stats.n_nodes, len(cache.tree.roots),
    )  # fmt: skip
    sizes = _sizes(cache)
    chosen = _choose(cache, sizes, min(n_most, MOST))
    before, pinned, expected = _before(cache, chosen), *_held(cache)
    stack: list[tuple[Node, int]] = [
        (root, -1) for root in reversed(_by_size((r for r in cache.tree.roots.values() if r in chosen), sizes))
    ]
    while stack:
        node, parent = stack.pop()
        below = _by_size((child for child in node.children.values() if child in chosen), sizes)
        stack.extend((child, len(drawn.nodes)) for child in reversed(below))
        n_nodes, n_tokens = sizes[node]
        n_own = len(node.key) // 4
        n_shown, n_shown_tokens = (sum(sizes[child][i] for child in below) for i in (0, 1))
        drawn.nodes.append(
            Shown(
                parent=parent,
                ids=array("i", node.key[: 4 * N_IDS]).tolist(),
                n_tokens=n_own,
                n_pages=len(node.pages),
                n_host=len(node.host),
                n_locks=node.n_locks,
                n_before=before.get(node, -1),
                is_pinned=node in pinned,
                is_expected=node in expected,
                n_folded=n_nodes - 1 - n_shown,
                n_folded_tokens=n_tokens - n_own - n_shown_tokens,
                namespace=node.namespace.hex() if isinstance(node, Root) else "",
            )
        )
    return drawn


def _by_size(nodes: Iterable[Node], sizes: dict[Node, tuple[int, int]]) -> list[Node]:
    return sorted(nodes, key=lambda node: -sizes[node][1])


def _sizes(cache: Cache) -> dict[Node, tuple[int, int]]:
    """(nodes, tokens) of each subtree."""
    order: list[Node] = list(cache.tree.roots.values())
    for node in order:
        order += node.children.values()
    sizes = {node: (1, len(node.key) // 4) for node in order}
    for node in reversed(order):
        if node.parent:
            (n, n_tokens), (m, m_tokens) = sizes[node.parent], sizes[node]
            sizes[node.parent] = n + m, n_tokens + m_tokens
    return sizes


def _choose(cache: Cache, sizes: dict[Node, tuple[int, int]], n_most: int) -> set[Node]:
    """Those with most tokens in their subtrees."""
    chosen: set[Node] = set()
    heap: list[tuple[int, int, Node]] = []

    def offer(nodes: Iterable[Node]) -> None:
        for node in nodes:
            heappush(heap, (-sizes[node][1], id(node), node))

    offer(cache.tree.roots.values())
    while heap and len(chosen) < n_most:
        node = heappop(heap)[2]
        chosen.add(node)
        offer(node.children.values())
    return chosen


def _before(cache: Cache, chosen: set[Node]) -> dict[Node, int]:
    """Of the chosen that stand in lanes, how many pages go before each."""
    before, n = dict[Node, int](), 0
    for lane in cache.tree.lanes:
        node = lane.next
        while node is not lane:
            if node in chosen:
                before[node] = n
            n += len(node.pages)
            node = node.next
    return before


def _held(cache: Cache) -> tuple[set[Node], set[Node]]:
    """The nodes that are pinned, and those that are expected."""
    pinned, expected = set[Node](), set[Node]()
    for places, nodes in ((cache.holds.pinned, pinned), (cache.holds.expected, expected)):
        for place in places:
            node = place.handle.node
            while node is not None and node.parent and node not in nodes:
                nodes.add(node)
                node = node.parent
    return pinned, expected
