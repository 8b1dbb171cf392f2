"""The server's cache hints in an engine short of pages: what stays cached and what is evicted first."""

from __future__ import annotations

from array import array
from contextlib import closing
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.protocol.wire import EvictFirst, Hold, Release

LENGTH = 40


def prompt(k: int) -> list[int]:
    """A prompt that shares no prefix with the others."""
    return [(7 * k + i * i) % 50 for i in range(LENGTH)]


def ids(k: int) -> bytes:
    return array("i", prompt(k)).tobytes()


class Driver:
    def __init__(self, fake: ModuleType, **options: Any) -> None:
        self.fake, self.now, self.rid = fake, 0.0, 0
        self.engine = fake.engine(**{"page": 4, "n_pages": 48} | options)  # a request needs 12 pages
        self.engine.clock = lambda: self.now

    def run(self, *ks: int) -> list[int]:
        """Run these prompts one after the other; return each one's number of cached tokens."""
        found = []
        for k in ks:
            self.rid += 1
            output = self.fake.drive(self.engine, [self.fake.run(self.rid, prompt(k))], check=True)[self.rid]
            assert output.ids == self.fake.greedy(prompt(k), 8)
            found.append(output.finish.n_cached)
        return found


@pytest.fixture
def driver(fake: ModuleType) -> Driver:
    return Driver(fake)


OTHERS = tuple(range(10, 16))


def test_least_recently_used_is_evicted_without_hints(driver: Driver) -> None:
    driver.run(0, *OTHERS)
    assert driver.run(0) == [0]


@pytest.mark.parametrize("limit", [{"steps": 1000.0}, {"seconds": 60.0}])
def test_held_prefix_stays_until_released(driver: Driver, limit: dict[str, float]) -> None:
    driver.run(0)
    driver.engine.take(Hold(1, ids(0), **limit))
    driver.run(*OTHERS)
    assert driver.run(0) == [LENGTH - 1]
    driver.engine.take(Release(1))
    driver.run(*OTHERS)
    assert driver.run(0) == [0]
    assert len(driver.engine.kv_hints._hints) == 0


def test_hold_expires_after_its_seconds(driver: Driver) -> None:
    driver.run(0)
    driver.engine.take(Hold(1, ids(0), seconds=60.0))
    driver.now = 59.0
    driver.run(*OTHERS)
    assert driver.run(0) == [LENGTH - 1]
    driver.now = 61.0
    driver.run(*OTHERS)
    assert driver.run(0) == [0]


def test_evict_first_hint_precedes_older_entries(driver: Driver) -> None:
    driver.run(0, 1, 2)
    driver.engine.take(EvictFirst(ids(2)))
    driver.run(3)
    assert driver.run(0, 1) == [LENGTH - 1] * 2
    assert driver.engine.cache.stats().evicted == {"dead": driver.engine.cache.stats().n_evicted_pages}


def test_evict_first_keeps_the_shared_prefix(driver: Driver) -> None:
    driver.run(0)
    driver.engine.take(EvictFirst(ids(0), 24))
    driver.run(1, 2, 3)
    short = driver.fake.run(99, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    driver.fake.drive(driver.engine, [short], check=True)
    assert 24 <= driver.run(0)[0] < LENGTH - 1, "only tokens after the fork are evicted"


def test_holds_never_block_requests(driver: Driver) -> None:
    for k in range(4):
        driver.run(k)
        driver.engine.take(Hold(k, ids(k), seconds=1e9))
        driver.engine.take(Hold(100 + k, ids(k), steps=1.0))
    driver.run(*OTHERS)
    assert driver.engine.scheduler.counts["retractions"] == 0


def test_holds_expected_sooner_stay(driver: Driver) -> None:
    for k, steps in enumerate((500.0, 150.0, 160.0, 170.0)):
        driver.run(k)
        driver.engine.take(Hold(k, ids(k), steps))
    driver.run(*OTHERS[:3])
    assert driver.engine.cache.stats().evicted["expected"] > 0
    assert driver.run(1, 2, 3) == [LENGTH - 1] * 3
    assert driver.run(0)[0] < LENGTH - 1


def test_prefetched_prefix_is_on_the_device_before_its_request(fake: ModuleType) -> None:
    driver = Driver(fake, n_host=200)
    driver.run(0, *OTHERS)
    before = driver.engine.cache.stats()
    driver.engine.take(Hold(1, ids(0), steps=10.0, prefetch=True))
    driver.run(20)
    moved = driver.engine.cache.stats()
    assert moved.n_moved_in - before.n_moved_in >= LENGTH // 4
    assert driver.run(0) == [LENGTH - 1]
    after = driver.engine.cache.stats()
    assert after.n_moved_in == moved.n_moved_in, "the prefetch had already moved it in"
    assert after.n_host_hit_tokens == before.n_host_hit_tokens


@pytest.mark.parametrize("step_is_empty", [True, False])
def test_prefetched_pages_hold_their_own_tokens(fake: ModuleType, step_is_empty: bool) -> None:
    driver = Driver(fake, n_host=200)
    engine = driver.engine
    driver.run(0, *OTHERS)
    engine.take(Hold(1, ids(0), steps=10.0, prefetch=True))
    if step_is_empty:
        engine.step()
        assert not engine.cache.take_moves(), "they are executed at once"
    assert driver.run(0) == [LENGTH - 1]
    with closing(engine.cache.open(ids(0))) as lease:
        pages = engine.model.store.kv[0][0][list(lease.pages)].view(-1, 2)[: lease.n_cached]
    assert pages.tolist() == [[token, at] for at, token in enumerate(prompt(0)[: lease.n_cached])]


def test_reused_hold_number_replaces_the_earlier_hold(driver: Driver) -> None:
    driver.run(0, 1)
    driver.engine.take(Hold(1, ids(0), steps=1000.0))
    driver.engine.take(Hold(1, ids(1), steps=1000.0))
    driver.run(*OTHERS)
    assert driver.run(1, 0) == [LENGTH - 1, 0]


@pytest.mark.parametrize(
    "order",
    [
        Release(9),
        Hold(9, b"abc", 1.0),
        EvictFirst(b"abc"),
        Hold(9, b""),
        EvictFirst(b"", -5),
        Hold(9, ids(40), 1e300, 1e300),
    ],
)
def test_invalid_hints_are_ignored(driver: Driver, order: Any) -> None:
    driver.run(0)
    driver.engine.take(order)
    assert driver.run(0) == [LENGTH - 1]


def test_holds_of_uncached_prefixes_are_dropped(driver: Driver) -> None:
    driver.run(0)
    for number in range(10_000):
        driver.engine.take(Hold(number, ids(number % 7), steps=5.0, namespace=b"" if number % 500 == 0 else b"other"))
    assert len(driver.engine.kv_hints._hints) < 200
    driver.engine.scheduler.check()
