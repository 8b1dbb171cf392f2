"""Every invariant of a cache, in one function. Its time grows with the tree: for tests and idle moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.node import Node, Root


class Corrupt(AssertionError):
    """An invariant does not hold; the message says which, and where."""


def check(cache: Cache) -> None:
    """Raises Corrupt at the first invariant that does not hold. Changes nothing."""
    _check_pages(cache)
    for namespace, root in cache.tree.roots.items():
        _must(root.namespace == namespace, f"the root of {namespace!r} calls itself {root.namespace!r}")
        _must(not root.key and not root.pages and root.start == 0, "a root has tokens or pages")
        _must(root.order == sorted(root.children), "the order of a root's children is not their keys, sorted")
        _must(bool(root.children or root.n_locks), f"the root of {namespace!r} is empty and unlocked, and still there")
        for node in _below(root):
            _check_node(cache, node)
    n_tokens = sum(len(node.key) // 4 for node in _nodes(cache) if node.pages)
    _must(cache.tree.n_tokens == n_tokens, f"the tree counts {cache.tree.n_tokens} tokens, but there are {n_tokens}")
    _check_locks(cache)
    _check_host(cache)
    _check_holds(cache)
    _check_lanes(cache)
    for lease in cache.leases:
        check_lease(lease)


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


def private(lease: Lease) -> list[int]:
    """The pages of a lease that are not the tree's."""
    return lease.pages[len(lease.pages) - lease.n_private :]


def _check_pages(cache: Cache) -> None:
    """Every page is free, leased or in the tree, exactly once; and the counters say so."""
    tree, nodes = cache.tree, list(_nodes(cache))
    free = cache.pool.free
    leased = [page for lease in cache.leases for page in private(lease)]
    cached = [page for node in nodes for page in node.pages]
    holders = Counter(free) + Counter(leased) + Counter(cached) + Counter(cache.quarantined)
    wrong = [page for page in {*range(cache.n_pages), *holders} if holders[page] != 1 or not 0 <= page < cache.n_pages]
    for page in wrong:
        where = f"free {free.count(page)}, leased {leased.count(page)}, in the tree {cached.count(page)} times"
        raise Corrupt(f"page {page} of {cache.n_pages} is not held exactly once: {where}")
    evictable = sum(len(node.pages) for node in nodes if not node.n_locks)
    held = sum(len(node.pages) for node in nodes if node.n_holds and not node.n_locks)
    for name, says, is_ in (
        ("leased pages", cache._n_leased, len(leased)),
        ("cached pages", tree.n_pages, len(cached)),
        ("held pages", tree.n_held, held),
        ("evictable pages", tree.n_evictable, evictable),
        ("nodes", tree.n_nodes, len(nodes)),
    ):
        _must(says == is_, f"the counter of {name} says {says}, but there are {is_}")
    _must(cache.conserved(), "the counters do not add up to n_pages")
    _must(cache.enabled or not nodes, "the cache is off, and there are nodes")


def check_shape(cache: Cache, node: Node) -> None:
    """A node is a run of whole tokens in as many pages as that takes, where its parent looks for it."""
    page, parent = cache.page, node.parent
    at = f"node at {node.start} of {len(node.key) // 4} tokens"
    if parent is None:
        raise Corrupt(f"{at} has no parent")
    n, rest = divmod(len(node.key), 4)
    _must(n > 0 and not rest, f"{at}: a key must hold whole tokens, and one at least")
    _must(len(node.pages) in (-(-n // page), 0), f"{at} has {len(node.pages)} pages of {page}")
    _must(len(node.host) in (-(-n // page), 0), f"{at} has {len(node.host)} pages of {page} in host memory")
    _must(bool(node.pages or node.host), f"{at} lies nowhere")
    _must(bool(parent.pages or not node.pages or not parent.parent), f"{at} is on the device, and what is above is not")
    _must(node.start == parent.end and node.start % page == 0, f"{at} does not begin at a border behind its parent")
    _must(not node.children or n % page == 0, f"{at} has children behind a page that is not full")
    _must(node.order == sorted(node.children), f"{at}: the order of the children is not their keys, sorted")
    first = node.key[: 4 * page]
    _must(parent.children.get(first) is node, f"{at} is not where its parent looks for it")


def _check_node(cache: Cache, node: Node) -> None:
    check_shape(cache, node)
    page, parent, first, n = cache.page, node.parent, node.key[: 4 * cache.page], len(node.key) // 4
    assert parent is not None
    at = f"node at {node.start} of {n} tokens"
    _must(bool(node.pages or not node.n_holds), f"{at} is held, and not on the device")
    _must(parent.n_locks >= node.n_locks, f"{at} is locked more often than its parent")
    if n < page and not node.n_locks and not node.n_holds:
        longer = [key for key in parent.children if key != first and key.startswith(first)]
        _must(not longer, f"{at} says nothing that a child beside it does not say")


def _check_locks(cache: Cache) -> None:
    """A node is locked once by each lease that holds it or something below it."""
    locks: Counter[Node] = Counter()
    for lease in cache.leases:
        path: set[Node] = set()
        for end in (lease._at, lease._source):
            node = end
            while node is not None:
                path.add(node)
                node = node.parent
        locks.update(path)
    for node in (*cache.tree.roots.values(), *_nodes(cache)):
        _must(
            node.n_locks == locks[node],
            f"node at {node.start} of {len(node.key) // 4} tokens has {node.n_locks} locks, but {locks[node]} leases",
        )


def _check_holds(cache: Cache) -> None:
    """A node is held once by each handle that holds it or something below it, and the handles stand in order."""
    holds: Counter[Node] = Counter()
    for order, name in ((cache.holds.expected, "due"), (cache.holds.pinned, "until")):
        _must(order == sorted(order), "the handles that hold something are out of order")
        for due, _, handle in order:
            _must(getattr(handle, name) == due, "a handle stands elsewhere than it says")
            if handle.node is None:
                raise Corrupt("a handle that holds nothing stands among those that do")
            at: Node | None = handle.node
            while at is not None and at.parent is not None:
                holds[at] += 1
                at = at.parent
            _must(isinstance(at, Root) and at.namespace == handle.namespace, "a handle holds what is not in the tree")
            above = handle.node.parent.path if handle.node.parent else b""
            _must(handle.ids.startswith(above), "a handle holds another's tokens")
    for node in _nodes(cache):
        _must(
            node.n_holds == holds[node],
            f"node at {node.start} of {len(node.key) // 4} tokens has {node.n_holds} holds, but {holds[node]} handles",
        )


def _check_host(cache: Cache) -> None:
    """Each page of host memory is free or in one node, and its lane holds the nodes that lie nowhere else."""
    host, nodes = cache.host, list(_nodes(cache))
    if host is None:
        _must(not any(node.host for node in nodes), "a node lies in host memory, and there is none")
        return
    held = Counter([*host.free, *(page for node in nodes for page in node.host)])
    _must(held == Counter(range(host.n_pages)), "a page of host memory is not held exactly once")
    _must(host.copies.keys() == {node for node in nodes if node.host and node.pages}, "a copy is not known as one")
    listed: dict[Node, int] = {}
    node: Node = host.lane
    while node.next is not host.lane:
        _must(node.next.prev is node and node.next not in listed, "the host's lane is not a circle")
        node = node.next
        listed[node] = len(listed)
    _must(host.lane.prev is node, "the host's lane is not a circle")
    alone = {node for node in nodes if not node.pages and not node.n_locks}
    _must(alone == listed.keys(), "the host's lane is not what lies in host memory alone")
    for node in alone:
        _must(node.lane is host.lane, "a node stands in another lane than it says")
        parent = node.parent
        is_first = parent is None or listed[node] < listed.get(parent, len(listed))
        _must(is_first, "in host memory, a node goes before one below it")


def _check_lanes(cache: Cache) -> None:
    """The lanes hold the nodes that are neither locked nor held, once each, and none before one that is below it."""
    tree = cache.tree
    _must(bool(tree.lanes), "there is no lane")
    levels = [lane.level for lane in tree.lanes]
    _must(levels == sorted(set(levels)), "the lanes are out of order")
    listed: dict[Node, tuple[float, int]] = {}
    for lane in tree.lanes:
        _must(lane is tree.dead or (lane.is_open and tree.levels.get(lane.level) is lane), "a lane is shut and listed")
        node: Node = lane
        while node.next is not lane:
            _must(node.next.prev is node and node.next not in listed, "a lane is not a circle")
            node = node.next
            _must(node.lane is lane, "a node stands in another lane than it says")
            listed[node] = lane.level, len(listed)
        _must(lane.prev is node, "a lane is not a circle")
    for lane in (tree.dead, *tree.levels.values()):
        if lane not in tree.lanes:
            _must(lane.next is lane and not lane.is_open, "a lane is open, or has nodes, and is not listed")
    free = {node for node in _nodes(cache) if node.pages and not (node.n_locks or node.n_holds)}
    _must(free == listed.keys(), "the lanes do not hold the nodes that are neither locked nor held")
    for lane in tree.lanes:
        n_pages = sum(len(node.pages) for node in listed if node.lane is lane)
        _must(lane.n_pages == n_pages, f"a lane says {lane.n_pages} pages, but has {n_pages}")
    for node in _nodes(cache):
        parent = node.parent
        if node.pages and parent is not None and parent.parent is not None:
            _must(_stays(node, listed) <= _stays(parent, listed), "a node is evicted before one below it")


def _stays(node: Node, listed: dict[Node, tuple[float, int]]) -> tuple[int, float, int]:
    """How late a node is evicted: by class (in a lane, held, locked), then by its lane's level, then by its place."""
    if node.n_locks:
        return 2, 0.0, 0
    if node.n_holds:
        return 1, 0.0, 0
    return 0, *listed[node]


def check_lease(lease: Lease) -> None:
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
