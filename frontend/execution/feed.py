"""A growing list that any number of readers follow, on threads and on event loops, each from its start."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Generic, TypeVar

from banyan.runtime.waiting import until

T = TypeVar("T")


class Notice:
    """Whether somebody was told of a failure: one that nobody hears of is logged."""

    __slots__ = ("is_given",)

    def __init__(self) -> None:
        self.is_given = False


class Feed(Generic[T]):
    """Append with `put`, end with `close`. Reading waits for what is still to come, and ends where the feed does.

    No lock: a writer appends and *then* looks for waiters, a reader registers and *then* looks for items, so that one
    of the two always sees the other. Any number of writers, too.
    """

    __slots__ = ("_waiters", "error", "is_closed", "items", "notice")

    def __init__(self, notice: Notice | None = None) -> None:
        """notice: to be given when a reader hears of the error that the feed ended with."""
        self.items: list[T] = []
        self.notice = notice
        self.is_closed = False
        self.error: BaseException | None = None
        self._waiters: list[Callable[[], None]] = []

    def put(self, item: T) -> None:
        self.items.append(item)
        if self._waiters:
            self._wake()

    def extend(self, items: Iterable[T]) -> None:
        self.items += items
        if self._waiters:
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """No more items will come. `error` is raised to each reader who gets here. The first call counts."""
        if not self.is_closed:
            self.error = error
            self.is_closed = True
            self._wake()

    def _wake(self) -> None:
        for _ in range(len(self._waiters)):
            with contextlib.suppress(IndexError):  # another writer woke it
                self._waiters.pop()()  # one by one: swapping the list could lose who comes in between

    def _has(self, i: int) -> bool | None:
        """Whether item `i` is there; None if that is not known yet. Raises the error the feed ended with."""
        is_closed = self.is_closed  # looked at first: what was put before the end is read before the end
        if i < len(self.items):
            return True
        if is_closed and self.error is not None:
            if self.notice is not None:
                self.notice.is_given = True
            raise self.error
        return False if is_closed else None

    def __iter__(self) -> Iterator[T]:
        i = 0
        while True:
            while (known := self._has(i)) is None:
                event = threading.Event()
                self._waiters.append(event.set)
                if self._has(i) is None:
                    until(event)
            if not known:
                return
            yield self.items[i]
            i += 1

    async def __aiter__(self) -> AsyncIterator[T]:
        import asyncio  # here: it costs more than all of `import banyan`, and most programs never need it

        loop = asyncio.get_running_loop()
        i = 0
        while True:
            while (known := self._has(i)) is None:
                event = asyncio.Event()

                def wake(event: asyncio.Event = event) -> None:
                    with contextlib.suppress(RuntimeError):  # the reader's loop is closed: it reads no more
                        loop.call_soon_threadsafe(event.set)

                self._waiters.append(wake)
                if self._has(i) is None:
                    await event.wait()
            if not known:
                return
            yield self.items[i]
            i += 1
