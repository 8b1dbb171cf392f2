"""What programs say of the tree: this will be needed again, this must stay, this can go.

    handle = cache.handle(ids)              # a place in the tree: the end of a prefix
    handle.expect(steps)                    # it is needed again in about so many steps
    handle.pin(until)                       # it stays as long as anything can be done about it
    handle.prefetch()                       # what of it lies in host memory comes back, before what nobody holds
    handle.release()                        # neither; the policy decides
    handle.drop()                           # nobody will need it: the subtree goes before anything else

Order of eviction: what was dropped; what nobody holds, as the policy says; what is expected, the farthest first; what
is pinned, the soonest to end first. So neither a pin nor an expectation can stop the engine: they give way, last.

What is expected is late sooner or later. A wait that is overdue by d steps is taken to last d more, as one that is to
last d: so who is forgotten loses his place slowly, and to those who are surely nearer.

A handle that waits or is pinned holds the path to its node (`Tree.hold`). Under pressure it gives the path up from its
end, node by node: what it gave up stands in the lanes then, and is evicted page by page.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, NamedTuple

from banyan.radix_cache.node import Node

if TYPE_CHECKING:
    from banyan.radix_cache.cache import Cache


class _HintPosition(NamedTuple):
    """A handle's place in an order; the number tells those apart that are due at once."""

    due: float
    number: int
    handle: KVHint


class KVHint:
    """A prefix, and what its program said of it. Made by `Cache.handle`; `release` or `drop` ends it."""

    __slots__ = ("_holds", "_number", "due", "ids", "namespace", "node", "until")

    def __init__(self, holds: KVHints, number: int, ids: bytes, namespace: bytes) -> None:
        self._holds, self._number = holds, number
        self.ids, self.namespace = ids, namespace
        self.node: Node | None = None  # the end of what it holds; None: it holds nothing
        self.due: float | None = None  # the step at which it is expected
        self.until: float | None = None  # when its pin ends

    @property
    def is_held(self) -> bool:
        return self.node is not None

    def expect(self, steps: float) -> None:
        """The prefix is needed again in about so many of the caller's steps (`Cache.tick`)."""
        self._holds.remove(self)
        self.due = self._holds.step + max(0.0, steps)
        self._holds.add(self)

    def pin(self, until: float) -> None:
        """It stays until the caller's clock says so. It is evicted only where nothing else is left."""
        self._holds.remove(self)
        self.until = until
        self._holds.add(self)

    def release(self) -> None:
        """Nothing more is known of it."""
        self._holds.remove(self)
        self.due = self.until = None

    def drop(self, n_shared: int = 0) -> None:
        """Nobody will need it: let go of it, and let what is below its end die, and the path to it behind its first
        `n_shared` tokens, as far up as nothing else stands below it. What is locked or held lives on."""
        self.release()
        self._holds.cache.bury(self.ids, self.namespace, n_shared)

    def prefetch(self) -> int:
        """Bring it back from host memory as far as there are pages that nobody needs or holds. Returns its tokens on
        the device."""
        return self._holds.cache.prefetch(self.ids, self.namespace)


class KVHints:
    """The handles that hold something, in the order in which they give it up."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.step = 0.0
        self.expected: list[_HintPosition] = []  # by due step
        self.pinned: list[_HintPosition] = []  # by the end of the pin
        self._n_made = 0

    def __len__(self) -> int:
        return len(self.expected) + len(self.pinned)

    def make(self, ids: bytes, namespace: bytes) -> KVHint:
        self._n_made += 1
        return KVHint(self, self._n_made, ids, namespace)

    def tick(self, step: float, now: float) -> None:
        """The step that begins, and the time: pins that have ended hold no more."""
        self.step = step
        while self.pinned and self.pinned[0].due <= now:
            handle = self.pinned[0].handle
            self.remove(handle)
            handle.until = None
            self.add(handle)

    def add(self, handle: KVHint) -> None:
        """Hold what stands of it on the device, if it is expected or pinned."""
        if handle.due is None and handle.until is None:
            return
        if found := self.cache.find(handle.ids, handle.namespace):
            handle.node = found[0]
            insort(self._order(handle), self._place(handle))
            self.cache.tree.hold(found[0])

    def remove(self, handle: KVHint) -> None:
        """Hold it no more."""
        if (node := handle.node) is not None:
            self._forget(handle)
            self.cache.tree.let_go(node)

    def clear(self) -> None:
        """Hold nothing any more."""
        for _, _, handle in [*self.expected, *self.pinned]:
            handle.release()

    def give_up(self) -> str:
        """Let go of the last node of the handle that is needed last. Says why it was held; "" if none is."""
        expected, pinned = self.expected, self.pinned
        if expected:
            first, last = expected[0], expected[-1]
            place = first if self.step - first.due > last.due - self.step else last
        elif pinned:
            place = pinned[0]
        else:
            return ""
        handle = place.handle
        node = handle.node
        assert node is not None
        above = node.parent
        assert above is not None
        if above.parent is None:
            self._forget(handle)
        else:
            handle.node = above
        self.cache.tree.let_go(node, above)
        return "expected" if expected else "pinned"

    def _forget(self, handle: KVHint) -> None:
        order, place = self._order(handle), self._place(handle)
        del order[bisect_left(order, place)]
        handle.node = None

    def _order(self, handle: KVHint) -> list[_HintPosition]:
        return self.expected if handle.until is None else self.pinned

    def _place(self, handle: KVHint) -> _HintPosition:
        due = handle.due if handle.until is None else handle.until
        assert due is not None
        return _HintPosition(due, handle._number, handle)
