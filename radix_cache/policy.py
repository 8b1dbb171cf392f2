"""Which of the nodes that nobody needs for sure goes first.

A policy gives each node a level: when it is stored, and each time a lease that found it lets go. Lower levels go first;
within one, the longest unused. The tree sees to it that no node's level is below that of a node under it, whatever a
policy says, so a policy is a few lines of arithmetic and can break nothing.

What has been dropped stands below every level, and what programs wait for or have pinned above: see handles.py.
"""

from __future__ import annotations

from typing import ClassVar, Protocol


class Policy(Protocol):
    """has_levels: whether `used` ever changes anything; where not, nobody asks it.

    share: the most of all that could be evicted that may stand in the highest level; what is too much, the longest
    unused of it, goes to the level below (to 0, if it has two).
    """

    has_levels: ClassVar[bool]
    share: ClassVar[float]

    def stored(self, n_stored: int, priority: int) -> int:
        """The level of a new node. n_stored: pages that were stored before it, ever. priority: its lease's."""

    def used(self, level: int, priority: int) -> int:
        """The level of a node that was found and used, and had `level` before."""


class Lru:
    """The longest unused first."""

    has_levels: ClassVar[bool] = False
    share: ClassVar[float] = 1.0

    def __init__(self, n_pages: int) -> None:
        pass

    def stored(self, n_stored: int, priority: int) -> int:
        return 0

    def used(self, level: int, priority: int) -> int:
        return level


class Slru(Lru):
    """Segmented LRU: what was used again is protected from what was not, as long as it is not more than four fifths.

    Karedla, Love, Wherry: Caching strategies to improve disk system performance, 1994.
    """

    has_levels: ClassVar[bool] = True
    share: ClassVar[float] = 0.8

    def used(self, level: int, priority: int) -> int:
        return 1


class Lfu(Lru):
    """The least often used first. Counts end at 255, so that what was popular once can be caught up with."""

    has_levels: ClassVar[bool] = True

    def used(self, level: int, priority: int) -> int:
        return min(level + 1, 255)


class Fifo(Lru):
    """The longest stored first, whatever was used since; exact to a sixty-fourth of the pool. A node that is gone on
    from counts as stored with what came last below it."""

    def __init__(self, n_pages: int) -> None:
        self._n_epoch = max(1, n_pages // 64)

    def stored(self, n_stored: int, priority: int) -> int:
        return n_stored // self._n_epoch


class Priority(Lru):
    """The highest priority of all leases that used it."""

    has_levels: ClassVar[bool] = True

    def stored(self, n_stored: int, priority: int) -> int:
        return priority

    def used(self, level: int, priority: int) -> int:
        return max(level, priority)


POLICIES: dict[str, type[Lru]] = {"lru": Lru, "slru": Slru, "lfu": Lfu, "fifo": Fifo, "priority": Priority}
