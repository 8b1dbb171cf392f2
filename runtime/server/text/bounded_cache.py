"""A cache with a limit on its memory. All texts of clients that the server keeps after their programs have ended are in
such caches."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """A cache of values with a total size of at most `max_size`; the least recently used are evicted. Thread-safe.

    The unit of all sizes is the one in which the callers of `put` state them: bytes, or characters of text.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0

    @property
    def kept(self) -> tuple[int, int]:
        """(size of all values, largest size allowed)"""
        return self.size, self._max_size

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            if (found := self._values.get(key)) is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Keep a value of this size. A value larger than `max_size` is not kept."""
        if size > self._max_size:
            return
        with self._lock:
            self.size += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, size
            while self.size > self._max_size:
                self.size -= self._values.popitem(last=False)[1][1]

    def drop(self, is_dropped: Callable[[Any], bool]) -> None:
        """Forget the values whose keys satisfy `is_dropped`."""
        with self._lock:
            for key in [key for key in self._values if is_dropped(key)]:
                self.size -= self._values.pop(key)[1]
            if not self._values:
                self._values.clear()  # frees the hash table, which never shrinks by itself
