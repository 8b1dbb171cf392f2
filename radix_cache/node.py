"""What the tree is made of: nodes, the roots above them, and the lanes in which they wait to be evicted."""

from __future__ import annotations

from math import inf

import numpy as np

NO_CHILDREN: dict[bytes, Node] = {}  # of every leaf; never written to
NO_ORDER: list[bytes] = []
NO_PAGES: list[int] = []

DEAD = -(2.0**64)
"""A level below all that a policy gives."""
HOST = -inf
"""The level of what lies in host memory alone, and waits in a lane of its own."""


class Node:
    """A run of tokens, and the pages that hold their keys and values.

    pages: on the device; empty where it lies in host memory alone. host: its pages there; empty where there is no copy.
    n_locks: leases that hold it or something below it. n_holds: handles that do.
    lane: where it stands, or will stand, while it is neither locked nor held.
    """

    __slots__ = ("children", "host", "key", "lane", "n_holds", "n_locks", "next", "order", "pages", "parent", "prev",
                 "start")  # fmt: skip

    parent: Node | None  # None: a root
    prev: Node  # in its lane, if it stands there
    next: Node

    def __init__(self, parent: Node | None, start: int, key: bytes, pages: list[int], lane: EvictionQueue) -> None:
        self.parent = parent
        self.start = start  # of its first token, counted from the root
        self.key = key
        self.pages = pages
        self.host = NO_PAGES
        self.children = NO_CHILDREN  # by the first page of their keys
        self.order = NO_ORDER  # the same keys, sorted
        self.lane = lane
        self.n_locks = self.n_holds = 0

    @property
    def end(self) -> int:
        return self.start + len(self.key) // 4

    @property
    def path(self) -> bytes:
        """All ids from the root to its end."""
        parts, at = [self.key], self.parent
        while at:
            parts.append(at.key)
            at = at.parent
        return b"".join(reversed(parts))


class EvictionQueue(Node):
    """Nodes of one level, neither locked nor held, longest unused first: a circle that this object closes.

    Of two lanes the lower level is evicted first. reason: what eviction from here is counted as.
    is_open: whether a node may be put in now; a lane that has run empty leaves the tree's list, and is put back first.
    """

    __slots__ = ("is_open", "level", "n_pages", "reason")

    def __init__(self, level: float, reason: str) -> None:
        super().__init__(None, 0, b"", NO_PAGES, self)
        self.prev = self.next = self
        self.level = level
        self.reason = reason
        self.n_pages = 0  # on the device, of the nodes that stand here
        self.is_open = False


class Root(Node):
    """The empty prefix of one namespace. Locked like a node, but in no lane: it goes with its last child and lock."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: bytes, lane: EvictionQueue) -> None:
        super().__init__(None, 0, b"", NO_PAGES, lane)
        self.namespace = namespace


def link(node: Node, lane: EvictionQueue) -> None:
    """Make a node the youngest of a lane."""
    youngest = lane.prev
    node.lane, node.prev, node.next = lane, youngest, lane
    youngest.next = lane.prev = node
    lane.n_pages += len(node.pages)


def unlink(node: Node) -> None:
    """Take a node out of its lane."""
    before, behind = node.prev, node.next
    before.next, behind.prev = behind, before
    node.lane.n_pages -= len(node.pages)


def n_common(ids: bytes, start: int, key: bytes) -> int:
    """How many tokens `key` shares with `ids` from the byte `start` on."""
    n = min(len(ids) - start, len(key))
    if n <= 256:  # two integers and their lowest different bit: for short runs faster than an array
        differing = int.from_bytes(ids[start : start + n], "little") ^ int.from_bytes(key[:n], "little")
        return ((differing & -differing).bit_length() - 1) // 32 if differing else n // 4
    differs = np.frombuffer(ids, np.int32, n // 4, start) != np.frombuffer(key, np.int32, n // 4)
    i = int(differs.argmax())
    return i if differs[i] else n // 4
