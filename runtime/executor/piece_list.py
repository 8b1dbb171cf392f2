"""A list that is cheap to copy, for the pieces of a prompt and of the prompts forked from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar, overload

CHUNK = 256

T = TypeVar("T")


class PieceList(Generic[T]):
    """A list in chunks of CHUNK items. Copies share the full chunks, which never change. So a copy takes len / CHUNK
    steps, and the garbage collector, which traverses every new container, finds no long list."""

    __slots__ = ("_full", "_last")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._full: list[list[T]] = []
        self._last: list[T] = []  # fewer than CHUNK items
        for item in items:
            self.append(item)

    def copy(self) -> PieceList[T]:
        copied: PieceList[T] = PieceList.__new__(PieceList)
        copied._full, copied._last = self._full.copy(), self._last.copy()
        return copied

    def append(self, item: T) -> None:
        self._last.append(item)
        if len(self._last) == CHUNK:
            self._full.append(self._last)
            self._last = []

    def pop(self) -> T:
        """Remove the last item and return it."""
        if not self._last:
            self._last = self._full.pop().copy()
        return self._last.pop()

    def __len__(self) -> int:
        return len(self._full) * CHUNK + len(self._last)

    def __iter__(self) -> Iterator[T]:
        return chain(chain.from_iterable(self._full), self._last)

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> list[T]: ...

    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, int):
            k = range(len(self))[at]
            return (self._full[k // CHUNK] if k // CHUNK < len(self._full) else self._last)[k % CHUNK]
        start, stop, _ = at.indices(len(self))
        first, end = start // CHUNK, -(-stop // CHUNK)
        chunks = self._full[first:end] + ([self._last] if end > len(self._full) else [])
        return list(chain.from_iterable(chunks))[start - first * CHUNK : max(start, stop) - first * CHUNK]
