"""A growing list that any number of readers follow from its start, on threads and on event loops."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Generic, TypeVar

from banyan.execution.async_body import refuse_to_block
from banyan.runtime.errors import RuntimeLost
from banyan.runtime.waiting import until

T = TypeVar("T")

_process = os.getpid()


def _note_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


class ErrorFlag:
    """Whether the user's code has received the error of a program. If it never does, the error is logged."""

    __slots__ = ("is_seen",)

    def __init__(self) -> None:
        self.is_seen = False


class Feed(Generic[T]):
    """A list: `put` appends an item, and `close` ends the feed. Iterating waits for new items until the feed is closed.

    A feed has no lock. A writer appends an item and *then* looks for waiting readers; a reader registers as waiting and
    *then* looks for items. So at least one of the two sees the other, with any number of writers.
    """

    __slots__ = ("_process", "_waiters", "error", "error_flag", "is_closed", "items")

    def __init__(self, error_flag: ErrorFlag | None = None) -> None:
        """error_flag: set when a reader receives the error that closed the feed."""
        self.items: list[T] = []
        self.error_flag = error_flag
        self.is_closed = False
        self.error: BaseException | None = None
        self._waiters: list[Callable[[], None]] = []
        self._process = _process

    def put(self, item: T) -> None:
        """Append an item."""
        self.items.append(item)
        if self._waiters:
            self._wake()

    def extend(self, items: Iterable[T]) -> None:
        """Append items."""
        self.items += items
        if self._waiters:
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """End the feed. Readers that reach the end get `error`. Only the first call has an effect."""
        if not self.is_closed:
            self.error = error
            self.is_closed = True
            self._wake()

    def _wake(self) -> None:
        for _ in range(len(self._waiters)):
            with contextlib.suppress(IndexError):  # another writer took it
                self._waiters.pop()()  # one by one: swapping the list could lose a reader that registers meanwhile

    def _has(self, i: int) -> bool | None:
        """Whether item `i` exists; None if it may still come. Raises the error that closed the feed. RuntimeLost: this
        process is a fork of the one that writes the items."""
        is_closed = self.is_closed  # read first: items that were put before the end are read before the end
        if i < len(self.items):
            return True
        if is_closed and self.error is not None:
            if self.error_flag is not None:
                self.error_flag.is_seen = True
            raise self.error
        if not is_closed:
            RuntimeLost.unless_in(self._process, "the program of this stream")
        return False if is_closed else None

    def __iter__(self) -> Iterator[T]:
        i = 0
        while True:
            while (has_item := self._has(i)) is None:
                refuse_to_block("what comes next")
                event = threading.Event()
                self._waiters.append(event.set)
                if self._has(i) is None:
                    until(event)
            if not has_item:
                return
            yield self.items[i]
            i += 1

    async def __aiter__(self) -> AsyncIterator[T]:
        import asyncio  # lazily: it takes longer to import than the rest of the package

        loop = asyncio.get_running_loop()
        i = 0
        while True:
            while (has_item := self._has(i)) is None:
                event = asyncio.Event()

                def wake(event: asyncio.Event = event) -> None:
                    with contextlib.suppress(RuntimeError):  # the reader's loop is closed
                        loop.call_soon_threadsafe(event.set)

                self._waiters.append(wake)
                if self._has(i) is None:
                    await event.wait()
            if not has_item:
                return
            yield self.items[i]
            i += 1
