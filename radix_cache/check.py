"""Every invariant of a cache, in one function. Its time grows with the tree: for tests and idle moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.tree import Node, Root


class Corrupt(AssertionError):
    """An invariant does not hold; the message says which, and where."""


def check(cache: Cache) -> None:
    """Raises Corrupt at the first invariant that does not hold. Changes nothing."""
    _check_pages(cache)
    for namespace, root in cache.tree.roots.items():
        _must(root.namespace == namespace, f"the root of {namespace!r} calls itself {root.namespace!r}")
        _must(not root.key and not root.pages and root.start == 0, "a root has tokens or pages")
        _must(bool(root.children or root.n_locks), f"the root of {namespace!r} is empty and unlocked, and still there")
        for node in _below(root):
            _check_node(cache, node)
    _check_locks(cache)
    _check_order(cache)
    for lease in cache.leases:
        _check_lease(lease)


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise Corrupt(what)


def _below(node: Node) -> Iterator[Node]:
    """All nodes below one, parents first."""
    stack = list(node.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()


def _nodes(cache: Cache) -> Iterator[Node]:
    for root in cache.tree.roots.values():
        yield from _below(root)


def _private(lease: Lease) -> list[int]:
    return lease.pages[len(lease.pages) - lease.n_private :]


def _check_pages(cache: Cache) -> None:
    """Every page is free, leased or in the tree, exactly once; and the counters say so."""
    tree, nodes = cache.tree, list(_nodes(cache))
    free = cache.pool.free
    leased = [page for lease in cache.leases for page in _private(lease)]
    cached = [page for node in nodes for page in node.pages]
    holders = Counter(free) + Counter(leased) + Counter(cached)
    wrong = [page for page in {*range(cache.n_pages), *holders} if holders[page] != 1 or not 0 <= page < cache.n_pages]
    for page in wrong:
        where = f"free {free.count(page)}, leased {leased.count(page)}, in the tree {cached.count(page)} times"
        raise Corrupt(f"page {page} of {cache.n_pages} is not held exactly once: {where}")
    evictable = sum(len(node.pages) for node in nodes if not node.n_locks)
    for name, says, is_ in (
        ("leased pages", cache._n_leased, len(leased)),
        ("cached pages", tree.n_pages, len(cached)),
        ("evictable pages", tree.n_evictable, evictable),
        ("nodes", tree.n_nodes, len(nodes)),
    ):
        _must(says == is_, f"the counter of {name} says {says}, but there are {is_}")
    _must(cache.conserved(), "the counters do not add up to n_pages")
    _must(cache.enabled or not nodes, "the cache is off, and there are nodes")


def _check_node(cache: Cache, node: Node) -> None:
    page, parent = cache.page, node.parent
    at = f"node at {node.start} of {len(node.key) // 4} tokens"
    if parent is None:
        raise Corrupt(f"{at} has no parent")
    n, rest = divmod(len(node.key), 4)
    _must(n > 0 and not rest, f"{at}: a key must hold whole tokens, and one at least")
    _must(len(node.pages) == -(-n // page), f"{at} has {len(node.pages)} pages of {page}")
    _must(node.start == parent.end and node.start % page == 0, f"{at} does not begin at a border behind its parent")
    _must(not node.children or n % page == 0, f"{at} has children behind a page that is not full")
    _must(node.order == sorted(node.children), f"{at}: the order of the children is not their keys, sorted")
    first = node.key[: 4 * page]
    _must(parent.children.get(first) is node, f"{at} is not where its parent looks for it")
    _must(parent.n_locks >= node.n_locks, f"{at} is locked more often than its parent")
    if n < page and not node.n_locks:
        longer = [key for key in parent.children if key != first and key.startswith(first)]
        _must(not longer, f"{at} says nothing that a child beside it does not say")


def _check_locks(cache: Cache) -> None:
    """A node is locked once by each lease that holds it or something below it."""
    locks: Counter[Node] = Counter()
    for lease in cache.leases:
        path: set[Node] = set()
        for node in (lease._at, lease._source):
            while node is not None:
                path.add(node)
                node = node.parent
        locks.update(path)
    for node in (*cache.tree.roots.values(), *_nodes(cache)):
        _must(
            node.n_locks == locks[node],
            f"node at {node.start} of {len(node.key) // 4} tokens has {node.n_locks} locks, but {locks[node]} leases",
        )


def _check_order(cache: Cache) -> None:
    """The list holds the unlocked nodes, once each, and each before its parent."""
    ends = cache.tree.unlocked
    listed: dict[Node | None, int] = {}
    node = ends
    while node.next is not ends:
        _must(node.next.prev is node and node.next not in listed, "the list of the unlocked is not a circle")
        node = node.next
        listed[node] = len(listed)
    _must(ends.prev is node, "the list of the unlocked is not a circle")
    unlocked = {node for node in _nodes(cache) if not node.n_locks}
    _must(unlocked == listed.keys(), "the list of the unlocked is not the unlocked nodes")
    for node in unlocked:
        _must(node.parent not in listed or listed[node] < listed[node.parent], "a node is older than one below it")


def _check_lease(lease: Lease) -> None:
    """What a lease reads is what it says it is."""
    cache, at, source = lease.cache, lease._at, lease._source
    page = cache.page
    key, node = b"", at
    pages: list[int] = []
    while node.parent is not None:
        key, pages, node = node.key + key, node.pages + pages, node.parent
    _must(isinstance(node, Root) and node.namespace == lease._namespace, "a lease is in another namespace than its own")
    _must(lease.is_open, "a closed lease is listed as open")
    _must(lease._ids.startswith(key), "a lease is locked on a path of other tokens than its own")
    _must(lease.pages[: len(pages)] == pages, "a lease reads other pages than the tree has for its tokens")
    _must(at.end <= lease._n_known <= lease.n_slots, "a lease knows more tokens than it has room for")
    if source is not None:
        parent, first = source, source
        while parent.parent is not None and parent is not at:
            parent, first = parent.parent, parent
        _must(parent is at, "the source of a copy is not below its lease")
        rest = lease._ids[4 * at.end : 4 * lease.n_cached]
        _must(first.key.startswith(rest) and 0 < len(rest) < 4 * page, "the source of a copy holds other tokens")
        _must(all(copy[0] == first.pages[0] for copy in lease._copies), "a copy reads another page than its source's")
    _must(source is not None or not lease._copies, "a copy has no locked source")
    if at.end % page:
        owners = [other for other in cache.leases if other._at is at]
        _must(owners == [lease], "two leases fill one page")
