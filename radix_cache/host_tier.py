"""The second tier: pages that are evicted from the device move to host memory, and back when a request needs them.

There is still one tree. A node's pages are on the device, in host memory, or in both. If a node is only in host memory,
so are all nodes below it. Nodes that are evicted from the device go to the end of the host's queue. So the head of this
queue is always a leaf, as on the device. When host memory is full, it first frees copies of nodes that are also on the
device; then it evicts the head of the queue.

This module moves no bytes. The owner of the memory takes the `moves` and executes them in order, before it next writes
to a page:

    for move in cache.take_moves():        # first these,
        ...
    for copy in lease.take_copies():       # then the copies,
        ...                                # then the forward pass

With a file (pagefile.py), host memory outlives the process.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

from banyan.radix_cache.digests import prefix_digests
from banyan.radix_cache.node import HOST, NO_PAGES, EvictionQueue, Node, link, unlink, upward
from banyan.radix_cache.pagefile import Label, PageFile, label_node
from banyan.radix_cache.tree import Tree

RUN = 16
"""At least this many pages leave the device together, if the leaf has so many: moving one page costs as much as moving
a few, and each move splits a node."""


class Move(NamedTuple):
    """Moves one page, in all layers. is_out: from the device to host memory; else back. label: for `PageFile.seal`; ""
    if there is no file or the page is not full."""

    is_out: bool
    device: int
    host: int
    label: bytes = b""


class Host:
    """Host memory of `n_pages` pages, and the nodes in it."""

    def __init__(self, tree: Tree, evict: Callable[[int], int], n_pages: int, file: PageFile | None = None) -> None:
        """evict: frees pages on the device (`KVHints.evict`)."""
        self.tree = tree
        self.n_pages = n_pages
        self.file = file
        self._evict = evict
        self._reset()
        self.moves: list[Move] = []
        self.n_out = self.n_in = 0
        if file is not None:
            self._restore(file)

    def _reset(self) -> None:
        self.free = list(range(self.n_pages - 1, -1, -1))
        self.queue = EvictionQueue(HOST, "host", is_open=True)  # nodes that are only in host memory
        self.copies: dict[Node, None] = {}  # nodes that are on the device too, the oldest copy first
        self.unproven: set[int] = set()  # pages of an earlier process whose checksums were not compared yet

    # ---- out -------------------------------------------------------------------------------------------------------

    def move_out(self, node: Node, n: int) -> int:
        """Moves the last pages of a leaf to host memory: n or RUN pages, whichever is more, but at most as many as the
        leaf has or host memory can hold. The leaf must be the head of its eviction queue. If no room can be made in
        host memory, drops the pages. Returns how many pages left the device."""
        tree = self.tree
        n_out = min(max(n, RUN), len(node.pages), self.n_pages)
        if n_out < len(node.pages):
            tree.split(node, (len(node.pages) - n_out) * tree.page)
        if not node.host and not self._copy(node):
            for child in list(node.children.values()):
                self.drop_subtree(child)
            tree.drop(node)
            return n_out
        self.copies.pop(node, None)
        if tree.listener:
            tree.listener.removed(node, 0)
        tree.n_pages -= n_out
        tree.n_tokens -= len(node.key) // 4
        tree.pool.give(node.pages)
        unlink(node)
        node.pages = NO_PAGES
        link(node, self.queue)
        return n_out

    def _copy(self, node: Node) -> bool:
        """Gives a node pages in host memory and orders the moves to them. Returns False if there is no room."""
        host = self._claim(len(node.pages))
        if not host:
            return False
        labels = label_node(node, self.tree.page) if self.file else [b""] * len(host)
        node.host = host
        self.moves += map(Move, [True] * len(host), node.pages, host, labels)
        self.n_out += len(host)
        self.unproven.difference_update(host)
        return True

    def save(self) -> None:
        """Copies pages that are only on the device into free host memory, the youngest first, while there is room.
        Called before the process ends, so that a file keeps the pages."""
        for queue in reversed(self.tree.queues):
            node: Node = queue
            while (node := node.prev) is not queue:  # from the youngest: parents come before children
                above = node.parent
                is_rooted = above is not None and (above.host or not above.parent)
                if is_rooted and not node.host and len(node.pages) <= len(self.free):
                    self._copy(node)
                    self.copies[node] = None

    def _claim(self, n: int) -> list[int]:
        """Takes n pages of host memory, by eviction if needed. Returns an empty list if fewer than n are available."""
        if n > self.n_pages:
            return []
        free = self.free
        while len(free) < n:
            if self.copies:
                self.free_copy(next(iter(self.copies)))
            elif (node := self.queue.next) is not self.queue:
                self._trim(node, n - len(free))
            else:
                return []
        taken = free[: -n - 1 : -1]
        del free[len(free) - n :]
        return taken

    def _trim(self, node: Node, n: int) -> None:
        """Frees the last n pages of `node`, which is the head of the host's queue. Drops the node if it has no more
        than n."""
        n_kept = len(node.host) - n
        if n_kept <= 0:
            self.tree.drop(node)
            return
        self.free += node.host[n_kept:]
        node.host = node.host[:n_kept]
        node.key = node.key[: n_kept * self.tree.width]
        if node.states and self.tree.states:
            self.tree.states.cut(node, node.end)

    # ---- back ------------------------------------------------------------------------------------------------------

    def bring(self, node: Node, n: int, n_room: int) -> tuple[Node, int]:
        """Brings the path to the n-th token, which is in `node`, back to the device. Moves at most n_room pages, and
        evicts other pages if it needs room. Returns the last node of the path that is on the device afterwards, and how
        many of the n tokens the path has up to the end of that node."""
        tree = self.tree
        n_more = -(-n // tree.page) * tree.page - node.start
        if n_more < node.end - node.start:
            node = tree.split(node, n_more)
        path = list(takewhile(lambda at: at.parent and not at.pages, upward(node)))
        at = path[-1].parent
        assert at is not None
        for k, one in enumerate(reversed(path)):
            if not self._is_sound(one):
                self.drop_subtree(one)
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
            self._evict(n_pages - len(tree.pool.free))
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
        """Gives `pages` on the device to a locked node that is only in host memory. The copy in host memory stays."""
        tree = self.tree
        node.pages = pages
        node.queue = tree.queue(tree.policy.stored(tree.n_stored, 0))
        tree.n_pages += len(pages)
        tree.n_stored += len(pages)
        tree.n_tokens += len(node.key) // 4
        self.copies[node] = None
        if tree.listener:
            tree.listener.stored(node, 0)

    def _is_sound(self, node: Node) -> bool:
        """Whether the host pages of a node match their checksums. Compares only pages from an earlier process, each
        once."""
        if self.file is None or self.unproven.isdisjoint(node.host):
            return True
        is_sound = all(map(self.file.is_sound, self.unproven.intersection(node.host)))
        self.unproven.difference_update(node.host)
        return is_sound

    # ---- changes of the tree ---------------------------------------------------------------------------------------

    def split(self, upper: Node, lower: Node) -> None:
        """Moves the host pages of the tokens in `upper` from `lower` to `upper`, which was split off from `lower`."""
        n = len(upper.key) // self.tree.width
        upper.host, lower.host = lower.host[:n], lower.host[n:]
        if lower in self.copies:
            self.copies[upper] = None

    def free_copy(self, node: Node) -> None:
        """Frees a node's pages in host memory."""
        self.copies.pop(node, None)
        self.free += node.host
        node.host = NO_PAGES

    def drop_subtree(self, node: Node) -> None:
        """Drops a node that is only in host memory, and all nodes below it."""
        for below in reversed(self.tree.subtree(node)):
            self.tree.drop(below)

    def clear(self) -> None:
        """Drops all nodes that are only in host memory, and all copies."""
        while self.copies:
            self.free_copy(next(iter(self.copies)))
        while (node := self.queue.next) is not self.queue:
            self.tree.drop(node)
        if self.file is not None:
            self.file.wipe()

    def empty(self) -> None:
        """Frees all pages of host memory; no node may refer to one. Moves that were ordered before stay in `moves`."""
        self._reset()
        if self.file is not None:
            self.file.wipe()

    # ---- the file --------------------------------------------------------------------------------------------------

    def _restore(self, file: PageFile) -> None:
        """Builds nodes from the pages of the file. Pages without a path to a root become free."""
        after: dict[bytes, dict[bytes, tuple[int, Label]]] = {}
        namespaces: dict[bytes, None] = {}
        for i, label in file.labels():
            after.setdefault(label.parent, {})[label.digest] = i, label
            namespaces[label.namespace] = None
        used: set[int] = set()
        for namespace in namespaces:
            (digest,) = prefix_digests(namespace, b"", 0, self.tree.width)
            if digest in after:
                self._restore_tree(self.tree.root(namespace), digest, after, used)
        self.free = [i for i in self.free if i not in used]
        self.unproven = used

    def _restore_tree(
        self, root: Node, digest: bytes, after: dict[bytes, dict[bytes, tuple[int, Label]]], used: set[int]
    ) -> None:
        """Builds the nodes below a root from pages of the file, and adds these pages to `used`. Pages that follow each
        other without a fork become one node. digest: the root's digest. after: for each digest of a prefix, the pages
        that continue this prefix, by their own digests."""
        tree = self.tree
        nodes: list[Node] = []
        stack = [(root, page) for page in after[digest].values()]
        while stack:
            parent, (i, label) = stack.pop()
            ids, pages = [label.ids], [i]
            while len(rest := after.get(label.digest, {})) == 1:
                ((i, label),) = rest.values()
                ids.append(label.ids)
                pages.append(i)
            node = Node(parent, parent.end, b"".join(ids), NO_PAGES, self.queue)
            node.host = pages
            tree.attach(parent, node)
            nodes.append(node)
            used.update(pages)
            stack += [(node, page) for page in rest.values()]
        for node in reversed(nodes):  # children first
            link(node, self.queue)
