"""Checks every invariant of a cache. The time grows with the tree: for tests, idle moments and `banyan check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.node import EvictionQueue, Node, Root, upward
from banyan.radix_cache.windows import WindowPages


class Corrupt(AssertionError):
    """An invariant is violated; the message says which one, and where."""


def check(cache: Cache) -> None:
    """Raises Corrupt at the first violated invariant. Changes nothing."""
    nodes = [node for root in cache.tree.roots.values() for node in cache.tree.subtree(root)[1:]]
    _check_pages(cache, nodes)
    for namespace, root in cache.tree.roots.items():
        _must(root.namespace == namespace, f"the root of {namespace!r} has the namespace {root.namespace!r}")
        _must(not root.key and not root.pages and root.start == 0, "a root has tokens or pages")
        _must(root.order == sorted(root.children), "the order of a root's children is not their sorted keys")
        _must(bool(root.children or root.n_locks), f"the root of {namespace!r} is empty and unlocked")
    for node in nodes:
        _check_node(cache, node)
    n_tokens = sum(len(node.key) // 4 for node in nodes if node.pages)
    _must(cache.tree.n_tokens == n_tokens, f"the tree counts {cache.tree.n_tokens} tokens, but there are {n_tokens}")
    _check_locks(cache, nodes)
    _check_host(cache, nodes)
    if cache.window is None:
        _check_states(cache, nodes)
    else:
        _check_windows(cache, cache.window, nodes)
    _check_holds(cache, nodes)
    _check_queues(cache, nodes)
    for lease in cache.leases:
        check_lease(lease)


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise Corrupt(what)


def _is_each_once(numbers: list[int], n: int) -> bool:
    """Whether the numbers are 0 .. n - 1, each once, in any order. Sorting takes a tenth of the time of counting."""
    return sorted(numbers) == list(range(n))


def _name(node: Node) -> str:
    return f"node at {node.start} of {len(node.key) // 4} tokens"


def private(lease: Lease) -> list[int]:
    """The pages of a lease that do not belong to the tree."""
    return list(lease.pages[len(lease.pages) - lease.n_private :])


def locked_nodes(lease: Lease) -> set[Node]:
    """The nodes that a lease locks, with their roots."""
    return {*upward(lease.node), *upward(lease._source)}


def _check_pages(cache: Cache, nodes: list[Node]) -> None:
    """Checks that every page is free, leased, in the tree or quarantined, exactly once, and that the counters agree."""
    tree, free = cache.tree, cache.pool.free
    leased = [page for lease in cache.leases for page in private(lease)]
    cached = [page for node in nodes for page in node.pages]
    owned = [*free, *leased, *cached, *cache.quarantined]
    if not _is_each_once(owned, cache.n_pages):
        owners = Counter(owned)
        known = range(cache.n_pages)
        page = next(page for page in {*known, *owners} if owners[page] != 1 or page not in known)
        where = f"free {free.count(page)}, leased {leased.count(page)}, in the tree {cached.count(page)} times"
        raise Corrupt(f"page {page} of {cache.n_pages} does not have exactly one owner: {where}")
    evictable = sum(len(node.pages) for node in nodes if not node.n_locks)
    held = sum(len(node.pages) for node in nodes if node.n_holds and not node.n_locks)
    for name, counter, n in (
        ("leased pages", cache._n_leased, len(leased)),
        ("cached pages", tree.n_pages, len(cached)),
        ("held pages", tree.n_held, held),
        ("evictable pages", tree.n_evictable, evictable),
        ("nodes", tree.n_nodes, len(nodes)),
    ):
        _must(counter == n, f"the counter of {name} is {counter}, but there are {n}")
    _must(cache.conserved(), "the counters do not add up to n_pages")
    _must(cache.enabled or not nodes, "the cache is off, but there are nodes")


def check_shape(cache: Cache, node: Node) -> None:
    """Checks one node. Its key must have at least one token, and whole tokens only. It must have as many pages as its
    key needs, and begin at the end of its parent, on a page boundary. Its parent must list it as a child under the
    first page of its key. Raises Corrupt if not."""
    page, parent, name = cache.page, node.parent, _name(node)
    if parent is None:
        raise Corrupt(f"{name} has no parent")
    n, rest = divmod(len(node.key), 4)
    _must(n > 0 and not rest, f"{name}: a key must have whole tokens, and at least one")
    _must(len(node.pages) in (-(-n // page), 0), f"{name} has {len(node.pages)} pages of {page} slots")
    _must(len(node.host) in (-(-n // page), 0), f"{name} has {len(node.host)} pages of {page} slots in host memory")
    _must(bool(node.pages or node.host), f"{name} has no pages")
    _must(bool(parent.pages or not node.pages or not parent.parent), f"{name} is on the device, but its parent is not")
    _must(node.start == parent.end and node.start % page == 0, f"{name} must begin at its parent's end, at a border")
    _must(not node.children or n % page == 0, f"{name} has children after a page that is not full")
    _must(node.order == sorted(node.children), f"{name}: the order of the children is not their sorted keys")
    _must(parent.children.get(node.key[: 4 * page]) is node, f"{name} is not in its parent's table of children")


def _check_node(cache: Cache, node: Node) -> None:
    check_shape(cache, node)
    parent, first, name = node.parent, node.key[: cache.tree.width], _name(node)
    assert parent is not None
    _must(bool(node.pages or not node.n_holds), f"{name} is held, but not on the device")
    _must(parent.n_locks >= node.n_locks, f"{name} is locked more often than its parent")
    if len(first) < cache.tree.width and not node.n_locks and not node.n_holds:
        longer = [key for key in parent.children if key != first and key.startswith(first)]
        _must(not longer, f"{name} is redundant: a sibling begins with the same tokens")


def _check_locks(cache: Cache, nodes: list[Node]) -> None:
    """Checks that each node has one lock for each lease on it or on a node below it."""
    locks: Counter[Node] = Counter()
    for lease in cache.leases:
        locks.update(locked_nodes(lease))
    for node in (*cache.tree.roots.values(), *nodes):
        _must(node.n_locks == locks[node], f"{_name(node)} has {node.n_locks} locks, but {locks[node]} leases")


def _check_states(cache: Cache, nodes: list[Node]) -> None:
    """Checks that each slot of recurrent state has exactly one owner: the free list, a lease, or the node that contains
    the state's position."""
    states = cache.states
    in_tree = [slot for node in nodes for slot in node.states.values()]
    leased = [slot for lease in cache.leases for slot in (lease.state, *lease.states.values()) if slot >= 0]
    if states is None:
        _must(not in_tree and not leased, "there is a recurrent state, but no slots")
        return
    is_owned = _is_each_once([*states.free, *leased, *in_tree], states.n_slots)
    _must(is_owned, "a slot of recurrent state does not have exactly one owner")
    for node in nodes:
        _must(all(states.nodes.get(slot) is node for slot in node.states.values()), f"{_name(node)} is not listed")
        _must(all(node.start < position <= node.end for position in node.states), f"{_name(node)} has another's state")
    _must(len(states.nodes) == len(in_tree), "a node that is not in the tree has a recurrent state")
    for lease in cache.leases:
        _must(all(0 < position <= lease.n_slots for position in lease.states), "a lease keeps a state without tokens")


def _check_windows(cache: Cache, window: WindowPages, nodes: list[Node]) -> None:
    """Checks that each page of windowed layers is free or in use (by one node, by leases, or by both), and that each
    lease has the pages of its last window."""
    page, in_tree = window.page, [(own, node, end) for node in nodes for end, own in node.states.items()]
    users = Counter(own for lease in cache.leases if lease.window is not None for own in lease.window.held)
    known = {own for own, *_ in in_tree}
    _must(len(known) == len(in_tree), "a page of windowed layers is of two nodes")
    is_owned = _is_each_once([*window.free, *(known | users.keys())], window.n_slots)
    _must(is_owned, "a page of windowed layers is free and in use, or neither")
    _must(all(n == users[own] for own, n in enumerate(window.n_users)), "the users of a page are counted wrongly")
    idle = Counter([*window.passed, *window.unused])
    _must(idle == Counter(known - users.keys()), "the unused pages of nodes are not listed as such")
    _must(len(window.nodes) == len(in_tree), "a node that is not in the tree has a page of windowed layers")
    for own, node, end in in_tree:
        _must(window.nodes.get(own) is node and window._positions[own] == end, f"{_name(node)} is not listed")
        _must(not end % page and node.start < end < node.end + page, f"{_name(node)} has another's page")
    for lease in cache.leases:
        if lease.window is None:
            raise Corrupt("a lease has no pages of windowed layers")
        table, n = lease.window.pages, lease._n_computed
        _must(len(table) >= -(-n // page), "a lease lacks pages that it computed")
        needed = table[: window.n_first] + table[window.first(n) :]
        _must(window.null not in needed, "a lease lacks a page of its window")
        path = {end: own for node in upward(lease.node) for end, own in node.states.items()}
        is_own = [own in (window.null, path.get((i + 1) * page, own)) for i, own in enumerate(table)]
        _must(all(is_own), "a lease reads other pages of windowed layers than the tree has for its tokens")


def _check_holds(cache: Cache, nodes: list[Node]) -> None:
    """Checks that each node has one hold for each hint on it or on a node below it, and that the lists of hints are
    sorted."""
    holds: Counter[Node] = Counter()
    for order, field in ((cache.hints.expected, "due"), (cache.hints.pinned, "until")):
        _must(order == sorted(order), "the hints are out of order")
        for due, _, hint in order:
            _must(getattr(hint, field) == due, "a hint is not at its place in the order")
            if hint.node is None:
                raise Corrupt("a hint without a node is in the order")
            *path, root = upward(hint.node)
            holds.update(path)
            _must(isinstance(root, Root) and root.namespace == hint.namespace, "a hint holds what is not in the tree")
            above = hint.node.parent.path if hint.node.parent else b""
            _must(hint.ids.startswith(above), "a hint holds tokens that are not its own")
    for node in nodes:
        _must(node.n_holds == holds[node], f"{_name(node)} has {node.n_holds} holds, but {holds[node]} hints")


def _queued(queue: EvictionQueue) -> Iterator[Node]:
    """The nodes of a queue in order. Checks that it is a circular list of nodes that refer to it."""
    seen: set[Node] = set()
    node: Node = queue
    while node.next is not queue:
        _must(node.next.prev is node and node.next not in seen, f"the {queue.reason} queue is not a circular list")
        node = node.next
        _must(node.queue is queue, "a node is not in the queue that it refers to")
        seen.add(node)
        yield node
    _must(queue.prev is node, f"the {queue.reason} queue is not a circular list")


def _check_host(cache: Cache, nodes: list[Node]) -> None:
    """Checks that each page of host memory is free or in one node, and that the host's queue has the unlocked nodes
    that are only in host memory, each after all nodes below it."""
    host = cache.host
    if host is None:
        _must(not any(node.host for node in nodes), "a node is in host memory, but there is none")
        return
    is_owned = _is_each_once([*host.free, *(page for node in nodes for page in node.host)], host.n_pages)
    _must(is_owned, "a page of host memory does not have exactly one owner")
    _must(host.copies.keys() == {node for node in nodes if node.host and node.pages}, "a copy is not listed as one")
    place = {node: i for i, node in enumerate(_queued(host.queue))}
    only_here = {node for node in nodes if not node.pages and not node.n_locks}
    _must(only_here == place.keys(), "the host's queue does not have the nodes that are only in host memory")
    for node in only_here:
        parent = node.parent
        is_first = parent is None or place[node] < place.get(parent, len(place))
        _must(is_first, "in host memory, a node is evicted before one below it")


def _check_queues(cache: Cache, nodes: list[Node]) -> None:
    """Checks that each node on the device that is neither locked nor held is in the queues exactly once, and after all
    nodes below it."""
    tree = cache.tree
    levels = [queue.level for queue in tree.queues]
    _must(bool(levels), "there is no queue")
    _must(levels == sorted(set(levels)), "the queues are out of order")
    place: dict[Node, tuple[float, int]] = {}
    for queue in tree.queues:
        is_listed = queue is tree.dead or (queue.is_open and tree.by_level.get(queue.level) is queue)
        _must(is_listed, "a closed queue is listed")
        for node in _queued(queue):
            place[node] = queue.level, len(place)
    for queue in (tree.dead, *tree.by_level.values()):
        if queue not in tree.queues:
            _must(queue.next is queue and not queue.is_open, "a queue is open or has nodes, but is not listed")
    unused = {node for node in nodes if node.pages and not (node.n_locks or node.n_holds)}
    _must(unused == place.keys(), "the queues do not have the nodes that are neither locked nor held")
    for queue in tree.queues:
        n_pages = sum(len(node.pages) for node in _queued(queue))
        _must(queue.n_pages == n_pages, f"a queue counts {queue.n_pages} pages, but has {n_pages}")

    def eviction_order(node: Node) -> tuple[int, float, int]:
        """A key that sorts nodes in queues first, in the order of the queues, then held nodes, then locked nodes."""
        return (2, 0.0, 0) if node.n_locks else (1, 0.0, 0) if node.n_holds else (0, *place[node])

    for node in nodes:
        parent = node.parent
        if node.pages and parent is not None and parent.parent is not None:
            _must(eviction_order(node) <= eviction_order(parent), "a node is evicted before one below it")


def check_lease(lease: Lease) -> None:
    """Checks that the pages of a lease hold its tokens."""
    cache, end, source = lease.cache, lease.node, lease._source
    page = cache.page
    *path, root = upward(end)
    pages = [page for node in reversed(path) for page in node.pages]
    _must(isinstance(root, Root) and root.namespace == lease._namespace, "a lease is not in its own namespace")
    _must(lease.is_open, "a closed lease is listed as open")
    _must(lease._ids.startswith(end.path), "a lease locks a path whose tokens are not its own")
    _must(list(lease.pages[: len(pages)]) == pages, "a lease reads pages that differ from the tree's for its tokens")
    _must(end.end <= lease._n_computed <= lease.n_slots, "a lease has computed more tokens than it has room for")
    if source is not None:
        first = next((node for node in upward(source) if node.parent is end), None)
        if first is None:
            raise Corrupt("the source of a copy is not a descendant of the node where the lease's published tokens end")
        rest = lease._ids[4 * end.end : 4 * lease.n_cached]
        _must(first.key.startswith(rest) and 0 < len(rest) < 4 * page, "the source of a copy holds other tokens")
        _must(all(copy[0] == first.pages[0] for copy in lease._copies), "a copy reads a page that is not its source's")
    _must(source is not None or not lease._copies, "a copy has no locked source")
    if end.end % page:
        owners = [other for other in cache.leases if other.node is end]
        _must(owners == [lease], "two leases fill one page")
