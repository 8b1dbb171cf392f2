"""Feeds: every reader gets every item, and none waits forever."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.execution.feed import Feed


def test_each_reader_reads_from_the_start() -> None:
    feed = Feed[int]()
    feed.put(1)
    first = iter(feed)
    assert next(first) == 1
    feed.put(2)
    feed.close()
    assert list(first) == [2]
    assert list(feed) == list(feed) == [1, 2]


def test_items_are_read_before_the_error() -> None:
    feed = Feed[int]()
    feed.put(1)
    feed.close(OSError("over"))
    feed.close()  # only the first close counts
    reader = iter(feed)
    assert next(reader) == 1
    with pytest.raises(OSError, match="over"):
        next(reader)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(), max_size=50), st.integers(1, 4))
def test_concurrent_readers_get_all_items_in_order(items: list[int], n_readers: int) -> None:
    feed = Feed[int]()
    outputs: list[list[int]] = [[] for _ in range(2 * n_readers)]

    async def follow(out: list[int]) -> None:
        async for item in feed:
            out.append(item)

    threads = [threading.Thread(target=lambda out=out: out.extend(feed)) for out in outputs[:n_readers]]
    threads += [threading.Thread(target=lambda out=out: asyncio.run(follow(out))) for out in outputs[n_readers:]]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for item in items:
            feed.put(item)
        feed.close()
        for thread in threads:
            thread.join(20)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)
    assert outputs == [items] * len(outputs)


def test_put_after_a_readers_loop_closed() -> None:
    feed = Feed[int]()

    async def give_up() -> None:
        async with asyncio.timeout(0.01):
            async for _ in feed:
                pass

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    feed.put(1)
    feed.close()
    assert list(feed) == [1]
