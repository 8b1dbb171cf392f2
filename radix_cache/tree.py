"""The radix tree: from token ids to the pages that hold their keys and values.

Token ids are `bytes`, int32 little-endian, and are compared in place. A node is a run of tokens (`key`) and their pages
(`pages`). It begins at a page border and holds whole pages, but the last page of a leaf may be partly filled: such a
leaf is **open**. The children of a node differ in their first page, not in their first token: if two runs differ inside
a page, each has its own page. A match is still exact to the token: if no child has the next whole page, the match
ends in the child that shares most of it. That child is a neighbour of the page in the sorted `order`, since in sorted
strings a neighbour has the longest common prefix.

Rules (`check` asserts them):
  * A page in the tree belongs to one node.
  * A lock on a node covers its ancestors. Locked nodes are not evicted. Held nodes (hints.py) are evicted last. All
    other nodes wait in eviction queues. `unlock` adds a path to them deepest first, and a node's queue never has a
    lower level than the queue of a node below it. So a node is evicted after its descendants, and the head of the
    lowest queue is always a leaf. Eviction takes pages from the end of that leaf; its cost does not depend on the size
    of the tree.
  * An open leaf of less than a page is dropped, once unlocked, if a sibling begins with the same tokens.
  * At most one lease writes to an open leaf: the one whose tokens end there. Others read it, and copy the page.
  * A match changes nothing, not even the order of eviction. Nodes are split where a lock or an insert ends.
  * If a node is only in host memory (host_tier.py), so are all nodes below it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from operator import attrgetter
from typing import Protocol

from banyan.radix_cache.digests import n_common
from banyan.radix_cache.node import DEAD, NO_CHILDREN, NO_ORDER, EvictionQueue, Node, Root, link, unlink
from banyan.radix_cache.policy import Lru
from banyan.radix_cache.states import NodeSlots

_MAX_TRIM = 64  # pages: a longer leaf is split before pages are cut off its end, since each cut copies its key
_level = attrgetter("level")


class PagePool:
    """The free pages, as a stack: the page that was freed last is taken first, while its memory is in caches.

    A page has exactly one owner: this stack, a lease, or a node.
    """

    __slots__ = ("free",)

    def __init__(self, n_pages: int) -> None:
        self.free = list(range(n_pages))

    def take(self, n: int) -> list[int]:
        """Takes n free pages; there must be at least n."""
        free = self.free
        n_left = len(free) - n
        taken = free[n_left:]
        del free[n_left:]
        return taken

    def give(self, pages: Iterable[int]) -> None:
        """Puts pages back on the stack of free pages."""
        self.free += pages


class SecondTier(Protocol):
    """Takes the pages that are evicted from the device; see `host_tier.Host`."""

    def move_out(self, node: Node, n: int) -> int: ...
    def bring(self, node: Node, n: int, n_room: int) -> tuple[Node, int]: ...
    def adopt(self, node: Node, pages: list[int]) -> None: ...
    def drop_subtree(self, node: Node) -> None: ...
    def split(self, upper: Node, lower: Node) -> None: ...
    def free_copy(self, node: Node) -> None: ...


class Listener(Protocol):
    """Gets a call when pages are stored on the device and when they leave it; see `events.CacheEvents`."""

    def stored(self, node: Node, first: int) -> None: ...
    def removed(self, node: Node, first: int) -> None: ...


class Tree:
    """The trees of all namespaces, which share one pool of pages and one order of eviction."""

    __slots__ = ("by_level", "dead", "listener", "n_evicted", "n_held", "n_nodes", "n_pages", "n_stored", "n_tokens",
                 "page", "policy", "pool", "queues", "roots", "second_tier", "states", "width")  # fmt: skip

    def __init__(self, pool: PagePool, page: int, policy: Lru) -> None:
        """page: slots per page."""
        self.pool = pool
        self.page = page
        self.width = 4 * page  # bytes of token ids per page
        self.policy = policy
        self.roots: dict[bytes, Root] = {}
        self.dead = EvictionQueue(DEAD, "dead")  # its is_open stays False, so `unlock` uses another queue
        self.by_level: dict[float, EvictionQueue] = {}
        self.queues: list[EvictionQueue] = []  # sorted by level; every queue that has nodes is in it
        self.queue(0)
        self.second_tier: SecondTier | None = None
        self.states: NodeSlots | None = None
        self.listener: Listener | None = None
        self.n_nodes = 0  # without roots
        self.n_pages = 0  # on the device
        self.n_tokens = 0  # in these pages
        self.n_held = 0  # pages on the device of nodes that are held and not locked
        self.n_stored = 0  # pages stored so far
        self.n_evicted: dict[str, int] = {}  # pages evicted so far, by reason

    @property
    def n_evictable(self) -> int:
        """How many of the tree's pages on the device are not locked."""
        return self.n_held + sum([queue.n_pages for queue in self.queues])

    # ---- match -----------------------------------------------------------------------------------------------------

    def match(self, root: Node, ids: bytes, limit: int) -> tuple[Node, int]:
        """Finds the longest stored prefix of `ids`, at most `limit` tokens. Returns the node in which it ends, and its
        number of tokens."""
        node, o, width = root, 0, self.width
        while child := node.children.get(ids[o : o + width]):
            node, key = child, child.key
            if not ids.startswith(key, o):
                o += 4 * n_common(ids, o, key)
                break
            o += len(key)
        else:
            if node.order and o < 4 * limit:
                node, n = _closest_child(node, ids[o : o + width])
                o += 4 * n
        n = o // 4
        if n > limit:
            n = limit
            while node.start >= n and node.parent:
                node = node.parent
        return node, n

    def subtree(self, node: Node) -> list[Node]:
        """A node and all nodes below it, parents first."""
        nodes = [node]
        for at in nodes:
            nodes += at.children.values()
        return nodes

    # ---- eviction queues -------------------------------------------------------------------------------------------

    def queue(self, level: float) -> EvictionQueue:
        """Returns the open queue of a level; creates it if there is none."""
        return self._open(self.by_level.get(level) or EvictionQueue(level, "unused"))

    def _open(self, queue: EvictionQueue) -> EvictionQueue:
        """Returns the queue that the tree's list has for the level of `queue`. If the list has none, adds `queue` to
        it. For the queue `dead`, returns the queue of new nodes, because a node that was used again is no longer
        dead."""
        if queue is self.dead:
            return self.queue(self.policy.stored(self.n_stored, 0))
        queue = self.by_level.setdefault(queue.level, queue)
        if not queue.is_open:
            queue.is_open = True
            insort(self.queues, queue, key=_level)
        return queue

    def _close(self, queue: EvictionQueue) -> None:
        """Removes an empty queue from the tree's list. Locked nodes may still refer to this queue. When such a node is
        unlocked, `_open` finds or adds a queue of the same level."""
        self.queues.remove(queue)
        queue.is_open = False
        self.by_level.pop(queue.level, None)

    def mark_dead(self, node: Node) -> None:
        """Moves a node to the queue `dead`, which is evicted before all others. The caller must check that the node is
        neither locked nor held, and that all nodes below it are in `dead` already."""
        if node.queue is self.dead:
            return
        if self.queues[0] is not self.dead:
            self.queues.insert(0, self.dead)
        unlink(node)
        link(node, self.dead)

    def promote(self, node: Node, n_cached: int, priority: int) -> None:
        """Gives new levels, which the policy determines, to the nodes that a lease matched: those on the locked path to
        `node` that begin before token n_cached."""
        at, used = node, self.policy.used
        while parent := at.parent:
            old = at.queue
            if at.start < n_cached and old is not self.dead and (level := used(int(old.level), priority)) != old.level:
                at.queue = self.queue(level)
            at = parent

    def limit_protected(self) -> None:
        """Moves the oldest nodes of level 1 to level 0, until level 1 has no more than the policy's share of pages."""
        if upper := self.by_level.get(1):
            n_max = self.policy.share * (self.n_evictable - self.n_held)
            while upper.n_pages > n_max:
                node = upper.next
                unlink(node)
                link(node, self.queue(0))

    # ---- lock, hold ------------------------------------------------------------------------------------------------

    def root(self, namespace: bytes) -> Root:
        """The root of a namespace, created if there is none. The caller must lock it, or a node below it."""
        return self.roots.get(namespace) or self.roots.setdefault(namespace, Root(namespace, self.dead))

    # From a node up to its root, the numbers of locks and holds never decrease. So a path consists of nodes in queues,
    # then nodes that are only held, then locked nodes. A node above another on the path has as many pages as lie
    # between their starts.

    def lock(self, node: Node, above: Node | None = None) -> None:
        """Locks a node and its ancestors up to `above` (exclusive): they are not evicted until they are unlocked."""
        at, page = node, self.page
        while at is not above and not (at.n_locks or at.n_holds) and (parent := at.parent):
            first, queue = at, at.queue
            at.n_locks = 1
            while at.next is parent and parent.parent:  # a path is often contiguous in its queue
                at, parent = parent, parent.parent
                at.n_locks = 1
            before, behind = first.prev, at.next
            before.next, behind.prev = behind, before
            queue.n_pages -= first.start // page + len(first.pages) - at.start // page
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
        """Undoes one `lock` of the same nodes. Nodes that are neither locked nor held afterwards become the youngest of
        their queues."""
        at, queue, page = node, node.queue, self.page
        if not queue.is_open:
            queue = self._open(queue)
        while at is not above and at.n_locks == 1 and not at.n_holds and (parent := at.parent):
            if at.queue.level > queue.level:
                queue = self._open(at.queue)
            first, youngest, level = at, queue.prev, queue.level
            while True:
                at.n_locks = 0
                at.queue = queue
                at.prev = youngest
                youngest.next = at
                youngest = at
                at = parent
                if at.n_locks != 1 or at is above or at.n_holds or at.queue.level > level or not (parent := at.parent):
                    break
            youngest.next, queue.prev = queue, youngest
            queue.n_pages += first.start // page + len(first.pages) - youngest.start // page
        while at is not above and at.n_locks == 1 and (parent := at.parent):
            self.n_held += len(at.pages)
            at.n_locks = 0
            if at.queue.level < queue.level:
                at.queue = queue
            at = parent
        rest: Node | None = at
        while rest:
            if rest.queue.level < queue.level:
                rest.queue = queue
            if rest is above:
                break
            rest.n_locks -= 1
            if not (rest.n_locks or rest.children or rest.parent):
                self.drop_if_empty(rest)
            rest = rest.parent
        if len(node.key) < self.width:
            self.drop_if_redundant(node)

    def hold(self, node: Node) -> None:
        """Holds a node and its ancestors: they are evicted only after all other nodes."""
        at = node
        while parent := at.parent:
            if not (at.n_holds or at.n_locks):
                unlink(at)
                self.n_held += len(at.pages)
            at.n_holds += 1
            at = parent

    def unhold(self, node: Node, above: Node | None = None) -> None:
        """Undoes one `hold`, for the nodes up to `above` (exclusive)."""
        at = node
        while at is not above and (parent := at.parent):
            at.n_holds -= 1
            if not (at.n_holds or at.n_locks):
                self.n_held -= len(at.pages)
                alive = at
                while alive.queue is self.dead and alive.parent:  # a dead node that was held gets its ancestors' queue
                    alive = alive.parent
                link(at, self._open(alive.queue))
            at = parent
        if len(node.key) < self.width:
            self.drop_if_redundant(node)

    def drop_if_redundant(self, node: Node) -> None:
        """Drops `node`, a leaf of less than a page, if it is neither locked nor held and a sibling begins with the same
        tokens."""
        if (parent := node.parent) and not (node.n_locks or node.n_holds):
            i = bisect_right(parent.order, node.key)
            if i < len(parent.order) and parent.order[i].startswith(node.key):
                self.drop(node)

    def drop_if_empty(self, root: Node) -> None:
        """Removes a root if it has neither locks nor children."""
        if isinstance(root, Root) and not root.n_locks and not root.children:
            del self.roots[root.namespace]

    # ---- insert ----------------------------------------------------------------------------------------------------

    def split(self, node: Node, n: int) -> Node:
        """Splits a node after its first n tokens, which fill whole pages and are not the whole node. Returns the new
        upper part.

        The old object becomes the lower part, so references to the node still mean the same path.
        """
        parent, cut, i = node.parent, 4 * n, n // self.page
        assert parent is not None
        upper = Node(parent, node.start, node.key[:cut], node.pages[:i], node.queue)
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
        if node.host and self.second_tier:
            self.second_tier.split(upper, node)
        if node.states and self.states:
            self.states.split(upper, node)
        self.n_nodes += 1
        return upper

    def insert(self, node: Node, ids: bytes, pages: array[int], priority: int = 0) -> tuple[Node, list[int]]:
        """Stores the tokens of `ids` that follow the path of `node`. Returns the node in which these tokens end, and
        the pages of the lease that are no longer needed.

        The caller's lock moves from `node` to the returned node. `pages` are the pages of one lease, starting at token
        0. The pages after the path of `node` become the tree's pages. But if the tree already has a page with the same
        tokens, the tree's page replaces the lease's page in `pages`. A partly filled last page is not stored if a
        sibling begins with the same tokens; the returned node then ends before this page.
        """
        o, end, width = 4 * node.end, len(ids), self.width
        if o >= end:
            return node, []
        own = -(-o // width)  # the first page that is the lease's own
        if o % width:  # an open leaf, whose last page the lease is filling
            parent, first = node.parent, ids[4 * node.start : 4 * node.start + width]
            assert parent is not None
            rival = parent.children.get(first) if len(node.key) < width else None
            if rival is not None and not rival.pages and self.second_tier:
                self.second_tier.drop_subtree(rival)
                rival = None
            if rival is None or len(first) < width:
                border = o - o % width + width
                if len(node.key) < width and _has_prefix(parent.order, first):
                    return node, []
                if not node.n_holds or end <= border:
                    self._extend(node, ids, pages)
                    return node, []
                self._extend(node, ids[:border], pages)  # a hint holds this node, but not what follows
                o = border
            else:
                self.unlock(node, parent)  # another lease has published the page meanwhile
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
                duplicates = list(pages[max(first_page, own) : last_page])
                spare = spare + duplicates if spare else duplicates  # mostly avoids a copy
                pages[first_page:last_page] = array("i", child.pages)
            else:
                assert self.second_tier is not None
                self.second_tier.adopt(child, list(pages[first_page:last_page]))
            node, o = child, o + n
        if o == end:
            return node, spare
        if node.n_locks == 1 and not node.children and node.parent and not node.n_holds:
            self._extend(node, ids, pages)
        elif end - o >= width or not _has_prefix(node.order, ids[o:end]):
            node = self._add(node, ids[o:end], list(pages[o // width : -(-end // width)]), priority)
        return node, spare

    def _add(self, parent: Node, key: bytes, pages: list[int], priority: int) -> Node:
        """Adds a new leaf, locked once, below a locked node."""
        node = Node(parent, parent.end, key, pages, self.queue(self.policy.stored(self.n_stored, priority)))
        node.n_locks = 1
        self.attach(parent, node)
        self._count_stored(node, 0, len(key))
        return node

    def attach(self, parent: Node, node: Node) -> None:
        """Adds a new leaf to its parent, but to no eviction queue."""
        self._link_child(parent, node)
        self.n_nodes += 1

    def _extend(self, node: Node, ids: bytes, pages: array[int]) -> None:
        """Extends the leaf that a lease writes to, up to the end of `ids`."""
        parent, old = node.parent, node.key
        assert parent is not None
        if node.host and self.second_tier:
            self.second_tier.free_copy(node)
        node.key = ids[4 * node.start :]
        n_old = len(node.pages)
        node.pages += pages[node.start // self.page + n_old : -(-len(ids) // self.width)]
        if len(old) < self.width:
            del parent.children[old]
            del parent.order[bisect_left(parent.order, old)]
            self._link_child(parent, node)
        self._count_stored(node, n_old, len(node.key) - len(old))

    def _count_stored(self, node: Node, first: int, n_bytes: int) -> None:
        """Counts what was added to a node: its pages starting at index `first`, and the tokens in the last n_bytes of
        its key. Tells the listener."""
        n = len(node.pages) - first
        self.n_pages += n
        self.n_stored += n
        self.n_tokens += n_bytes // 4
        if self.listener:
            self.listener.stored(node, len(node.key) - n_bytes)

    def _link_child(self, parent: Node, node: Node) -> None:
        """Adds a locked leaf to its parent's children. Drops the open leaf that it makes redundant."""
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

    # ---- evict -----------------------------------------------------------------------------------------------------

    def evict(self, n: int, reason: str = "") -> int:
        """Frees n pages. It takes pages from the end of the oldest leaf in the queue with the lowest level, then from
        the next leaf, then from the next queue. Returns how many pages it freed: fewer than n if all queues get empty.
        With a second tier, a leaf's pages move there in runs of `host_tier.RUN`, so a few more than n may leave the
        device.

        reason: the name under which the pages are counted in `n_evicted`; "": the reason of the queue.
        """
        n_left, queues, second_tier = n, self.queues, self.second_tier
        while n_left > 0:
            queue, n_before = queues[0], n_left
            while n_left > 0 and (node := queue.next) is not queue:
                if second_tier:
                    n_left -= second_tier.move_out(node, n_left)
                elif (n_pages := len(node.pages)) <= n_left:
                    self.drop(node)
                    n_left -= n_pages
                else:
                    self._trim(node, n_left)
                    n_left = 0
            if n_left < n_before:
                self.count_evicted(reason or queue.reason, n_before - n_left)
            elif len(queues) > 1:
                self._close(queue)
            else:
                break
        return n - n_left

    def count_evicted(self, reason: str, n: int) -> None:
        """Adds n pages to the statistics of evictions."""
        if n:
            self.n_evicted[reason] = self.n_evicted.get(reason, 0) + n

    def _trim(self, node: Node, n: int) -> None:
        """Frees the last n pages of a leaf that is in a queue and has more than n."""
        n_kept = len(node.pages) - n
        if n_kept > _MAX_TRIM:
            self.split(node, (n_kept - _MAX_TRIM) * self.page)
            n_kept = _MAX_TRIM
        if self.listener:
            self.listener.removed(node, n_kept * self.width)
        self.pool.give(node.pages[n_kept:])
        del node.pages[n_kept:]
        self.n_tokens -= len(node.key) // 4 - n_kept * self.page
        node.key = node.key[: n_kept * self.width]
        if node.states and self.states:
            self.states.cut(node, node.end)
        self.n_pages -= n
        node.queue.n_pages -= n

    def drop(self, node: Node) -> None:
        """Removes a leaf that is in a queue, and frees its pages."""
        parent, first = node.parent, node.key[: self.width]
        assert parent is not None
        if self.listener:
            self.listener.removed(node, 0)
        del parent.children[first]
        del parent.order[bisect_left(parent.order, first)]
        if not parent.children:
            parent.children, parent.order = NO_CHILDREN, NO_ORDER
            self.drop_if_empty(parent)
        queue, before, behind = node.queue, node.prev, node.next
        before.next, behind.prev = behind, before
        node.prev = node.next = queue  # others may still refer to the node, but must not reach its neighbours
        self.n_nodes -= 1
        if n := len(node.pages):
            queue.n_pages -= n
            self.n_pages -= n
            self.n_tokens -= len(node.key) // 4
            self.pool.give(node.pages)
        if node.host and self.second_tier:
            self.second_tier.free_copy(node)
        if node.states and self.states:
            self.states.cut(node, node.start)


def n_tokens(ids: bytes) -> int:
    """The number of token ids. Raises ValueError if the length is no multiple of 4 bytes."""
    n, rest = divmod(len(ids), 4)
    if rest:
        raise ValueError(f"ids have {len(ids)} bytes, which is not a multiple of 4 (int32)")
    return n


def _closest_child(parent: Node, first: bytes) -> tuple[Node, int]:
    """The child that shares most tokens with the page `first`, and how many; (parent, 0) if no child shares any."""
    order = parent.order
    i = bisect_left(order, first)
    best, n_best = b"", 0
    for key in order[max(i - 1, 0) : i + 1]:
        n = n_common(first, 0, key)
        if n > n_best:
            best, n_best = key, n
    return (parent.children[best], n_best) if n_best else (parent, 0)


def _has_prefix(order: list[bytes], first: bytes) -> bool:
    """Whether one of the sorted keys begins with `first`."""
    i = bisect_left(order, first)
    return i < len(order) and order[i].startswith(first)
