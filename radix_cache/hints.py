"""Hints of programs about prefixes: which will be needed again, which must be kept, which may be evicted.

    hint = cache.handle(ids)              # a hint on the prefix `ids`
    hint.expect(steps)                    # it is needed again in about `steps` steps
    hint.pin(until)                       # keep it as long as anything else can be evicted
    hint.prefetch()                       # bring it back from host memory
    hint.release()                        # nothing more is known; the policy decides
    hint.drop()                           # nobody needs it: evict the subtree first

Order of eviction: dropped nodes; unused nodes, in the policy's order; expected nodes, starting with those needed last;
pinned nodes, starting with those whose pin ends first. So pins and expectations never block the engine.

If an expected prefix is overdue by d steps, it is assumed to be needed in d more steps. So the longer a forgotten
expectation is overdue, the earlier it is evicted.

A hint that is expected or pinned holds the path to its node (`Tree.hold`). When no other pages can be evicted, it gives
up the path node by node, from its end. The nodes then wait in the eviction queues.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from banyan.radix_cache.node import Node, upward
from banyan.radix_cache.tree import Tree, n_tokens


class _HintPosition(NamedTuple):
    """A hint's place in the sorted list `expected` or `pinned`. due: the step at which the prefix is expected, or the
    time at which the pin ends. number: breaks ties."""

    due: float
    number: int
    hint: KVHint


class KVHint:
    """A prefix, and what its program said about it. Made by `Cache.handle`; `release` or `drop` ends it."""

    __slots__ = ("_hints", "due", "ids", "namespace", "node", "number", "until")

    def __init__(self, hints: KVHints, number: int, ids: bytes, namespace: bytes) -> None:
        self._hints, self.number = hints, number
        self.ids, self.namespace = ids, namespace
        self.node: Node | None = None  # the last node that it holds; None: it holds nothing
        self.due: float | None = None  # the step at which it is expected
        self.until: float | None = None  # the time at which its pin ends

    @property
    def is_held(self) -> bool:
        return self.node is not None

    def expect(self, steps: float) -> None:
        """Marks the prefix as needed again in about `steps` of the caller's steps (`Cache.tick`)."""
        self._hints.remove(self)
        self.due = self._hints.step + max(0.0, steps)
        self._hints.add(self)

    def pin(self, until: float) -> None:
        """Keeps the prefix until the time `until` of the caller's clock. It is evicted only if nothing else is left."""
        self._hints.remove(self)
        self.until = until
        self._hints.add(self)

    def release(self) -> None:
        """Ends the expectation and the pin."""
        self._hints.remove(self)
        self.due = self.until = None

    def drop(self, n_shared: int = 0) -> None:
        """Lets the tree evict this prefix first. Moves all nodes below the prefix to the queue `Tree.dead`, and then
        the nodes of the prefix itself, from the last one upwards. Stops below a node that has other children, and
        before the first `n_shared` tokens. Nodes that are only in host memory are dropped. Nodes that are locked or
        held, and the nodes above them, stay where they are."""
        self.release()
        found = self._hints.find(self, is_on_device=False)
        if found is None:
            return
        node, is_whole = found
        tree, page = self._hints.tree, self._hints.tree.page
        n_kept = -(-n_shared // page) * page
        for below in reversed(tree.subtree(node)[1:] if is_whole else ()):
            if below.start >= n_shared:
                _mark_dead(tree, below)
        while True:
            if node.start < n_kept < node.end:
                tree.split(node, n_kept - node.start)
            parent = node.parent
            if parent is None or node.start < n_shared:
                return
            is_only_child = len(parent.children) == 1
            if not _mark_dead(tree, node) or not is_only_child:
                return
            node = parent

    def prefetch(self) -> int:
        """Brings the prefix back from host memory. Takes only pages that are free or that neither a lease nor a hint
        holds. Returns how many tokens of the prefix are on the device afterwards."""
        tree = self._hints.tree
        root = tree.roots.get(self.namespace)
        if root is None:
            return 0
        node, n = tree.match(root, self.ids, n_tokens(self.ids))
        if node.pages or node is root:
            return n
        n_room = len(tree.pool.free) + tree.n_evictable - tree.n_held
        # the prefix must not evict its own beginning
        n_room -= sum(len(above.pages) for above in upward(node.parent) if not (above.n_locks or above.n_holds))
        assert tree.second_tier is not None
        return tree.second_tier.bring(node, n, n_room)[1]


class KVHints:
    """All hints that hold nodes. `evict` takes pages from nodes that no hint holds. If these have too few pages, it
    makes hints give up nodes."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
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
        """Sets the current step and time. Ends the pins that are over."""
        self.step = step
        while self.pinned and self.pinned[0].due <= now:
            hint = self.pinned[0].hint
            self.remove(hint)
            hint.until = None
            self.add(hint)

    def add(self, hint: KVHint) -> None:
        """Holds the part of a hint's prefix that is on the device, if the hint is expected or pinned."""
        if hint.due is None and hint.until is None:
            return
        if found := self.find(hint):
            hint.node = found[0]
            insort(*self._place(hint))
            self.tree.hold(found[0])

    def remove(self, hint: KVHint) -> None:
        """Ends the hold of a hint."""
        if (node := hint.node) is not None:
            self._forget(hint)
            self.tree.unhold(node)

    def clear(self) -> None:
        """Releases all hints."""
        for _, _, hint in [*self.expected, *self.pinned]:
            hint.release()

    def hold_again(self) -> None:
        """Lets all hints hold what is left of their prefixes, after the tree was rebuilt without holds."""
        hints = {place.hint for place in (*self.expected, *self.pinned)}
        self.expected, self.pinned = [], []
        for hint in hints:
            hint.node = None
            self.add(hint)

    # ---- eviction --------------------------------------------------------------------------------------------------

    def evict(self, n: int) -> int:
        """Frees n pages on the device, from nodes that no hint holds first, then from held nodes. Returns how many
        pages it freed, which is less than n only if all other pages are locked."""
        tree, free = self.tree, self.tree.pool.free
        n_freed = tree.evict(n)
        while n_freed < n:
            n_free = len(free)
            if not (reason := self._give_up()):
                break
            n_dropped = len(free) - n_free  # an open leaf that only the hint needed
            tree.count_evicted(reason, n_dropped)
            n_freed += n_dropped
            n_freed += tree.evict(n - n_freed, reason)
        return n_freed

    def _give_up(self) -> str:
        """Makes one hint give up the last node that it holds. Takes the expected hint that is needed last. If no hint
        is expected, takes the pinned hint whose pin ends first. Returns the kind of this hint, "expected" or "pinned";
        "" if no hint holds a node."""
        expected, pinned = self.expected, self.pinned
        if expected:
            first, last = expected[0], expected[-1]
            hint = (first if self.step - first.due > last.due - self.step else last).hint
        elif pinned:
            hint = pinned[0].hint
        else:
            return ""
        node = hint.node
        assert node is not None
        above = node.parent
        assert above is not None
        if above.parent is None:
            self._forget(hint)
        else:
            hint.node = above
        self.tree.unhold(node, above)
        return "expected" if expected else "pinned"

    def _forget(self, hint: KVHint) -> None:
        order, place = self._place(hint)
        del order[bisect_left(order, place)]
        hint.node = None

    def _place(self, hint: KVHint) -> tuple[list[_HintPosition], _HintPosition]:
        """Returns the sorted list that a hint belongs to, and its place there."""
        order, due = (self.expected, hint.due) if hint.until is None else (self.pinned, hint.until)
        assert due is not None
        return order, _HintPosition(due, hint.number, hint)

    # ---- prefixes --------------------------------------------------------------------------------------------------

    def find(self, hint: KVHint, is_on_device: bool = True) -> tuple[Node, bool] | None:
        """Finds the part of a hint's prefix that is on the device, or with is_on_device=False the part that is stored.
        Returns the node in which this part ends, and whether it is the whole prefix. Splits the node if it has pages
        after the prefix. Returns None if the part has less than a page and is not the whole prefix."""
        tree, page = self.tree, self.tree.page
        root = tree.roots.get(hint.namespace)
        if root is None:
            return None
        n_ids = n_tokens(hint.ids)
        node, n = tree.match(root, hint.ids, n_ids)
        while is_on_device and not node.pages and node.parent:
            node = node.parent
            n = min(n, node.end)
        if n < node.end:
            # A last page that continues the prefix belongs to it; one that differs from it does not.
            n_own = -(-n // page) * page if n == n_ids else n - n % page
            if n_own <= node.start:
                node = node.parent or node
            elif n_own < node.end:
                node = tree.split(node, n_own - node.start)
        return (node, n == n_ids) if node.parent else None


def _mark_dead(tree: Tree, node: Node) -> bool:
    """Moves a node to the queue `Tree.dead` if the node is neither locked nor held and all its children are in
    `Tree.dead`. A node that is only in host memory is dropped instead. Returns False if the node stays where it is."""
    if node.n_locks or node.n_holds or any(child.queue is not tree.dead for child in node.children.values()):
        return False
    if node.pages:
        tree.mark_dead(node)
    else:
        tree.drop(node)
    return True
