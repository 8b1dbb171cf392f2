"""What comes to the device and what leaves it, for a router that wants to know who has which prefix.

    events = cache.listen()
    said = events.since(-1)                # all that is there now, as events; said.next is where to go on
    said = events.since(said.next)         # what has happened since

A page is named by a digest of the whole prefix that it ends (`pagefile.prefix_digests`), the same on all machines. Only
whole pages are told of. What has happened is kept up to a bound. Who comes back too late for it, or with a number of
another process, gets all that is there now (`is_all`), and forgets what it knew.

Nothing is kept, and nothing costs time, before somebody listens. Then a store costs the hashes of its prefix and pages:
140 us for 4,096 new tokens, which alone are stored in 20 (one core of an AMD EPYC, busy).
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import Literal, NamedTuple

from banyan.radix_cache.node import Node, Root
from banyan.radix_cache.pagefile import N_NAMESPACE, prefix_digests
from banyan.radix_cache.tree import Tree

N_KEPT = 1 << 16
"""Pages whose coming and going is remembered."""


class Event(NamedTuple):
    """parent: the digest of the prefix before the first page. digests: one for each page, in order. In hexadecimal."""

    kind: Literal["stored", "removed"]
    parent: str
    digests: tuple[str, ...]


class EventPage(NamedTuple):
    """next: what to ask for next time. is_all: the events are not what happened, but what is there."""

    next: int
    is_all: bool
    events: list[Event]


class CacheEvents:
    """The last things that happened to a tree. Implements `tree.Log`."""

    def __init__(self, tree: Tree, first: int = 0, n_kept: int = N_KEPT) -> None:
        """first: the number of the first event. Of two processes, the later one's is greater."""
        self._tree = tree
        self._n_kept = n_kept
        self._kept: deque[Event] = deque()
        self._n_digests = 0  # in them
        self._next = first

    def stored(self, node: Node, first: int) -> None:
        """See tree.Log."""
        self._note("stored", node, first // self._tree.width)

    def removed(self, node: Node, first: int) -> None:
        """See tree.Log."""
        if node.pages:
            self._note("removed", node, -(-first // self._tree.width))

    def _note(self, kind: Literal["stored", "removed"], node: Node, first: int) -> None:
        """Of a node, the whole pages from the `first` on."""
        width = self._tree.width
        if len(node.key) // width <= first:
            return
        start = node.start * 4 // width + first
        parent, *digests = prefix_digests(_key(node), node.path, start, width)
        self._kept.append(Event(kind, parent.hex(), tuple(digest.hex() for digest in digests)))
        self._next += 1
        self._n_digests += len(digests)
        while self._n_digests > self._n_kept:
            self._n_digests -= len(self._kept.popleft().digests)

    def since(self, number: int) -> EventPage:
        """What has happened since `since` gave this number; -1: all that is there."""
        n_new = self._next - number
        if number >= 0 and 0 <= n_new <= len(self._kept):
            return EventPage(self._next, False, list(self._kept)[len(self._kept) - n_new :])
        return EventPage(self._next, True, self._all())

    def forget(self) -> None:
        """What was said does not hold: everybody gets all that is there."""
        self._kept.clear()
        self._n_digests = 0
        self._next += 1

    def _all(self) -> list[Event]:
        """What is on the device: parents before what is below them."""
        events, width = [], self._tree.width
        for namespace, root in self._tree.roots.items():
            state = blake2b(digest_size=16, key=_short(namespace))
            stack = [(child, state) for child in root.children.values() if child.pages]
            while stack:
                node, state = stack.pop()
                state = state.copy()
                parent, digests = state.hexdigest(), []
                for o in range(0, len(node.key) - width + 1, width):
                    state.update(node.key[o : o + width])
                    digests.append(state.hexdigest())
                if digests:
                    events.append(Event("stored", parent, tuple(digests)))
                stack += [(child, state) for child in node.children.values() if child.pages]
        return events


def _key(node: Node) -> bytes:
    root: Node = node
    while root.parent:
        root = root.parent
    assert isinstance(root, Root)
    return _short(root.namespace)


def _short(namespace: bytes) -> bytes:
    """A namespace as a key that a digest takes."""
    return namespace if len(namespace) <= N_NAMESPACE else blake2b(namespace, digest_size=N_NAMESPACE).digest()
