"""The second tier: pages that leave the device go to host memory, and come back when a request wants them.

The tree stays one. A node's pages lie on the device, in host memory, or in both; below a node that lies in host memory
alone, all do. What is evicted from the device is put behind all that was evicted before it, so of the host's lane, too,
the head is a leaf, and goes first when host memory is full: before it copies go whose originals are back on the device.

Nothing is moved here. Who owns the memory takes the `moves`, in order, and does them before it next writes to a page:

    for move in cache.take_moves():        # first these,
        ...
    for copy in lease.take_copies():       # then the copies,
        ...                                # then the forward pass

With a file (pagefile.py) the same pages outlive the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from banyan.radix_cache.node import HOST, NO_PAGES, EvictionQueue, Node, link, unlink
from banyan.radix_cache.pagefile import Label, PageFile, label_node, prefix_digests

if TYPE_CHECKING:
    from banyan.radix_cache.tree import Tree

RUN = 16
"""Pages that leave the device at once, where a leaf has as many: a move of one page costs as much as one of a few, and
each cuts a node."""


class Move(NamedTuple):
    """One page, all layers of it. is_out: from the device to host memory; else back. label: what to seal it with in a
    file, "" where there is none or the page is not full."""

    is_out: bool
    device: int
    host: int
    label: bytes = b""


class Host:
    """Host memory of `n_pages` pages, and who lies in it. Implements `tree.Below`."""

    def __init__(self, tree: Tree, n_pages: int, file: PageFile | None = None) -> None:
        self.tree = tree
        self.n_pages = n_pages
        self.file = file
        self.free = list(range(n_pages - 1, -1, -1))
        self.lane = EvictionQueue(HOST, "host")  # of nodes that lie here alone
        self.lane.is_open = True
        self.copies: dict[Node, None] = {}  # nodes that lie on the device too, the longest known first
        self.moves: list[Move] = []
        self.n_out = self.n_in = 0
        self.unproven: set[int] = set()  # pages that a process before this one wrote, not yet read
        if file is not None:
            self._restore(file)

    # ---- out -------------------------------------------------------------------------------------------------------

    def take(self, node: Node, n: int) -> int:
        """Let go of at least n pages at the end of a leaf, the head of its lane, or of all. How many it were."""
        tree = self.tree
        n_go = min(max(n, RUN), len(node.pages), self.n_pages)
        if n_go < len(node.pages):
            tree.split(node, (len(node.pages) - n_go) * tree.page)
        if not node.host and not self._copy(node):
            for child in list(node.children.values()):
                self.forget(child)
            tree.drop(node)
            return n_go
        self.copies.pop(node, None)
        if tree.log:
            tree.log.removed(node, 0)
        tree.n_pages -= n_go
        tree.n_tokens -= len(node.key) // 4
        tree.pool.give(node.pages)
        unlink(node)
        node.pages = NO_PAGES
        link(node, self.lane)
        return n_go

    def _copy(self, node: Node) -> bool:
        """Give a node pages here and order the moves there. False: there is no room."""
        host = self._claim(len(node.pages))
        if not host:
            return False
        labels = label_node(node, self.tree.page) if self.file else [b""] * len(host)
        node.host = host
        self.moves += map(Move, [True] * len(host), node.pages, host, labels)
        self.n_out += len(host)
        self.unproven.difference_update(host)
        return True

    def save(self, n_most: int) -> int:
        """Copy up to n_most pages that lie on the device alone, the youngest first, into host memory that is free: for
        a file, before the end. Returns how many."""
        n_left = n_most
        for lane in reversed(self.tree.lanes):
            node: Node = lane
            while (node := node.prev) is not lane:  # from the youngest: what is above a node comes before it
                above = node.parent
                is_rooted = above is not None and (above.host or not above.parent)
                if is_rooted and not node.host and len(node.pages) <= min(n_left, len(self.free)):
                    self._copy(node)
                    self.copies[node] = None
                    n_left -= len(node.pages)
        return n_most - n_left

    def _claim(self, n: int) -> list[int]:
        """n pages, or none where there are not n."""
        if n > self.n_pages:
            return []
        free = self.free
        while len(free) < n:
            if self.copies:
                self.release(next(iter(self.copies)))
            elif (node := self.lane.next) is not self.lane:
                self._trim(node, n - len(free))
            else:
                return []
        taken = free[: -n - 1 : -1]
        del free[len(free) - n :]
        return taken

    def _trim(self, node: Node, n: int) -> None:
        """Free n pages at the end of the lane's head, or all it has."""
        n_kept = len(node.host) - n
        if n_kept <= 0:
            self.tree.drop(node)
            return
        self.free += node.host[n_kept:]
        node.host = node.host[:n_kept]
        node.key = node.key[: n_kept * self.tree.width]

    # ---- back ------------------------------------------------------------------------------------------------------

    def bring(self, node: Node, n: int, n_room: int) -> tuple[Node, int]:
        """Bring back the path to the n-th token, which stands in `node`, as far as n_room pages go; what is evicted for
        it is chosen as ever. Returns the node that then ends it on the device, and how many tokens it has."""
        tree = self.tree
        n_more = -(-n // tree.page) * tree.page - node.start
        if n_more < node.end - node.start:
            node = tree.split(node, n_more)
        path, at = [node], node.parent
        while at and at.parent and not at.pages:
            path.append(at)
            at = at.parent
        assert at is not None
        for k, one in enumerate(reversed(path)):
            if not self._is_sound(one):
                self.forget(one)
                del path[: len(path) - k]
                break
        if not path:
            return at, min(n, at.end)
        last = path[0]
        tree.lock(last)
        while path:
            n_pages = len(path[-1].host)
            if n_pages > n_room:
                break
            tree.evict(n_pages - len(tree.pool.free))
            if n_pages > len(tree.pool.free):
                break
            at = path.pop()
            pages = tree.pool.take(n_pages)
            n_room -= n_pages
            self.moves += map(Move, [False] * n_pages, pages, at.host)
            self.n_in += n_pages
            self.adopt(at, pages)
        tree.unlock(last)
        return at, min(n, at.end)

    def adopt(self, node: Node, pages: list[int]) -> None:
        """A locked node that lies here alone gets `pages` on the device. Its copy stays."""
        tree = self.tree
        node.pages = pages
        node.lane = tree.lane(tree.policy.stored(tree.n_stored, 0))
        tree.n_pages += len(pages)
        tree.n_stored += len(pages)
        tree.n_tokens += len(node.key) // 4
        self.copies[node] = None
        if tree.log:
            tree.log.stored(node, 0)

    def _is_sound(self, node: Node) -> bool:
        """Whether what a process before this one left is what it wrote."""
        if self.file is None or self.unproven.isdisjoint(node.host):
            return True
        is_sound = all(map(self.file.is_sound, self.unproven.intersection(node.host)))
        self.unproven.difference_update(node.host)
        return is_sound

    # ---- what the tree says ----------------------------------------------------------------------------------------

    def cut(self, upper: Node, lower: Node) -> None:
        """`upper` was cut off a node with pages here."""
        n = len(upper.key) // self.tree.width
        upper.host, lower.host = lower.host[:n], lower.host[n:]
        if lower in self.copies:
            self.copies[upper] = None

    def release(self, node: Node) -> None:
        """A node's copy is of no more use."""
        self.copies.pop(node, None)
        self.free += node.host
        node.host = NO_PAGES

    def forget(self, node: Node) -> None:
        """Drop a node that lies here alone, and all below it."""
        below = [node]
        for at in below:
            below += at.children.values()
        for at in reversed(below):
            self.tree.drop(at)

    def clear(self) -> None:
        """Forget all that lies here."""
        while self.copies:
            self.release(next(iter(self.copies)))
        while (node := self.lane.next) is not self.lane:
            self.tree.drop(node)
        if self.file is not None:
            self.file.wipe()

    def empty(self) -> None:
        """Forget all at once, whatever the books say; nodes no longer know of it. Ordered moves stand."""
        self.free = list(range(self.n_pages - 1, -1, -1))
        self.lane = EvictionQueue(HOST, "host")
        self.lane.is_open = True
        self.copies.clear()
        self.unproven.clear()
        if self.file is not None:
            self.file.wipe()

    # ---- the file --------------------------------------------------------------------------------------------------

    def _restore(self, file: PageFile) -> None:
        """Take over what the file has. What does not hang together to a root is free again."""
        after: dict[bytes, dict[bytes, tuple[int, Label]]] = {}
        namespaces: dict[bytes, None] = {}
        for i, label in file.labels():
            after.setdefault(label.parent, {})[label.digest] = i, label
            namespaces[label.namespace] = None
        used: set[int] = set()
        for namespace in namespaces:
            (digest,) = prefix_digests(namespace, b"", 0, self.tree.width)
            if digest in after:
                self._grow(self.tree.root(namespace), digest, after, used)
        self.free = [i for i in self.free if i not in used]
        self.unproven = used

    def _grow(
        self, root: Node, digest: bytes, after: dict[bytes, dict[bytes, tuple[int, Label]]], used: set[int]
    ) -> None:
        """Hang all pages below a root that go on from a digest: those without a fork in one node."""
        tree, made = self.tree, []
        stack = [(root, page) for page in after[digest].values()]
        while stack:
            parent, (i, label) = stack.pop()
            ids, pages = [label.ids], [i]
            while len(rest := after.get(label.digest, {})) == 1:
                ((i, label),) = rest.values()
                ids.append(label.ids)
                pages.append(i)
            node = Node(parent, parent.end, b"".join(ids), NO_PAGES, self.lane)
            node.host = pages
            tree.attach(parent, node)
            made.append(node)
            used.update(pages)
            stack += [(node, page) for page in rest.values()]
        for node in reversed(made):  # what is below a node comes before it
            link(node, self.lane)
