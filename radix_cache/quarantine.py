"""Repairs a cache after a violated invariant: withdraws the nodes, leases and pages in doubt, and keeps all others.

A node that cannot be right is removed, with all nodes below it. A lease on such a node, or on a page with more than one
owner, is ended. Then the rest is rebuilt: locks from the leases, holds from the hints, and queues in their old order. A
page that no kept node or lease has, and that is not certainly free, is not used until no request runs
(`Cache.readmit`). The host tier is emptied, since its contents come from the same tree.

This repairs the bookkeeping after a bug or a flipped bit. It cannot tell whether a page still holds the right data, so
a violation is a bug to find, not something to live with.
"""

from __future__ import annotations

from array import array
from collections import Counter
from contextlib import suppress

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import check, check_lease, check_shape, locked_nodes, private
from banyan.radix_cache.node import DEAD, NO_CHILDREN, NO_ORDER, NO_PAGES, NO_STATES, EvictionQueue, Node, link
from banyan.radix_cache.tree import Tree

Age = tuple[float, int]
"""The level of the queue that a node is in, and the node's place in this queue."""
_YOUNGEST = 1 << 62
_INVALID = (AssertionError, AttributeError, TypeError, KeyError)
"""The exceptions that the checks raise for a broken node or lease."""


def quarantine(cache: Cache) -> list[Lease]:
    """Makes every invariant hold again. Returns the leases that it ended: their owners must open new leases, and must
    not publish to the old ones. Raises Corrupt if the repair fails; then the cache cannot be used any more."""
    leased = {lease: private(lease) for lease in cache.leases}
    owners = Counter(cache.pool.free)
    for pages in (*(node.pages for node in _reachable(cache.tree)), *leased.values()):
        owners.update(pages)
    certain = {page for page, n in owners.items() if n == 1 and 0 <= page < cache.n_pages} - cache.quarantined
    ages = _ages(cache.tree)
    sound = _sound_nodes(cache, certain) if cache.enabled else []
    known = {*sound, *cache.tree.roots.values()}
    kept = {lease: None for lease in cache.leases if _is_sound(lease, known, leased[lease], certain)}
    ended = [lease for lease in cache.leases if lease not in kept]
    for lease in ended:
        lease.is_open, lease.pages, lease._copies, lease._source = False, array("i"), [], None
        lease.state, lease.states, lease.window = -1, {}, None
    cache.leases = kept
    if cache.states is not None:
        cache.states.reset({slot for lease in kept for slot in (lease.state, *lease.states.values())})
    if cache.window is not None:
        cache.window.reset([lease.window for lease in kept if lease.window is not None])
    cache._n_leased = sum(len(leased[lease]) for lease in kept)
    _rebuild(cache, sound, ages)
    cache.pool.free = [page for page in cache.pool.free if page in certain]
    used = {page for node in sound for page in node.pages} | {page for lease in kept for page in leased[lease]}
    cache.quarantined = set(range(cache.n_pages)) - used - set(cache.pool.free)
    cache.hints.hold_again()
    for node in sound:
        if len(node.key) < cache.tree.width and node.pages:
            cache.tree.drop_if_redundant(node)
    for root in list(cache.tree.roots.values()):
        cache.tree.drop_if_empty(root)
    if cache.events is not None:
        cache.events.forget()
    cache.n_mended += 1
    check(cache)
    return ended


def _reachable(tree: Tree) -> set[Node]:
    """All nodes that can be reached from the roots, sound or not."""
    seen: set[Node] = set()
    stack = [child for root in tree.roots.values() for child in root.children.values()]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += node.children.values()
    return seen


def _sound_nodes(cache: Cache, certain: set[int]) -> list[Node]:
    """The nodes on the device that are sound and have only sound ancestors, parents first."""
    sound: dict[Node, None] = {}
    for namespace, root in cache.tree.roots.items():
        if root.namespace != namespace or root.key or root.pages or root.start or root.parent:
            continue
        stack: list[tuple[Node, Node]] = [(root, child) for child in root.children.values()]
        while stack:
            parent, node = stack.pop()
            if node in sound or node.parent is not parent or not node.pages or not certain.issuperset(node.pages):
                continue
            with suppress(*_INVALID):
                check_shape(cache, node)
                sound[node] = None
                stack += [(node, child) for child in node.children.values()]
    return list(sound)


def _is_sound(lease: Lease, known: set[Node], pages: list[int], certain: set[int]) -> bool:
    """Whether a lease is on sound nodes, and each of its pages certainly belongs to it."""
    ends = (lease.node, lease._source)
    if all(end is None or end in known for end in ends) and certain.issuperset(pages):
        with suppress(*_INVALID):
            check_lease(lease)
            return True
    return False


def _ages(tree: Tree) -> dict[Node, Age]:
    """The place of each node in its queue, as far as the links between the nodes are intact."""
    ages: dict[Node, Age] = {}
    for queue in (tree.dead, *tree.by_level.values()):
        node: Node = queue
        with suppress(AttributeError):
            while (node := node.next) is not queue and node not in ages:
                ages[node] = queue.level, len(ages)
    return ages


def _rebuild(cache: Cache, sound: list[Node], ages: dict[Node, Age]) -> None:
    """Rebuilds the tree from the nodes `sound` only: children, counters, locks and queues. ages: places in the old
    queues."""
    tree, is_sound = cache.tree, set(sound)
    tree.roots = {root.namespace: root for root in tree.roots.values()}
    for node in (*tree.roots.values(), *sound):
        children = [child for child in node.children.values() if child in is_sound]
        node.children = {child.key[: tree.width]: child for child in children} or NO_CHILDREN
        node.order = sorted(node.children) or NO_ORDER
        node.n_locks = node.n_holds = 0
        node.host = NO_PAGES
        node.states = NO_STATES
    if cache.host is not None:
        cache.host.empty()
    tree.n_nodes, tree.n_held = len(sound), 0
    tree.n_pages = sum(len(node.pages) for node in sound)
    tree.n_tokens = sum(len(node.key) // 4 for node in sound)
    for lease in cache.leases:
        for node in locked_nodes(lease):
            node.n_locks += 1
    _rebuild_queues(tree, sound, ages)


def _rebuild_queues(tree: Tree, sound: list[Node], ages: dict[Node, Age]) -> None:
    """Puts the nodes `sound` that are not locked into new queues, in their old order. A node that would come before a
    node below it is moved behind it."""
    order: dict[Node, Age] = {}
    for node in reversed(sound):  # children first
        own = ages.get(node) or (node.queue.level if node.queue in tree.by_level.values() else 0.0, _YOUNGEST)
        order[node] = max([own, *(order[child] for child in node.children.values())])
    tree.dead = EvictionQueue(DEAD, "dead")
    tree.by_level, tree.queues = {}, []
    tree.queue(0)
    for root in tree.roots.values():
        root.queue = tree.dead
    for node in sound:
        level = order[node][0]
        node.queue = tree.dead if level == DEAD else tree.queue(level)
    for node in sorted(sound, key=lambda node: (*order[node], -node.start)):
        if not node.n_locks:
            if node.queue is tree.dead and tree.queues[0] is not tree.dead:
                tree.queues.insert(0, tree.dead)
            link(node, node.queue)
