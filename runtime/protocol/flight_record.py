"""The requests an engine is working on, in shared memory that the server can read after the engine has died.

The memory has a row for the engine loop, and one for the threads that compile constraints. The loop and the threads
write the ids of requests to their rows before they start to work on these requests.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Sequence

LOOP, COMPILER = 0, 1
_N_ROWS = 2
_MAX_IDS = 4095  # most request ids in a row; further ones are left out
_ROW_BYTES = 8 * (1 + _MAX_IDS)  # their number, then the ids, as int64


class FlightRecord:
    """Shared memory that holds the ids of the requests an engine is working on. The server creates it, and the engine
    opens its file descriptor."""

    def __init__(self, fd: int) -> None:
        """Map the memory of `fd`. The caller must close `fd`."""
        self._map = mmap.mmap(fd, _N_ROWS * _ROW_BYTES)
        self._words = memoryview(self._map).cast("q")

    @staticmethod
    def make() -> int:
        """Create the memory of a new record. Returns its file descriptor, which the caller must close."""
        fd = os.memfd_create("banyan-flight", os.MFD_CLOEXEC)
        os.ftruncate(fd, _N_ROWS * _ROW_BYTES)
        return fd

    def note(self, row: int, rids: Sequence[int]) -> None:
        """Write the ids of the requests that `row` works on from now on, in place of the previous ones. row: LOOP for
        the engine's loop, COMPILER for the threads that compile constraints. At most one thread may write to a row at a
        time."""
        words, at, n = self._words, row * (1 + _MAX_IDS), min(len(rids), _MAX_IDS)
        words[at] = 0  # a crash during the next line leaves an empty row, not a half-written one
        words[at + 1 : at + 1 + n] = memoryview(array("q", rids[:n]))
        words[at] = n

    def rids(self) -> set[int]:
        """The ids of the requests in all rows."""
        found: set[int] = set()
        for at in range(0, _N_ROWS * (1 + _MAX_IDS), 1 + _MAX_IDS):
            found.update(self._words[at + 1 : at + 1 + max(0, min(self._words[at], _MAX_IDS))])
        return found

    def close(self) -> None:
        self._words.release()
        self._map.close()
