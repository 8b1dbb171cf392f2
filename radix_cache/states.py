"""Slots of recurrent state. Nodes of the tree refer to them, as they refer to pages.

Layers such as linear attention keep one state for a whole text, not KV for each token. So a prefix can only be
continued from a position whose state was stored. A node has the states of some of its positions (`Node.states`): a
match ends at the deepest of them, and the tokens after it are computed again, even if the tree has their pages.

A slot has one owner: the free list, a lease (its working slot, or a state that it has not published yet), or a node.
The state of a node is copied to the working slot of each lease that continues from it. If no slot is free, a state of
the tree is evicted: first states of dropped branches, then the least recently used ones, and states that hints hold
last.
"""

from __future__ import annotations

from banyan.radix_cache.node import DEAD, NO_STATES, Node


class NodeSlots:
    """Numbered slots. A node has some of them (`Node.states`), each at the position where the slot's text ends."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self.free = list(range(n_slots - 1, -1, -1))
        self.nodes: dict[int, Node] = {}  # slot -> its node

    def cut(self, node: Node, end: int) -> None:
        """Removes the slots of a node at positions after `end`."""
        for position in [position for position in node.states if position > end]:
            self._remove(node, position)

    def split(self, upper: Node, lower: Node) -> None:
        """Moves the slots at positions in `upper` from `lower` to `upper`, which was split off from `lower`."""
        own = lower.states
        upper.states = {p: slot for p, slot in own.items() if p <= upper.end} or NO_STATES
        lower.states = {p: slot for p, slot in own.items() if p > upper.end} or NO_STATES
        for slot in upper.states.values():
            self.nodes[slot] = upper

    def _remove(self, node: Node, position: int) -> None:
        slot = node.states.pop(position)
        del self.nodes[slot]
        self.free.append(slot)


class StateSlots(NodeSlots):
    """All slots of recurrent state. `nodes` is ordered by last use, the least recently used slot first."""

    def __init__(self, n_slots: int) -> None:
        super().__init__(n_slots)
        self._copies: list[tuple[int, int]] = []

    def take_copies(self) -> list[tuple[int, int]]:
        """The slots to copy, in this order, before the next forward pass: (source, destination). Source -1: the state
        before the first token. Returns each copy once."""
        copies, self._copies = self._copies, []
        return copies

    def claim(self, may_evict: bool = True) -> int:
        """Takes a slot, by eviction if needed and allowed. Returns -1 if none is available."""
        if not self.free and self.nodes and may_evict:
            slot = min(self.nodes, key=self._order)
            node = self.nodes[slot]
            self._remove(node, next(position for position, own in node.states.items() if own == slot))
        return self.free.pop() if self.free else -1

    def claim_copy(self, source: int) -> int:
        """Claims a slot, orders a copy of the state in slot `source` to it, and returns the claimed slot. source -1:
        the state before the first token. At least one slot must be free or belong to a node."""
        slot = self.claim()
        assert slot >= 0, "more leases compute than there are slots"
        self._copies.append((source, slot))
        return slot

    def give(self, slot: int) -> None:
        """Frees a slot that belonged to a lease."""
        self.free.append(slot)

    def _order(self, slot: int) -> tuple[bool, bool]:
        node = self.nodes[slot]
        return node.n_holds > 0, node.queue.level != DEAD or node.n_locks > 0

    def find(self, node: Node, n: int) -> tuple[Node, int, int]:
        """Finds the last state on the path to the n-th token, which is in `node`. Returns its node, position and slot;
        if there is no state, (the root, 0, -1)."""
        at = node
        while at.parent:
            if position := max((p for p in at.states if p <= n), default=0):
                slot = at.states[position]
                return at, position, slot
            at = at.parent
        return at, 0, -1

    def touch(self, slot: int) -> None:
        """Makes a state of the tree the most recently used one."""
        self.nodes[slot] = self.nodes.pop(slot)

    def store(self, node: Node, position: int, slot: int) -> None:
        """Gives the state after the first `position` tokens to the node in which they end. If the node already has this
        state, frees the slot."""
        if position in node.states:
            self.touch(node.states[position])
            self.give(slot)
            return
        if not node.states:
            node.states = {}
        node.states[position] = slot
        self.nodes[slot] = node

    def reset(self, kept: set[int]) -> None:
        """Frees all slots except `kept`, which belong to leases. No node may have a state."""
        self.nodes.clear()
        self.free = [slot for slot in range(self.n_slots) if slot not in kept]
