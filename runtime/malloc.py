"""Options of glibc's malloc (mallopt(3)), for Banyan's own processes. With another C library, nothing happens."""

from __future__ import annotations

import ctypes
from enum import IntEnum

_libc = ctypes.CDLL(None)
_mallopt, _malloc_trim = getattr(_libc, "mallopt", None), getattr(_libc, "malloc_trim", None)


class MallocOption(IntEnum):
    """What `mallopt` can set. The numbers are those of malloc.h."""

    MXFAST = 1
    """Largest chunk, in bytes, that is kept in a fast bin when it is freed."""
    TRIM_THRESHOLD = -1
    """Free bytes at the end of the heap above which it shrinks."""
    MMAP_THRESHOLD = -3
    """Size from which memory is mapped, and unmapped when it is freed."""
    ARENA_MAX = -8
    """Number of arenas. Each thread keeps to one, and what it frees is reused by threads of the same arena only."""


def mallopt(option: MallocOption, value: int) -> None:
    """Set an option of glibc's malloc in this process; see mallopt(3). With another C library, this does nothing."""
    if _mallopt is not None:
        _mallopt(option, value)


def malloc_trim() -> None:
    """Return the memory that malloc holds but nobody uses to the system. This takes about 0.1 ms per MiB. Meanwhile,
    other threads may have to wait for malloc. With another C library than glibc, this does nothing."""
    if _malloc_trim is not None:
        _malloc_trim(0)
