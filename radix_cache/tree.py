"""The radix tree: from token ids to the pages that hold their keys and values.

Ids are int32 little-endian `bytes`, compared where they lie. A node is a run of tokens (`key`) and the pages they
stand in (`pages`); it begins at a page border. All nodes hold whole pages, but for a leaf, whose last page may be
filled in part: such a leaf is **open**. Children of a node differ in their first page, not in their first token:
where two runs part inside a page, each has a page of its own. A match is exact to the token all the same: where no
child has the next whole page, the one that shares most of it stands beside the place that the page would have in
`order`, because of sorted strings a neighbour has the longest common prefix.

Rules (`check` asserts them):
  * A page in the tree belongs to one node.
  * A lock on a node covers its ancestors, and locked nodes are not evicted. The others stand in one list, into which
    `unlock` puts a path deepest first. So a node stands behind its descendants, the head is always a leaf, and eviction
    takes pages from the end of the oldest leaf, at a cost that does not depend on the size of the tree.
  * An open leaf of less than a page is dropped, once unlocked, where a child beside it begins with the same tokens.
  * At most one lease writes to an open leaf: the one that holds its end. Others read it, and copy.
  * A match changes nothing, not even an age. Nodes are split where a lock or an insert ends, never by a look.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np

from banyan.radix_cache.pages import Pool

_NO_CHILDREN: dict[bytes, Node] = {}  # of every leaf; never written to
_NO_ORDER: list[bytes] = []
_LONG = 64  # pages: of a longer leaf the end is cut off before pages are taken from it, as each time copies its key


class Node:
    """A run of tokens and its pages. n_locks: leases that hold it or something below it."""

    __slots__ = ("children", "key", "n_locks", "next", "order", "pages", "parent", "prev", "start")

    parent: Node | None  # None: a root
    prev: Node  # in the list of the unlocked, if it is one of them
    next: Node

    def __init__(self, parent: Node | None, start: int, key: bytes, pages: list[int]) -> None:
        self.parent = parent
        self.start = start  # of its first token, counted from the root
        self.key = key
        self.pages = pages
        self.children = _NO_CHILDREN  # by the first page of their keys
        self.order = _NO_ORDER  # the same keys, sorted
        self.n_locks = 0

    @property
    def end(self) -> int:
        return self.start + len(self.key) // 4


class Root(Node):
    """The empty prefix of one namespace. Locked like a node, but in no list: it goes with its last child and lock."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: bytes) -> None:
        super().__init__(None, 0, b"", [])
        self.namespace = namespace


class Tree:
    """Trees, one per namespace, over one pool and with one order of eviction."""

    __slots__ = ("n_evictable", "n_evicted", "n_nodes", "n_pages", "page", "pool", "roots", "unlocked", "width")

    def __init__(self, pool: Pool, page: int) -> None:
        self.pool = pool
        self.page = page
        self.width = 4 * page  # bytes of ids a page
        self.roots: dict[bytes, Root] = {}
        self.unlocked = ends = Node(None, 0, b"", [])  # both ends of the list: next is the oldest, prev the youngest
        ends.prev = ends.next = ends
        self.n_nodes = 0  # without roots
        self.n_pages = 0
        self.n_evictable = 0  # pages of unlocked nodes
        self.n_evicted = 0  # pages so far

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

    # ---- lock ------------------------------------------------------------------------------------------------------

    def root(self, namespace: bytes) -> Root:
        """The root of a namespace, made if there is none. The caller locks it, or a node below it."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Root(namespace)
        return root

    def lock(self, node: Node | None, above: Node | None = None) -> None:
        """Lock a node and its ancestors, up to `above` (left out): they stay until unlocked."""
        ends = self.unlocked
        while node and node is not above:
            parent = node.parent
            if not node.n_locks and parent:
                before, behind = node.prev, node.next
                before.next, behind.prev = behind, before
                node.prev = node.next = ends  # so that a node that goes is not kept in memory by one that stays
                self.n_evictable -= len(node.pages)
            node.n_locks += 1
            node = parent

    def unlock(self, node: Node, above: Node | None = None) -> None:
        """Take back one `lock` of the same nodes. Those that nobody else locks become the youngest of the unlocked."""
        ends = self.unlocked
        youngest, at = ends.prev, node
        while parent := at.parent:
            at.n_locks -= 1
            if not at.n_locks:
                at.prev = youngest
                youngest.next = at
                youngest = at
                self.n_evictable += len(at.pages)
            if parent is above:
                break
            at = parent
        else:
            at.n_locks -= 1
            self._leave(at)
        youngest.next, ends.prev = ends, youngest
        if not node.n_locks and len(node.key) < self.width and (parent := node.parent):
            i = bisect_right(parent.order, node.key)
            if i < len(parent.order) and parent.order[i].startswith(node.key):
                self._drop(node)

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
        upper = Node(parent, node.start, node.key[:cut], node.pages[:i])
        parent.children[upper.key[: self.width]] = upper
        node.parent, node.start = upper, node.start + n
        node.key, node.pages = node.key[cut:], node.pages[i:]
        first = node.key[: self.width]
        upper.children, upper.order = {first: node}, [first]
        upper.n_locks = node.n_locks
        if not node.n_locks:
            behind = node.next
            upper.prev, upper.next = node, behind
            node.next = behind.prev = upper
        self.n_nodes += 1
        return upper

    def insert(self, node: Node, ids: bytes, pages: list[int]) -> tuple[Node, list[int]]:
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
            if rival is None or len(first) < width:
                if len(node.key) >= width or not _is_begun(parent.order, first):
                    self._lengthen(node, ids, pages)
                return node, []
            self.unlock(node, parent)  # another has published the page meanwhile
            node, o = parent, 4 * node.start
        spare: list[int] = []
        while end - o >= width and (child := node.children.get(ids[o : o + width])):
            n = len(child.key) if ids.startswith(child.key, o) else 4 * n_common(ids, o, child.key)
            n -= n % width
            if n < len(child.key):
                child = self.split(child, n // 4)
            self.lock(child, node)
            first_page = o // width
            last_page = first_page + len(child.pages)
            spare += pages[max(first_page, own) : last_page]
            pages[first_page:last_page] = child.pages
            node, o = child, o + n
        if o == end:
            return node, spare
        if node.n_locks == 1 and not node.children and node.parent:
            self._lengthen(node, ids, pages)
        elif end - o >= width or not _is_begun(node.order, ids[o:end]):
            node = self._add(node, ids[o:end], pages[o // width : -(-end // width)])
        return node, spare

    def _add(self, parent: Node, key: bytes, pages: list[int]) -> Node:
        """A new leaf, locked once, below a locked node."""
        node = Node(parent, parent.end, key, pages)
        node.n_locks = 1
        self._file(parent, node)
        self.n_nodes += 1
        self.n_pages += len(pages)
        return node

    def _lengthen(self, node: Node, ids: bytes, pages: list[int]) -> None:
        """Let a leaf that one lease writes to reach to the end of `ids`."""
        parent, old = node.parent, node.key
        assert parent is not None
        node.key = ids[4 * node.start :]
        more = pages[node.start // self.page + len(node.pages) : -(-len(ids) // self.width)]
        node.pages += more
        self.n_pages += len(more)
        if len(old) < self.width:
            del parent.children[old]
            del parent.order[bisect_left(parent.order, old)]
            self._file(parent, node)

    def _file(self, parent: Node, node: Node) -> None:
        """Put a locked leaf among its parent's children, in place of the open leaf that says nothing beside it."""
        first, order = node.key[: self.width], parent.order
        i = bisect_left(order, first)
        if i and first.startswith(order[i - 1]) and not (shorter := parent.children[order[i - 1]]).n_locks:
            self._drop(shorter)
        if not parent.children:
            parent.children, parent.order = {}, []
        parent.children[first] = node
        insort(parent.order, first)

    # ---- shrink ----------------------------------------------------------------------------------------------------

    def evict(self, n: int) -> int:
        """Free n pages of unlocked nodes, or as many as there are: the oldest leaf first, and of it the last page."""
        n_left, pool, ends = n, self.pool, self.unlocked
        while n_left and (node := ends.next) is not ends:
            n_kept = len(node.pages) - n_left
            if n_kept <= 0:
                n_left -= len(node.pages)
                self._drop(node)
                continue
            if n_kept > _LONG:
                self.split(node, (n_kept - _LONG) * self.page)
                n_kept = _LONG
            pool.give(node.pages[n_kept:])
            del node.pages[n_kept:]
            node.key = node.key[: n_kept * self.width]
            self.n_pages -= n_left
            self.n_evictable -= n_left
            n_left = 0
        self.n_evicted += n - n_left
        return n - n_left

    def _drop(self, node: Node) -> None:
        """Remove an unlocked leaf, and free its pages."""
        parent, first = node.parent, node.key[: self.width]
        assert parent is not None
        del parent.children[first]
        del parent.order[bisect_left(parent.order, first)]
        if not parent.children:
            parent.children, parent.order = _NO_CHILDREN, _NO_ORDER
            self._leave(parent)
        before, behind = node.prev, node.next
        before.next, behind.prev = behind, before
        self.n_nodes -= 1
        self.n_pages -= len(node.pages)
        self.n_evictable -= len(node.pages)
        self.pool.give(node.pages)


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


def n_common(ids: bytes, start: int, key: bytes) -> int:
    """How many tokens `key` shares with `ids` from the byte `start` on."""
    n = min(len(ids) - start, len(key))
    if n <= 256:  # two integers and their lowest different bit: for short runs faster than an array
        differing = int.from_bytes(ids[start : start + n], "little") ^ int.from_bytes(key[:n], "little")
        return ((differing & -differing).bit_length() - 1) // 32 if differing else n // 4
    differs = np.frombuffer(ids, np.int32, n // 4, start) != np.frombuffer(key, np.int32, n // 4)
    i = int(differs.argmax())
    return i if differs[i] else n // 4
