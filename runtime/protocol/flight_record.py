"""What an engine has in hand right now, in memory that its server can read after it has died.

Two lanes, as two threads may die of something: the loop, and the one that compiles constraints. Each says what it
works on before it begins. A lane holds the last that was said in it.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Sequence

LOOP, COMPILER = 0, 1
_N_LANES = 2
_MOST = 4095  # requests in a lane; of more, the first
_LANE = 8 * (1 + _MOST)  # bytes: how many there are, then their ids


class FlightRecord:
    """Shared memory. The server makes it, the engine opens its file descriptor."""

    def __init__(self, fd: int) -> None:
        """Maps `fd`, and does not own it."""
        self._map = mmap.mmap(fd, _N_LANES * _LANE)
        self._words = memoryview(self._map).cast("q")

    @staticmethod
    def make() -> int:
        """A file descriptor for a new one. The caller closes it."""
        fd = os.memfd_create("banyan-flight", os.MFD_CLOEXEC)
        os.ftruncate(fd, _N_LANES * _LANE)
        return fd

    def note(self, lane: int, rids: Sequence[int]) -> None:
        """From now on `lane` works on these."""
        words, at, n = self._words, lane * (1 + _MOST), min(len(rids), _MOST)
        words[at] = 0  # who dies in the next line has nothing in hand, rather than half of it
        words[at + 1 : at + 1 + n] = memoryview(array("q", rids[:n]))
        words[at] = n

    def rids(self) -> set[int]:
        """What all lanes work on."""
        found: set[int] = set()
        for lane in range(_N_LANES):
            at = lane * (1 + _MOST)
            found.update(self._words[at + 1 : at + 1 + max(0, min(self._words[at], _MOST))])
        return found

    def close(self) -> None:
        self._words.release()
        self._map.close()
