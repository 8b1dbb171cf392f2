"""Recurrent states in the tree: a lease always continues from the state of its own prefix."""

from __future__ import annotations

import random

import pytest

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import Corrupt, check
from banyan.radix_cache.quarantine import quarantine
from cache_support import ids

PAGE = 4


class Driver:
    """Runs leases on a cache as an engine does. The text stands in for its recurrent state."""

    def __init__(self, n_pages: int = 64, n_states: int = 8, n_host: int = 0) -> None:
        self.cache = Cache(n_pages, PAGE, n_states=n_states, n_host=n_host)
        assert self.cache.states is not None
        self.states = self.cache.states
        self.slots: dict[int, bytes] = {}

    def open(self, text: bytes) -> Lease | None:
        """Open a lease with room for the text, and copy the state that it continues from. None if pages are missing."""
        lease = self.cache.open(text, limit=len(text) // 4 - 1)
        if not lease.grow(len(text) // 4):
            lease.close()
            return None
        lease.claim_state()
        lease.take_copies()
        self.cache.take_moves()
        for source, destination in self.states.take_copies():
            self.slots[destination] = self.slots[source] if source >= 0 else b""
        assert self.slots[lease.state] == text[: 4 * lease.n_cached]
        return lease

    def compute(self, lease: Lease, text: bytes, *kept: int) -> None:
        """Compute and publish the text, and keep the states at these positions."""
        for position in kept:
            if position > lease.n_cached and (slot := lease.keep_state(position)) >= 0:
                self.slots[slot] = text[: 4 * position]
        self.slots[lease.state] = text
        lease.publish(text)

    def run(self, text: bytes, *kept: int) -> int:
        """One request from beginning to end. Returns how many of its tokens were cached."""
        lease = self.open(text)
        assert lease is not None
        self.compute(lease, text, *kept)
        self.end(lease, text)
        return lease.n_cached

    def end(self, lease: Lease, text: bytes) -> None:
        lease.keep_last_state(len(text) // 4)
        lease.publish(text)
        lease.close()
        check(self.cache)


TEXT = ids(*range(20))


def test_match_ends_at_the_last_state_before_it() -> None:
    d = Driver()
    assert d.run(TEXT, 6, 13) == 0
    assert d.run(TEXT) == 13
    assert d.run(TEXT[:48] + ids(99)) == 6
    assert d.run(TEXT + ids(20, 21)) == 20


def test_pages_after_a_state_are_shared_again() -> None:
    d = Driver()
    d.run(TEXT)
    lease = d.open(TEXT[:64] + ids(1, 2))
    assert lease is not None
    assert (lease.n_matched, lease.n_cached) == (16, 0)
    d.compute(lease, TEXT[:64] + ids(1, 2), 16)
    d.end(lease, TEXT[:64] + ids(1, 2))
    assert d.cache.tree.n_pages == 6
    assert d.run(TEXT[:64] + ids(3)) == 16


def test_least_recently_used_state_is_evicted() -> None:
    d = Driver(n_states=3)
    a, b, c = (ids(start, *range(10)) for start in (100, 200, 300))
    d.run(a), d.run(b)
    assert d.run(a + ids(1)) == 11  # its own state takes the last slot
    assert d.run(c) == 0
    assert d.run(b + ids(1)) == 0


def test_states_of_dropped_branches_are_evicted_first_and_held_ones_last() -> None:
    d = Driver(n_states=3)
    a, b, c = (ids(start, *range(10)) for start in (100, 200, 300))
    held = d.cache.handle(a)
    d.run(a)
    held.expect(5)
    d.run(b), d.run(c), d.run(ids(*range(400, 410)))
    assert d.run(a + ids(1)) == 11


def test_evicted_nodes_free_their_states() -> None:
    d = Driver()
    d.run(TEXT, 6, 13)
    d.cache.hints.evict(2)  # tokens 12 to 19
    check(d.cache)
    assert len(d.states.nodes) == 1
    assert d.run(TEXT) == 6
    d.cache.reset()
    check(d.cache)
    assert len(d.states.free) == d.states.n_slots


def test_closed_lease_frees_what_it_did_not_publish() -> None:
    d = Driver()
    lease = d.open(TEXT)
    assert lease is not None
    lease.keep_state(10)
    check(d.cache)
    lease.close()
    check(d.cache)
    assert len(d.states.free) == d.states.n_slots


def test_last_state_that_is_kept_already_takes_no_second_slot() -> None:
    d = Driver()
    lease = d.open(TEXT)
    assert lease is not None
    d.slots[lease.keep_state(20)] = TEXT
    d.end(lease, TEXT)
    assert len(d.states.free) == d.states.n_slots - 1
    assert d.run(TEXT + ids(20)) == 20


def test_states_stay_while_pages_are_in_host_memory() -> None:
    d = Driver(n_host=16)
    d.run(TEXT, 13)
    d.cache.hints.evict(5)
    check(d.cache)
    assert d.cache.tree.n_pages == 0
    assert d.run(TEXT) == 13


def test_repair_drops_states_and_goes_on() -> None:
    d = Driver()
    d.run(TEXT, 13)
    lease = d.open(TEXT)
    assert lease is not None
    d.states.free.append(lease.state)
    with pytest.raises(Corrupt, match="slot of recurrent state"):
        check(d.cache)
    quarantine(d.cache)
    check(d.cache)
    lease.close()
    assert d.run(TEXT) == 0
    assert d.run(TEXT + ids(1)) == 20


@pytest.mark.parametrize("n_host", [0, 10])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_leases_and_evictions(seed: int, n_host: int) -> None:
    rng = random.Random(seed)
    d = Driver(n_pages=rng.randint(8, 24), n_states=rng.randint(3, 7), n_host=n_host)
    running: list[tuple[Lease, bytes]] = []
    for _ in range(300):
        match rng.randrange(4):
            case 0 if len(running) < 2:
                text = ids(*(rng.randrange(2) if rng.random() < 0.3 else 7 for _ in range(rng.randint(1, 14))))
                if lease := d.open(text):
                    running.append((lease, text))
            case 1 if running:
                lease, text = rng.choice(running)
                if not lease.states:
                    d.compute(lease, text, *sorted({rng.randint(1, len(text) // 4) for _ in range(2)}))
            case 2 if running:
                lease, text = running.pop(rng.randrange(len(running)))
                if rng.random() < 0.7:
                    d.compute(lease, text)
                    d.end(lease, text)
                else:
                    lease.close()
            case 3:
                d.cache.hints.evict(rng.randint(0, 2))
        check(d.cache)
    for lease, _ in running:
        lease.close()
    check(d.cache)
