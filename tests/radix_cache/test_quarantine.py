"""After every violation of test_check.py, quarantine restores all invariants, keeps what is sound, and work goes on."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.check import Corrupt, check
from banyan.radix_cache.quarantine import quarantine


@pytest.fixture(scope="module")
def harms(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """test_check.py: a scene, and the violations."""
    return module_at(Path(__file__).with_name("test_check.py"))


NAMES = [
    *("lose_a_page", "free_a_page_twice", "share_a_page", "invent_a_page", "miscount_leased", "miscount_cached"),
    *("miscount_evictable", "miscount_held", "miscount_tokens", "miscount_a_queue", "miscount_nodes"),
    *("keep_an_empty_root", "misname_a_root", "lengthen_a_key", "cut_a_key", "begin_inside_a_page"),
    *("go_on_from_a_page_that_is_not_full", "disorder_the_children", "hide_a_child", "orphan", "forget_a_lock"),
    "forget_the_order_below_a_root",
    *("keep_a_redundant_leaf", "lock_for_nobody", "lock_less_above", "break_the_circle", "leave_the_list"),
    *(
        "make_a_parent_the_oldest",
        "stand_in_a_lower_queue_than_a_child",
        "refer_to_another_queue",
        "disorder_the_queues",
    ),
    *("close_a_queue_that_is_listed", "forget_the_dead", "let_a_parent_die", "hold_for_nobody", "forget_a_hold"),
    *("hold_what_was_never_stored", "be_due_at_another_time", "disorder_the_hints", "lie_nowhere"),
    *("read_another_page", "read_other_tokens", "change_the_namespace", "list_a_closed_lease"),
    *("know_more_than_there_is_room_for", "fill_one_page_from_two_leases", "copy_from_another_page"),
    *("copy_other_tokens", "copy_from_what_is_not_below", "copy_from_a_page_that_may_go"),
    "keep_something_while_off",
]


def test_every_harm_is_tried(harms: ModuleType) -> None:
    (mark,) = harms.test_every_harm_is_named.pytestmark
    assert {harm.__name__ for harm, _ in mark.args[1]} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_after_it_the_books_balance(harms: ModuleType, name: str) -> None:
    scene: Any = harms.Scene()
    cache: Cache = scene.cache
    getattr(harms, name)(scene)
    before = set(cache.leases)
    with pytest.raises(Corrupt):
        check(cache)
    ended = quarantine(cache)  # checks
    assert {*ended, *cache.leases} == before
    assert not any(lease.is_open for lease in ended)
    assert all(lease.is_open for lease in cache.leases)
    assert cache.conserved()
    assert cache.stats().n_mended == 1
    go_on(cache, harms)


def go_on(cache: Cache, harms: ModuleType) -> None:
    """Uses the cache normally until nothing is left. All pages must be free then."""
    chance = random.Random(1)
    for _ in range(60):
        prompt = harms.ids(*(chance.randrange(3) for _ in range(chance.randrange(1, 20))))
        with cache.open(prompt) as lease:
            if lease.grow(len(prompt) // 4):
                lease.take_copies()
                lease.publish(prompt)
        check(cache)
    for lease in list(cache.leases):
        lease.close()
    cache.hints.clear()
    cache.reset()
    check(cache)
    assert cache.stats().n_free == cache.n_pages


def test_what_is_beside_it_is_still_found(harms: ModuleType) -> None:
    scene: Any = harms.Scene()
    cache: Cache = scene.cache
    harms.share_a_page(scene)
    quarantine(cache)
    for tail, n in ((harms.ids(20, 20, 20, 20), 8), (harms.ids(30, 30, 30, 30), 12), (harms.ids(40, 40), 10)):
        with cache.open(harms.PROMPT + tail) as lease:
            assert lease.n_cached == n
    assert len(cache.quarantined) == 1
    assert scene.lease in cache.leases


def test_the_order_of_eviction_stays(harms: ModuleType) -> None:
    cache = Cache(40, 4)
    for k in range(8):
        with cache.open(prompt := harms.ids(*([k] * 8))) as lease:
            lease.grow(8)
            lease.publish(prompt)
    handle = cache.handle(harms.ids(*([0] * 8)))
    handle.expect(5)
    cache.handle(harms.ids(*([7] * 8))).drop()
    cache._n_leased += 1
    quarantine(cache)
    cache.evict(6)
    found = []
    for k in range(8):
        with cache.open(harms.ids(*([k] * 8))) as lease:
            found.append(lease.n_cached)
    assert found == [8, 0, 0, 8, 8, 8, 8, 0], "the dead, then the longest unused; not what is held"


def test_the_second_tier_begins_anew(harms: ModuleType) -> None:
    cache = Cache(6, 4, n_host=20)
    for k in range(6):
        with cache.open(prompt := harms.ids(*([k] * 12))) as lease:
            assert lease.grow(12)
            lease.publish(prompt)
    assert cache.stats().n_host_cached > 0
    cache.pool.free.append(3)
    quarantine(cache)
    assert cache.stats().n_host_cached == 0
    assert cache.tree.n_nodes > 0
    go_on(cache, harms)


def test_who_listens_is_told_all_anew(harms: ModuleType) -> None:
    scene: Any = harms.Scene()
    events = scene.cache.listen()
    number = events.since(-1).next
    harms.share_a_page(scene)
    quarantine(scene.cache)
    assert events.since(number).is_all
