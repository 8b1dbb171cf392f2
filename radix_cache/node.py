"""The parts of the radix tree: nodes, the roots above them, and the queues in which they wait for eviction."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

NO_CHILDREN: dict[bytes, Node] = {}  # shared by all leaves; never written to
NO_ORDER: list[bytes] = []
NO_PAGES: list[int] = []
NO_STATES: dict[int, int] = {}

DEAD = -(2.0**64)
"""The eviction level of dropped nodes, which is below all levels that a policy gives."""
HOST = -inf
"""The eviction level of nodes that are only in host memory. They wait in their own queue."""


class Node:
    """A run of tokens, and the pages that hold their keys and values.

    pages    on the device; empty if the node is only in host memory
    host     pages in host memory; empty if there is no copy
    n_locks  leases on the node or on a node below it
    n_holds  hints on the node or on a node below it
    states   slots of recurrent states, by the number of tokens before each (states.py); or pages of windowed layers, by
             the position after each page (windows.py)
    queue    where the node waits for eviction, or will wait once it is neither locked nor held
    """

    __slots__ = ("children", "host", "key", "n_holds", "n_locks", "next", "order", "pages", "parent", "prev", "queue",
                 "start", "states")  # fmt: skip

    parent: Node | None  # None: a root
    prev: Node  # neighbours in the queue, if the node waits there
    next: Node

    def __init__(self, parent: Node | None, start: int, key: bytes, pages: list[int], queue: EvictionQueue) -> None:
        self.parent = parent
        self.start = start  # position of its first token
        self.key = key  # token ids, int32 little-endian
        self.pages = pages
        self.host = NO_PAGES
        self.children = NO_CHILDREN  # by the first page of their keys
        self.order = NO_ORDER  # the same keys, sorted
        self.queue = queue
        self.states = NO_STATES
        self.n_locks = self.n_holds = 0

    @property
    def end(self) -> int:
        """The position after the node's last token."""
        return self.start + len(self.key) // 4

    @property
    def path(self) -> bytes:
        """All token ids from the root to the end of the node."""
        return b"".join([node.key for node in upward(self)][::-1])


class EvictionQueue(Node):
    """The nodes of one level that are neither locked nor held, from the oldest (least recently used) to the youngest. A
    circular list that starts and ends with this object.

    Queues with lower levels are evicted first. reason: the name under which evictions are counted. is_open: whether the
    queue is in the tree's list. An empty queue leaves the list, and must be opened again before a node is added.
    """

    __slots__ = ("is_open", "level", "n_pages", "reason")

    def __init__(self, level: float, reason: str, is_open: bool = False) -> None:
        super().__init__(None, 0, b"", NO_PAGES, self)
        self.prev = self.next = self
        self.level = level
        self.reason = reason
        self.is_open = is_open
        self.n_pages = 0  # on the device, of the nodes in the queue

    def __iter__(self) -> Iterator[Node]:
        node: Node = self
        while (node := node.next) is not self:
            yield node


class Root(Node):
    """The empty prefix of one namespace. It can be locked, but is never in a queue. It is removed when it has neither
    children nor locks."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: bytes, queue: EvictionQueue) -> None:
        super().__init__(None, 0, b"", NO_PAGES, queue)
        self.namespace = namespace


def namespace_of(node: Node) -> bytes:
    """The namespace of the tree that a node is in."""
    *_, root = upward(node)
    assert isinstance(root, Root)
    return root.namespace


def upward(node: Node | None) -> Iterator[Node]:
    """The node and its ancestors, the root last."""
    while node:
        yield node
        node = node.parent


def link(node: Node, queue: EvictionQueue) -> None:
    """Adds a node to the end of a queue, as its youngest (most recently used) node."""
    youngest = queue.prev
    node.queue, node.prev, node.next = queue, youngest, queue
    youngest.next = queue.prev = node
    queue.n_pages += len(node.pages)


def unlink(node: Node) -> None:
    """Removes a node from its queue."""
    before, behind = node.prev, node.next
    before.next, behind.prev = behind, before
    node.queue.n_pages -= len(node.pages)
