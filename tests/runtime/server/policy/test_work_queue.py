"""The queue of clients' work: turns, shares of time, and what waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from banyan.runtime.server.policy.work_queue import MESSAGE, QUANTUM, SLICE, QueuedWork, WorkQueue
from banyan.runtime.server.telemetry.loop_times import LoopTimes

STEP = QUANTUM / 10


class Loop:
    """A queue that counts its work. A message is its number of steps. seconds: client -> the duration of its steps."""

    def __init__(self, max_bytes: int = 1 << 20, **seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds
        self.done: list[bytes] = []  # the client of each step
        self.times: Any = LoopTimes()
        self.times.clock = lambda: self.now
        self.queue = WorkQueue(self._begin, self.times, max_bytes)

    def _begin(self, client: bytes, data: bytes) -> QueuedWork:
        return QueuedWork("message", self._steps(client, int(data)))

    def _steps(self, client: bytes, n: int) -> Iterator[None]:
        for _ in range(n):
            self.now += self.seconds[client.decode()]
            self.done.append(client)
            yield

    def run(self) -> None:
        while self.queue:
            self.queue.run()


def test_clients_get_equal_shares_of_time() -> None:
    loop = Loop(slow=5 * STEP, fast=STEP)
    loop.queue.add(b"slow", b"1000")
    for _ in range(1000):
        loop.queue.add(b"fast", b"1")
    while len(loop.done) < 600:
        loop.queue.run()
    n_slow = loop.done.count(b"slow")
    assert n_slow * 5 == pytest.approx(len(loop.done) - n_slow, rel=0.1)


def test_long_step_is_paid_for_in_later_rounds() -> None:
    loop = Loop(rude=20 * QUANTUM, kind=STEP)
    loop.queue.add(b"rude", b"2")
    loop.queue.add(b"kind", b"1000")
    loop.run()
    first, second = (k for k, client in enumerate(loop.done) if client == b"rude")
    assert second - first > 150, "20 quanta of the other client"


def test_slice_ends_and_loop_times_say_how_long_it_was() -> None:
    loop = Loop(one=STEP)
    loop.queue.add(b"one", b"1000")
    loop.queue.run()
    assert SLICE <= loop.now < SLICE + 2 * STEP
    assert loop.times.longest["message"] <= QUANTUM + STEP
    assert loop.queue
    loop.run()
    assert len(loop.done) == 1000


def test_messages_of_one_client_stay_in_order() -> None:
    order: dict[bytes, list[int]] = {b"one": [], b"two": []}

    def begin(client: bytes, data: bytes) -> QueuedWork:
        order[client].append(int(data))
        return QueuedWork("message", iter([None] * 3))

    queue = WorkQueue(begin, LoopTimes(), 10_000)
    for k in range(20):
        queue.add(b"one", b"%d" % k)
        queue.add(b"two", b"%d" % k)
    while queue:
        queue.run()
    assert order == {b"one": list(range(20)), b"two": list(range(20))}


def test_waiting_bytes_are_limited_and_dropped_with_the_client() -> None:
    loop = Loop(max_bytes=4 * MESSAGE, one=STEP)
    assert [loop.queue.add(b"one", b"1") for _ in range(6)] == [True] * 4 + [False] * 2
    begun = QueuedWork("program", loop._steps(b"one", 7))
    assert loop.queue.add(b"one", begun), "work that was begun goes on"
    loop.queue.drop_messages(b"one")
    assert loop.queue.add(b"one", b"1")
    loop.run()
    assert len(loop.done) == 8


@pytest.mark.timeout(20)
@pytest.mark.parametrize("start", range(10))
def test_rounding_does_not_stop_the_queue(start: int) -> None:
    """A client may have so little time left that the clock's reading plus this time is the same reading."""
    loop = Loop(a=STEP, b=STEP, c=STEP)
    loop.now = start / 7
    for client in (b"a", b"b", b"c"):
        loop.queue.add(client, b"100")
    loop.run()
    assert len(loop.done) == 300
