"""When the books do not balance: what is in doubt is withdrawn, and all else goes on.

A node that cannot be right goes, with all below it; so does a lease on such a node, or on a page that somebody else has
too. What is left is counted anew: locks from leases, holds from handles, lanes in their order so far. Pages that nobody
holds for sure are not used again until nothing runs (`Cache.readmit`). The second tier is emptied: what lies there came
from the same tree.

This repairs what a bug of ours, or a flipped bit, has done to the books. Nothing can tell whether a page still holds
what it should, so a violation is a bug to be found, and not a thing to live with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import check, check_lease, check_shape, private
from banyan.radix_cache.node import DEAD, NO_CHILDREN, NO_ORDER, NO_PAGES, EvictionQueue, Node, link
from banyan.radix_cache.tree import Tree

Age = tuple[float, int]
"""The level of its lane, and its place there."""
_YOUNGEST = 1 << 62


def quarantine(cache: Cache) -> list[Lease]:
    """Make every invariant hold again. Returns the leases that were ended for it: whoever has one opens another, and
    publishes nothing of it. Raises Corrupt if even that does not help; then the cache is of no more use."""
    reached = list(_reached(cache.tree))
    leased = {lease: private(lease) for lease in cache.leases}
    claims = Counter(cache.pool.free)
    for pages in (*(node.pages for node in reached), *leased.values()):
        claims.update(pages)
    certain = {page for page, n in claims.items() if n == 1 and 0 <= page < cache.n_pages} - cache.quarantined
    ages = _ages(cache.tree)
    sound = _sound_nodes(cache, certain) if cache.enabled else []
    known = {*sound, *cache.tree.roots.values()}
    kept = {lease: None for lease in cache.leases if _is_sound(lease, known, leased[lease], certain)}
    ended = [lease for lease in cache.leases if lease not in kept]
    for lease in ended:
        lease.is_open, lease.pages, lease._copies, lease._source = False, [], [], None
    cache.leases = kept
    cache._n_leased = sum(len(leased[lease]) for lease in kept)
    _rebuild(cache, sound, ages)
    cache.pool.free = [page for page in cache.pool.free if page in certain]
    held = {page for node in sound for page in node.pages} | {page for lease in kept for page in leased[lease]}
    cache.quarantined = set(range(cache.n_pages)) - held - set(cache.pool.free)
    _hold_again(cache)
    for node in sound:
        if len(node.key) < cache.tree.width and node.pages:
            cache.tree._tidy(node)
    for root in list(cache.tree.roots.values()):
        cache.tree._leave(root)
    if cache.events is not None:
        cache.events.forget()
    cache.n_mended += 1
    check(cache)
    return ended


def _reached(tree: Tree) -> Iterator[Node]:
    """All nodes that can be come to, each once, whatever they say."""
    seen: set[Node] = set()
    stack = [child for root in tree.roots.values() for child in root.children.values()]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack += node.children.values()


def _sound_nodes(cache: Cache, certain: set[int]) -> list[Node]:
    """Those on the device that are what they should be, and all above them too. Parents first."""
    sound: list[Node] = []
    seen: set[Node] = set()
    for namespace, root in cache.tree.roots.items():
        if root.namespace != namespace or root.key or root.pages or root.start or root.parent:
            continue
        stack: list[tuple[Node, Node]] = [(root, child) for child in root.children.values()]
        while stack:
            parent, node = stack.pop()
            if node in seen or node.parent is not parent or not node.pages or not certain.issuperset(node.pages):
                continue
            seen.add(node)
            try:
                check_shape(cache, node)
            except (AssertionError, AttributeError, TypeError, KeyError):
                continue
            sound.append(node)
            stack += [(node, child) for child in node.children.values()]
    return sound


def _is_sound(lease: Lease, known: set[Node], pages: list[int], certain: set[int]) -> bool:
    """Whether a lease is on nodes and pages that are beyond doubt."""
    ends = (lease._at, lease._source)
    if not all(end is None or end in known for end in ends) or not certain.issuperset(pages):
        return False
    try:
        check_lease(lease)
    except (AssertionError, AttributeError, TypeError, KeyError):
        return False
    return True


def _ages(tree: Tree) -> dict[Node, Age]:
    """The order in which nodes stand in their lanes, as far as it can be followed."""
    ages: dict[Node, Age] = {}
    for lane in (tree.dead, *tree.levels.values()):
        node: Node = lane
        with suppress(AttributeError):
            while (node := node.next) is not lane and node not in ages:
                ages[node] = lane.level, len(ages)
    return ages


def _rebuild(cache: Cache, sound: list[Node], ages: dict[Node, Age]) -> None:
    """The tree of these nodes alone, with its counters, its locks and its lanes."""
    tree, is_sound = cache.tree, set(sound)
    tree.roots = {root.namespace: root for root in tree.roots.values()}
    for node in (*tree.roots.values(), *sound):
        children = [child for child in node.children.values() if child in is_sound]
        node.children = {child.key[: tree.width]: child for child in children} or NO_CHILDREN
        node.order = sorted(node.children) or NO_ORDER
        node.n_locks = node.n_holds = 0
        node.host = NO_PAGES
    if cache.host is not None:
        cache.host.empty()
    tree.n_nodes, tree.n_held = len(sound), 0
    tree.n_pages = sum(len(node.pages) for node in sound)
    tree.n_tokens = sum(len(node.key) // 4 for node in sound)
    for lease in cache.leases:
        path: set[Node] = set()
        for end in (lease._at, lease._source):
            at = end
            while at is not None:
                path.add(at)
                at = at.parent
        for node in path:
            node.n_locks += 1
    _line_up(tree, sound, ages)


def _line_up(tree: Tree, sound: list[Node], ages: dict[Node, Age]) -> None:
    """Put all nodes that are not locked into new lanes, in their order so far, none before one below it."""
    late: dict[Node, Age] = {}
    for node in reversed(sound):  # children first
        own = ages.get(node) or (node.lane.level if node.lane in tree.levels.values() else 0.0, _YOUNGEST)
        late[node] = max([own, *(late[child] for child in node.children.values())])
    tree.dead = EvictionQueue(DEAD, "dead")
    tree.levels, tree.lanes = {}, []
    tree.lane(0)
    for root in tree.roots.values():
        root.lane = tree.dead
    for node in sound:
        level = late[node][0]
        node.lane = tree.dead if level == DEAD else tree.lane(level)
    for node in sorted(sound, key=lambda node: (*late[node], -node.start)):
        if not node.n_locks:
            if node.lane is tree.dead and tree.lanes[0] is not tree.dead:
                tree.lanes.insert(0, tree.dead)
            link(node, node.lane)


def _hold_again(cache: Cache) -> None:
    """Let handles hold what is left of what they are for."""
    holds = cache.holds
    handles = {place.handle for place in (*holds.expected, *holds.pinned)}
    holds.expected, holds.pinned = [], []
    for handle in handles:
        handle.node = None
        holds.add(handle)
