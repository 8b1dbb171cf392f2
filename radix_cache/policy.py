"""Eviction policies: which of the unused nodes is evicted first.

A policy gives each node a level when the node is stored, and again each time a lease that matched the node closes.
Nodes of lower levels are evicted first; within a level, the least recently used first. The tree keeps a node's level at
least as high as the levels of the nodes below it, whatever the policy says. Dropped nodes are evicted before all
levels, and nodes that programs expect or have pinned (hints.py) after all levels.
"""

from __future__ import annotations

from typing import ClassVar


class Lru:
    """Least recently used first; the base class of all policies.

    has_levels  whether `used` can change a level; if not, `used` is never called
    share       the largest share of all evictable pages that may be in level 1; if level 1 has more, its least recently
                used nodes go to level 0
    """

    has_levels: ClassVar[bool] = False
    share: ClassVar[float] = 1.0

    def __init__(self, n_pages: int) -> None:
        """n_pages: pages of the pool."""

    def stored(self, n_stored: int, priority: int) -> int:
        """Returns the eviction level of a node that is new, comes back from host memory, or was dropped and is used
        again. n_stored: how many pages the tree has stored so far. priority: the priority of the lease that stores the
        node; 0 if there is none."""
        return 0

    def used(self, level: int, priority: int) -> int:
        """Returns the new eviction level of a node that a lease matched."""
        return level


class Slru(Lru):
    """Segmented LRU: nodes that were used again are evicted after the others. They get up to four fifths of the pages.

    Karedla, Love, Wherry: Caching strategies to improve disk system performance, 1994.
    """

    has_levels: ClassVar[bool] = True
    share: ClassVar[float] = 0.8

    def used(self, level: int, priority: int) -> int:
        return 1


class Lfu(Lru):
    """Least frequently used first. Counts stop at 255, so that newer nodes can catch up."""

    has_levels: ClassVar[bool] = True

    def used(self, level: int, priority: int) -> int:
        return min(level + 1, 255)


class Fifo(Lru):
    """First stored, first evicted. Every n_pages / 64 stored pages, a new level begins; within a level, the least
    recently used node is evicted first. A node with children counts as stored with its newest descendant."""

    def __init__(self, n_pages: int) -> None:
        self._n_epoch = max(1, n_pages // 64)

    def stored(self, n_stored: int, priority: int) -> int:
        return n_stored // self._n_epoch


class Priority(Lru):
    """Lowest priority first; a node has the highest priority of all leases that used it."""

    has_levels: ClassVar[bool] = True

    def stored(self, n_stored: int, priority: int) -> int:
        return priority

    def used(self, level: int, priority: int) -> int:
        return max(level, priority)


POLICIES: dict[str, type[Lru]] = {"lru": Lru, "slru": Slru, "lfu": Lfu, "fifo": Fifo, "priority": Priority}
