"""The radix tree: from token ids to the pages that hold their keys and values.

Ids are int32 little-endian `bytes`, compared where they lie. A node is a run of tokens (`key`) and the pages they
stand in (`pages`); it begins at a page border. All nodes hold whole pages, but for a leaf, whose last page may be
filled in part: such a leaf is **open**. Children of a node differ in their first page, not in their first token:
where two runs part inside a page, each has a page of its own. A match is exact to the token all the same: where no
child has the next whole page, the one that shares most of it stands beside the place that the page would have in
`order`, because of sorted strings a neighbour has the longest common prefix.

Rules (`check` asserts them):
  * A page in the tree belongs to one node.
  * A lock on a node covers its ancestors, and locked nodes are not evicted. Held ones (handles.py) are, but last. The
    others stand in lanes, into which `unlock` puts a path deepest first, and no node's lane is below that of a node
    under it. So a node stands behind its descendants, the head of the lowest lane is always a leaf, and eviction takes
    pages from the end of the oldest leaf, at a cost that does not depend on the size of the tree.
  * An open leaf of less than a page is dropped, once unlocked, where a child beside it begins with the same tokens.
  * At most one lease writes to an open leaf: the one that holds its end. Others read it, and copy.
  * A match changes nothing, not even an age. Nodes are split where a lock or an insert ends, never by a look.
  * Where a node's pages lie in host memory alone (host.py), so do those of all that is below it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from banyan.radix_cache.node import DEAD, NO_CHILDREN, NO_ORDER, EvictionQueue, Node, Root, link, n_common, unlink
from banyan.radix_cache.pages import PagePool
from banyan.radix_cache.policy import Lru, Policy

_LONG = 64  # pages: of a longer leaf the end is cut off before pages are taken from it, as each time copies its key
_level = attrgetter("level")


class Below(Protocol):
    """Where pages go that leave the device, if anywhere: a second tier (host.py)."""

    def take(self, node: Node, n: int) -> int:
        """Let go of at least n pages at the end of a leaf, the head of its lane, or of all. How many it were."""

    def adopt(self, node: Node, pages: list[int]) -> None:
        """A node that lies in host memory alone is computed again, into `pages`."""

    def forget(self, node: Node) -> None:
        """Drop a node that lies in host memory alone, and all below it."""

    def cut(self, upper: Node, lower: Node) -> None:
        """`upper` was cut off a node with pages in host memory."""

    def release(self, node: Node) -> None:
        """A node's copy in host memory is of no more use."""


class Log(Protocol):
    """Who is told what comes and goes, where somebody listens: events.py."""

    def stored(self, node: Node, first: int) -> None:
        """The node's key from the byte `first` on is new on the device."""

    def removed(self, node: Node, first: int) -> None:
        """It is about to leave it."""


class Tree:
    """Trees, one per namespace, over one pool and with one order of eviction."""

    __slots__ = ("below", "dead", "give_up", "lanes", "levels", "log", "n_evicted", "n_held", "n_nodes", "n_pages",
                 "n_stored", "n_tokens", "page", "policy", "pool", "roots", "width")  # fmt: skip

    def __init__(self, pool: PagePool, page: int, policy: Policy | None = None) -> None:
        self.pool = pool
        self.page = page
        self.width = 4 * page  # bytes of ids a page
        self.policy = policy or Lru(pool.n_pages)
        self.roots: dict[bytes, Root] = {}
        self.dead = EvictionQueue(DEAD, "dead")  # never open: what is unlocked has been used, and lives
        self.levels: dict[float, EvictionQueue] = {}
        self.lanes: list[EvictionQueue] = []  # by level: all that have a node, and at least one
        self.lane(0)
        self.give_up: Callable[[], str] = str  # let go of one more held node, and say why; "" if there is none
        self.below: Below | None = None
        self.log: Log | None = None
        self.n_nodes = 0  # without roots
        self.n_pages = 0  # on the device
        self.n_tokens = 0  # in them
        self.n_held = 0  # pages on the device of nodes that are held and not locked
        self.n_stored = 0  # pages so far
        self.n_evicted: dict[str, int] = {}  # pages so far, by reason

    @property
    def n_evictable(self) -> int:
        """Pages on the device that are not locked."""
        n = self.n_held
        for lane in self.lanes:
            n += lane.n_pages
        return n

    # ---- look ------------------------------------------------------------------------------------------------------

    def match(self, root: Node, ids: bytes, limit: int) -> tuple[Node, int]:
        """The longest prefix of `ids` below a root, at most `limit` tokens, and the node in which it ends."""
        node, o, width = root, 0, self.width
        while child := node.children.get(ids[o : o + width]):
            node, key = child, child.key
            if not ids.startswith(key, o):
                o += 4 * n_common(ids, o, key)
                break
            o += len(key)
        else:
            if node.order and o < 4 * limit:
                node, n = _closest(node, ids[o : o + width])
                o += 4 * n
        n = o // 4
        if n > limit:
            n = limit
            while node.start >= n and node.parent:
                node = node.parent
        return node, n

    # ---- lanes -----------------------------------------------------------------------------------------------------

    def lane(self, level: float) -> EvictionQueue:
        """The lane of a level, open."""
        return self._open(self.levels.get(level) or EvictionQueue(level, "unused"))

    def _open(self, lane: EvictionQueue) -> EvictionQueue:
        """Put a lane into the list. The dead one, to which nobody goes back, gives way to that of new nodes."""
        if lane is self.dead:
            return self.lane(self.policy.stored(self.n_stored, 0))
        lane = self.levels.setdefault(lane.level, lane)
        if not lane.is_open:
            lane.is_open = True
            insort(self.lanes, lane, key=_level)
        return lane

    def _shut(self, lane: EvictionQueue) -> None:
        """Take an empty lane out of the list. Locked nodes may still refer to it: see `_open`."""
        self.lanes.remove(lane)
        lane.is_open = False
        self.levels.pop(lane.level, None)

    def bury(self, node: Node) -> None:
        """Let a node, neither locked nor held and all below it dead, go before all that lives."""
        if node.lane is self.dead:
            return
        if self.lanes[0] is not self.dead:
            self.lanes.insert(0, self.dead)
        unlink(node)
        link(node, self.dead)

    def use(self, node: Node, n_cached: int, priority: int) -> None:
        """Let those nodes of a locked path rise that were found: that begin among the first n_cached tokens."""
        at, used = node, self.policy.used
        while parent := at.parent:
            lane = at.lane
            if at.start < n_cached and lane is not self.dead and (to := used(int(lane.level), priority)) != lane.level:
                at.lane = self.lane(to)
            at = parent

    def settle(self) -> None:
        """Let the nodes of level 1 be no more than their share: the longest unused of them go down to level 0."""
        if upper := self.levels.get(1):
            n_most = self.policy.share * (self.n_evictable - self.n_held)
            while upper.n_pages > n_most:
                node = upper.next
                unlink(node)
                link(node, self.lane(0))

    # ---- lock, hold ------------------------------------------------------------------------------------------------

    def root(self, namespace: bytes) -> Root:
        """The root of a namespace, made if there is none. The caller locks it, or a node below it."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Root(namespace, self.dead)
        return root

    # Going up a path, locks and holds never get fewer. So it is, from its end on: nodes that stand in lanes, nodes that
    # are held alone, nodes that are locked; and neighbours have as many pages as lie between their borders.

    def lock(self, node: Node, above: Node | None = None) -> None:
        """Lock a node and its ancestors, up to `above` (left out): they stay until unlocked."""
        at, page = node, self.page
        while at is not above and not (at.n_locks or at.n_holds) and (parent := at.parent):
            first, lane = at, at.lane
            at.n_locks = 1
            while at.next is parent and parent.parent:  # a path often stands in one piece
                at, parent = parent, parent.parent
                at.n_locks = 1
            before, behind = first.prev, at.next
            before.next, behind.prev = behind, before
            lane.n_pages -= first.start // page + len(first.pages) - at.start // page
            at = parent
        while at is not above and not at.n_locks and (parent := at.parent):
            self.n_held -= len(at.pages)
            at.n_locks = 1
            at = parent
        end: Node | None = at
        while end is not above and end:
            end.n_locks += 1
            end = end.parent

    def unlock(self, node: Node, above: Node | None = None) -> None:
        """Take back one `lock` of the same nodes. Those that nobody else locks become the youngest of their lanes."""
        at, lane, page = node, node.lane, self.page
        if not lane.is_open:
            lane = self._open(lane)
        while at is not above and at.n_locks == 1 and not at.n_holds and (parent := at.parent):
            if at.lane.level > lane.level:
                lane = self._open(at.lane)
            first, youngest, level = at, lane.prev, lane.level
            while True:
                at.n_locks = 0
                at.lane = lane
                at.prev = youngest
                youngest.next = at
                youngest = at
                at = parent
                if at.n_locks != 1 or at is above or at.n_holds or at.lane.level > level or not (parent := at.parent):
                    break
            youngest.next, lane.prev = lane, youngest
            lane.n_pages += first.start // page + len(first.pages) - youngest.start // page
        while at is not above and at.n_locks == 1 and (parent := at.parent):
            self.n_held += len(at.pages)
            at.n_locks = 0
            if at.lane.level < lane.level:
                at.lane = lane
            at = parent
        rest: Node | None = at
        while rest:
            if rest.lane.level < lane.level:
                rest.lane = lane
            if rest is above:
                break
            rest.n_locks -= 1
            if not (rest.n_locks or rest.children or rest.parent):
                self._leave(rest)
            rest = rest.parent
        if len(node.key) < self.width:
            self._tidy(node)

    def hold(self, node: Node) -> None:
        """Let a node and its ancestors be evicted only once all else is."""
        at = node
        while parent := at.parent:
            if not (at.n_holds or at.n_locks):
                unlink(at)
                self.n_held += len(at.pages)
            at.n_holds += 1
            at = parent

    def let_go(self, node: Node, above: Node | None = None) -> None:
        """Take back one `hold`, of the nodes up to `above` (left out)."""
        at = node
        while at is not above and (parent := at.parent):
            at.n_holds -= 1
            if not (at.n_holds or at.n_locks):
                self.n_held -= len(at.pages)
                link(at, self._open(self._alive(at)))
            at = parent
        if len(node.key) < self.width:
            self._tidy(node)

    def _alive(self, node: Node) -> EvictionQueue:
        """A node's lane; of a dead one that was held, that of the first above it that lives."""
        while node.lane is self.dead and node.parent:
            node = node.parent
        return node.lane

    def _tidy(self, node: Node) -> None:
        """Drop an open leaf that nobody needs, if a child beside it begins with the same tokens."""
        if (parent := node.parent) and not (node.n_locks or node.n_holds):
            i = bisect_right(parent.order, node.key)
            if i < len(parent.order) and parent.order[i].startswith(node.key):
                self.drop(node)

    def _leave(self, root: Node) -> None:
        """Forget a root that nobody holds and that holds nothing."""
        if isinstance(root, Root) and not root.n_locks and not root.children:
            del self.roots[root.namespace]

    # ---- grow ------------------------------------------------------------------------------------------------------

    def split(self, node: Node, n: int) -> Node:
        """Cut a node after its first n tokens, which are whole pages but not all of it. Returns the new upper part.

        The lower part is the old node, so that who holds the node holds the same tokens as before.
        """
        parent, cut, i = node.parent, 4 * n, n // self.page
        assert parent is not None
        upper = Node(parent, node.start, node.key[:cut], node.pages[:i], node.lane)
        parent.children[upper.key[: self.width]] = upper
        node.parent, node.start = upper, node.start + n
        node.key, node.pages = node.key[cut:], node.pages[i:]
        first = node.key[: self.width]
        upper.children, upper.order = {first: node}, [first]
        upper.n_locks, upper.n_holds = node.n_locks, node.n_holds
        if not (node.n_locks or node.n_holds):
            behind = node.next
            upper.prev, upper.next = node, behind
            node.next = behind.prev = upper
        if node.host and self.below:
            self.below.cut(upper, node)
        self.n_nodes += 1
        return upper

    def insert(self, node: Node, ids: bytes, pages: list[int], priority: int = 0) -> tuple[Node, list[int]]:
        """Put the tokens by which `ids` is longer than the path of `node` into the tree. Returns the node that ends
        them, and the pages that are no longer needed.

        The caller's lock moves from `node` to the node returned. `pages` are those of one lease, from token 0 on; those
        behind the path are its own and become the tree's, but where the tree has a page of the very same tokens, which
        takes the place of the lease's own. A last page that is not full is kept back where another child begins with
        the same tokens; the node returned then ends before it.
        """
        o, end, width = 4 * node.end, len(ids), self.width
        if o >= end:
            return node, []
        own = -(-o // width)  # the first page that is the lease's own
        if o % width:  # an open leaf, whose last page the lease is filling
            parent, first = node.parent, ids[4 * node.start : 4 * node.start + width]
            assert parent is not None
            rival = parent.children.get(first) if len(node.key) < width else None
            if rival is not None and not rival.pages and self.below:
                self.below.forget(rival)
                rival = None
            if rival is None or len(first) < width:
                border = o - o % width + width
                if len(node.key) < width and _is_begun(parent.order, first):
                    return node, []
                if not node.n_holds or end <= border:
                    self._lengthen(node, ids, pages)
                    return node, []
                self._lengthen(node, ids[:border], pages)  # a handle holds what it was made for, and not what follows
                o = border
            else:
                self.unlock(node, parent)  # another has published the page meanwhile
                node, o = parent, 4 * node.start
        spare: list[int] = []
        while end - o >= width and (child := node.children.get(ids[o : o + width])):
            n = len(child.key) if ids.startswith(child.key, o) else 4 * n_common(ids, o, child.key)
            n -= n % width
            if n < len(child.key):
                child = self.split(child, n // 4)
            self.lock(child, node)
            first_page, last_page = o // width, (o + n) // width
            if child.pages:
                mine = pages[max(first_page, own) : last_page]
                spare = spare + mine if spare else mine  # one copy less, mostly: a copy counts each page up and down
                pages[first_page:last_page] = child.pages
            else:
                assert self.below is not None
                self.below.adopt(child, pages[first_page:last_page])
            node, o = child, o + n
        if o == end:
            return node, spare
        if node.n_locks == 1 and not node.children and node.parent and not node.n_holds:
            self._lengthen(node, ids, pages)
        elif end - o >= width or not _is_begun(node.order, ids[o:end]):
            node = self._add(node, ids[o:end], pages[o // width : -(-end // width)], priority)
        return node, spare

    def _add(self, parent: Node, key: bytes, pages: list[int], priority: int) -> Node:
        """A new leaf, locked once, below a locked node."""
        node = Node(parent, parent.end, key, pages, self.lane(self.policy.stored(self.n_stored, priority)))
        node.n_locks = 1
        self.attach(parent, node)
        self._count(node, 0, len(key))
        return node

    def attach(self, parent: Node, node: Node) -> None:
        """Hang a new leaf, which is in no lane, below its parent."""
        self._file(parent, node)
        self.n_nodes += 1

    def _lengthen(self, node: Node, ids: bytes, pages: list[int]) -> None:
        """Let a leaf that one lease writes to reach to the end of `ids`."""
        parent, old = node.parent, node.key
        assert parent is not None
        if node.host and self.below:
            self.below.release(node)
        node.key = ids[4 * node.start :]
        n_old = len(node.pages)
        node.pages += pages[node.start // self.page + n_old : -(-len(ids) // self.width)]
        if len(old) < self.width:
            del parent.children[old]
            del parent.order[bisect_left(parent.order, old)]
            self._file(parent, node)
        self._count(node, n_old, len(node.key) - len(old))

    def _count(self, node: Node, first: int, n_bytes: int) -> None:
        """The pages of a node from the `first` on are new, and n_bytes of its key."""
        n = len(node.pages) - first
        self.n_pages += n
        self.n_stored += n
        self.n_tokens += n_bytes // 4
        if self.log:
            self.log.stored(node, len(node.key) - n_bytes)

    def _file(self, parent: Node, node: Node) -> None:
        """Put a locked leaf among its parent's children, in place of the open leaf that says nothing beside it."""
        first, order = node.key[: self.width], parent.order
        i = bisect_left(order, first)
        if i and first.startswith(order[i - 1]):
            shorter = parent.children[order[i - 1]]
            if not (shorter.n_locks or shorter.n_holds):
                self.drop(shorter)
                i -= 1
        if not parent.children:
            parent.children, parent.order = {}, []
        parent.children[first] = node
        parent.order.insert(i, first)

    # ---- shrink ----------------------------------------------------------------------------------------------------

    def evict(self, n: int) -> int:
        """Free n pages, or as many as are not locked: of the lowest lane the oldest leaf, and of it the last pages;
        where all lanes are empty, of what is held. Where there is a second tier they go there, and a few more."""
        n_left, lanes, below, free = n, self.lanes, self.below, self.pool.free
        reason = ""  # why a node that was held is held no more
        while n_left > 0:
            lane, before = lanes[0], n_left
            while n_left > 0 and (node := lane.next) is not lane:
                if below:
                    n_left -= below.take(node, n_left)
                elif (n_gone := len(node.pages)) <= n_left:
                    self.drop(node)
                    n_left -= n_gone
                else:
                    self._trim(node, n_left)
                    n_left = 0
            if n_left == before and len(lanes) > 1:
                self._shut(lane)
            elif n_left == before:
                n_free = len(free)
                if not (reason := self.give_up()):
                    break
                n_left -= len(free) - n_free  # a leaf that only its holder needed
            if n_gone := before - n_left:
                name = reason or lane.reason
                self.n_evicted[name] = self.n_evicted.get(name, 0) + n_gone
        return n - n_left

    def _trim(self, node: Node, n: int) -> None:
        """Free n pages at the end of a leaf that stands in a lane and has more."""
        n_kept = len(node.pages) - n
        if n_kept > _LONG:
            self.split(node, (n_kept - _LONG) * self.page)
            n_kept = _LONG
        if self.log:
            self.log.removed(node, n_kept * self.width)
        self.pool.give(node.pages[n_kept:])
        del node.pages[n_kept:]
        self.n_tokens -= len(node.key) // 4 - n_kept * self.page
        node.key = node.key[: n_kept * self.width]
        self.n_pages -= n
        node.lane.n_pages -= n

    def drop(self, node: Node) -> None:
        """Remove a leaf that stands in a lane, and free its pages."""
        parent, first = node.parent, node.key[: self.width]
        assert parent is not None
        if self.log:
            self.log.removed(node, 0)
        del parent.children[first]
        del parent.order[bisect_left(parent.order, first)]
        if not parent.children:
            parent.children, parent.order = NO_CHILDREN, NO_ORDER
            self._leave(parent)
        lane, before, behind = node.lane, node.prev, node.next
        before.next, behind.prev = behind, before
        node.prev = node.next = lane  # locked nodes may still know it, but none is to know others by it
        self.n_nodes -= 1
        if n := len(node.pages):
            lane.n_pages -= n
            self.n_pages -= n
            self.n_tokens -= len(node.key) // 4
            self.pool.give(node.pages)
        if node.host and self.below:
            self.below.release(node)


def _closest(parent: Node, first: bytes) -> tuple[Node, int]:
    """The child that shares most tokens with `first`, at most a page, and how many; the parent and 0 if none does."""
    order = parent.order
    i = bisect_left(order, first)
    best, n_best = b"", 0
    for key in order[max(i - 1, 0) : i + 1]:
        n = n_common(first, 0, key)
        if n > n_best:
            best, n_best = key, n
    return (parent.children[best], n_best) if n_best else (parent, 0)


def _is_begun(order: list[bytes], first: bytes) -> bool:
    """Whether one of the sorted keys begins with `first`, or is it."""
    i = bisect_left(order, first)
    return i < len(order) and order[i].startswith(first)
