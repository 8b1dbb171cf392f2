"""What the server says of the tree's future, in an engine under pressure: what is found again, and what went first."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.protocol.wire import EvictFirst, Hold, Release

LENGTH = 40


def prompt(k: int) -> list[int]:
    """One that shares nothing with any other."""
    return [(7 * k + i * i) % 50 for i in range(LENGTH)]


def ids(k: int) -> bytes:
    return array("i", prompt(k)).tobytes()


class Driver:
    def __init__(self, fake: ModuleType, **options: Any) -> None:
        self.fake, self.now, self.rid = fake, 0.0, 0
        self.engine = fake.engine(**{"page": 4, "n_pages": 48} | options)  # of 12 pages that a request needs
        self.engine.clock = lambda: self.now

    def ask(self, *ks: int) -> list[int]:
        """How many tokens each of these prompts found, one after the other."""
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


def test_without_a_word_the_longest_unused_goes(driver: Driver) -> None:
    driver.ask(0, *OTHERS)
    assert driver.ask(0) == [0]


@pytest.mark.parametrize("how", [{"steps": 1000.0}, {"seconds": 60.0}])
def test_what_is_held_stays(driver: Driver, how: dict[str, float]) -> None:
    driver.ask(0)
    driver.engine.take(Hold(1, ids(0), **how))
    driver.ask(*OTHERS)
    assert driver.ask(0) == [LENGTH - 1]
    driver.engine.take(Release(1))
    driver.ask(*OTHERS)
    assert driver.ask(0) == [0]
    assert len(driver.engine.kv_hints) == 0


def test_a_pin_ends_with_its_time(driver: Driver) -> None:
    driver.ask(0)
    driver.engine.take(Hold(1, ids(0), seconds=60.0))
    driver.now = 59.0
    driver.ask(*OTHERS)
    assert driver.ask(0) == [LENGTH - 1]
    driver.now = 61.0
    driver.ask(*OTHERS)
    assert driver.ask(0) == [0]


def test_what_lost_goes_before_what_is_older(driver: Driver) -> None:
    driver.ask(0, 1, 2)
    driver.engine.take(EvictFirst(ids(2)))
    driver.ask(3)
    assert driver.ask(0, 1) == [LENGTH - 1] * 2
    assert driver.engine.cache.stats().evicted == {"dead": driver.engine.cache.stats().n_evicted_pages}


def test_what_a_loser_shares_lives(driver: Driver) -> None:
    driver.ask(0)
    driver.engine.take(EvictFirst(ids(0), 24))
    driver.ask(1, 2, 3)
    short = driver.fake.run(99, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    driver.fake.drive(driver.engine, [short], check=True)
    assert 24 <= driver.ask(0)[0] < LENGTH - 1, "some behind the fork is gone, and nothing before it"


def test_whatever_is_held_nobody_waits_for_it(driver: Driver) -> None:
    for k in range(4):
        driver.ask(k)
        driver.engine.take(Hold(k, ids(k), seconds=1e9))
        driver.engine.take(Hold(100 + k, ids(k), steps=1.0))
    driver.ask(*OTHERS)
    assert driver.engine.scheduler.counts["retractions"] == 0


def test_of_those_that_wait_the_nearer_stay(driver: Driver) -> None:
    for k, steps in enumerate((500.0, 150.0, 160.0, 170.0)):
        driver.ask(k)
        driver.engine.take(Hold(k, ids(k), steps))
    driver.ask(*OTHERS[:3])
    assert driver.engine.cache.stats().evicted["expected"] > 0
    assert driver.ask(1, 2, 3) == [LENGTH - 1] * 3
    assert driver.ask(0)[0] < LENGTH - 1


def test_what_is_fetched_early_is_there(fake: ModuleType) -> None:
    driver = Driver(fake, n_host=200)
    driver.ask(0, *OTHERS)
    before = driver.engine.cache.stats()
    driver.engine.take(Hold(1, ids(0), steps=10.0, prefetch=True))
    driver.ask(20)
    moved = driver.engine.cache.stats()
    assert moved.n_moved_in - before.n_moved_in >= LENGTH // 4
    assert driver.ask(0) == [LENGTH - 1]
    after = driver.engine.cache.stats()
    assert after.n_moved_in == moved.n_moved_in, "it had come back before it was asked for"
    assert after.n_host_hit_tokens == before.n_host_hit_tokens


def test_a_number_that_is_said_again_is_the_last_said(driver: Driver) -> None:
    driver.ask(0, 1)
    driver.engine.take(Hold(1, ids(0), steps=1000.0))
    driver.engine.take(Hold(1, ids(1), steps=1000.0))
    driver.ask(*OTHERS)
    assert driver.ask(1, 0) == [LENGTH - 1, 0]


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
def test_nonsense_is_nothing(driver: Driver, order: Any) -> None:
    driver.ask(0)
    driver.engine.take(order)
    assert driver.ask(0) == [LENGTH - 1]


def test_holds_that_hold_nothing_are_forgotten(driver: Driver) -> None:
    driver.ask(0)
    for number in range(10_000):
        driver.engine.take(Hold(number, ids(number % 7), steps=5.0, namespace=b"" if number % 500 == 0 else b"other"))
    assert len(driver.engine.kv_hints) < 200
    driver.engine.scheduler.check()
