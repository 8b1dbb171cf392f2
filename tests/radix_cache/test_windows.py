"""Pages of windowed layers in the tree: a lease always has the tokens of its own window."""

from __future__ import annotations

import random

import pytest

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import Corrupt, check
from banyan.radix_cache.quarantine import quarantine
from banyan.radix_cache.windows import WindowPages
from cache_support import ids
from forms import short_form

PAGE, WINDOW, AHEAD = 4, 10, 8
Slot = tuple[int, int]


class Driver:
    """Runs leases on a cache as an engine does. A slot of a windowed layer holds the text up to its token."""

    def __init__(self, n_pages: int = 64, n_window: int = 24, n_first: int = 0) -> None:
        self.window = WindowPages(n_window, PAGE, WINDOW, AHEAD, n_first)
        self.n_first = n_first
        self.cache = Cache(n_pages, PAGE, window=self.window)
        self.slots: dict[Slot, bytes] = {}

    def open(self, text: bytes) -> Lease | None:
        """Open a lease with room for the text and its next step. None if pages are missing."""
        lease = self.cache.open(text, limit=len(text) // 4 - 1)
        if not lease.grow(len(text) // 4):
            lease.close()
            return None
        for source, destination, n in lease.take_copies():
            if source < 0:
                for i in range(n):
                    self.slots[~destination, i] = self.slots[~source, i]
        return lease

    def compute(self, lease: Lease, text: bytes, n: int = AHEAD) -> int:
        """Compute and publish at most n more tokens of the text. Returns how many are computed in total."""
        assert lease.window is not None
        start, pages = lease._n_computed, lease.window.pages
        end = min(start + n, len(text) // 4)
        for i in range(start, end):
            self.slots[pages[i // PAGE], i % PAGE] = text[: 4 * i + 4]
        for i in range(start, end):
            oldest = max(0, i - WINDOW + 1)
            for j in (*range(min(self.n_first, oldest)), *range(oldest, i + 1)):
                assert self.slots[pages[j // PAGE], j % PAGE] == text[: 4 * j + 4], (i, j)
        lease.publish(text[: 4 * end])
        return end

    def run(self, text: bytes) -> int:
        """One request from beginning to end. Returns how many of its tokens were cached."""
        lease = self.open(text)
        assert lease is not None
        while self.compute(lease, text) < len(text) // 4:
            assert lease.grow(len(text) // 4)
            check(self.cache)
        lease.close()
        check(self.cache)
        return lease.n_cached


TEXT = ids(*range(60))


def test_running_lease_has_a_window_of_pages() -> None:
    d = Driver()
    lease = d.open(TEXT)
    assert lease is not None
    assert lease.window is not None
    while (n := d.compute(lease, TEXT)) < 60:
        assert lease.grow(60)
        assert len(lease.window.held) <= WindowPages.need(WINDOW, AHEAD, PAGE)
        check(d.cache)
    assert n == 60
    assert len(lease.window.held) == 3, "tokens 48 to 59, of which the next token needs 51 and up"
    assert len(lease.pages) == 15


def test_text_goes_on_where_its_window_is_there() -> None:
    d = Driver()
    assert d.run(TEXT) == 0
    assert d.run(TEXT) == 59
    assert d.cache.n_usable(TEXT, b"", 30) == 30, "all pages are still there"
    for page in list(d.window.passed):
        d.window._remove(d.window.nodes[page], d.window._positions[page])
    check(d.cache)
    assert d.run(TEXT + ids(7)) == 60
    assert d.run(TEXT[:120] + ids(98)) == 0, "what a text left behind is gone"


def test_match_ends_at_the_last_whole_window() -> None:
    d = Driver()
    d.run(TEXT)
    (node,) = d.cache.tree.root(b"").children.values()
    d.window._remove(node, 40)  # tokens 36 to 39
    check(d.cache)
    for n, found in ((59, 59), (50, 50), (49, 49), (48, 36), (39, 36), (36, 36), (20, 20)):
        assert d.cache.n_usable(TEXT, b"", n) == found, n


def test_first_pages_stay_with_a_lease_and_are_evicted_last() -> None:
    d = Driver(n_pages=200, n_first=5)
    lease = d.open(TEXT)
    assert lease is not None
    assert lease.window is not None
    while d.compute(lease, TEXT) < 60:
        assert lease.grow(60)
        assert len(lease.window.held) <= WindowPages.need(WINDOW, AHEAD, PAGE, 5)
        check(d.cache)
    assert len(lease.window.held) == 5, "tokens 0 to 7, and 48 to 59"
    assert lease.window.pages.count(d.window.null) == 10
    assert lease.window.n_held_slots == 20
    lease.close()
    (node,) = d.cache.tree.root(b"").children.values()
    assert list(d.window.unused)[-2:] == [node.states[8], node.states[4]], "the others are of no use without these"


def test_match_needs_the_first_pages() -> None:
    d = Driver(n_first=5)
    d.run(TEXT)
    (node,) = d.cache.tree.root(b"").children.values()
    assert d.cache.n_usable(TEXT, b"", 59) == 59
    d.window._remove(node, 8)  # tokens 4 to 7
    check(d.cache)
    for n, found in ((59, 4), (20, 4), (8, 4), (5, 4), (3, 3)):
        assert d.cache.n_usable(TEXT, b"", n) == found, n
    d.window._remove(node, 4)
    assert d.cache.n_usable(TEXT, b"", 59) == 0
    assert d.run(TEXT) == 0
    assert d.run(TEXT) == 59


def test_pages_left_behind_are_evicted_first_and_held_ones_last() -> None:
    d = Driver(n_pages=200, n_window=24)
    a, b, c = (ids(start, *range(31)) for start in (100, 200, 300))
    held = d.cache.handle(a)
    d.run(a)
    held.expect(5)
    for text in (b, c, *(ids(start, *range(31)) for start in range(400, 410))):
        d.run(text)
    assert d.cache.n_usable(a, b"", 31) == 31
    assert d.cache.n_usable(b, b"", 31) == 0


def test_evicted_nodes_free_their_pages() -> None:
    d = Driver()
    d.run(TEXT)
    d.cache.hints.evict(2)
    check(d.cache)
    assert d.run(TEXT) == 52
    d.cache.reset()
    check(d.cache)
    assert len(d.window.free) == d.window.n_slots


def test_too_few_pages_change_nothing() -> None:
    d = Driver(n_window=WindowPages.need(WINDOW, AHEAD, PAGE))
    others = [d.open(ids(start, *range(40))) for start in (100, 200, 300)]  # two pages each
    lease = d.cache.open(ids(400, *range(40)))
    n_free = len(d.cache.pool.free)
    assert not lease.grow(40)
    assert len(d.cache.pool.free) == n_free
    check(d.cache)
    for each in (lease, *others):
        assert each is not None
        each.close()
    check(d.cache)
    with pytest.raises(ValueError, match="too few for a window of 10"):
        WindowPages(d.window.n_slots - 1, PAGE, WINDOW, AHEAD)


def test_repair_drops_pages_and_goes_on() -> None:
    d = Driver()
    d.run(TEXT)
    lease = d.open(TEXT + ids(1))
    assert lease is not None
    assert lease.window is not None
    d.window.free.append(lease.window.held[0])
    with pytest.raises(Corrupt, match="page of windowed layers"):
        check(d.cache)
    quarantine(d.cache)
    check(d.cache)
    lease.close()
    check(d.cache)
    assert d.run(TEXT) == 0
    assert d.run(TEXT + ids(1)) == 60


@pytest.mark.parametrize("seed", short_form(((seed,) for seed in range(200)), lambda seed: seed < 6))
def test_any_order_of_leases_and_evictions(seed: int) -> None:
    rng = random.Random(seed)
    n_first = rng.choice([0, 1, 6])
    least = WindowPages.need(WINDOW, AHEAD, PAGE, n_first)
    d = Driver(rng.randint(12, 40), rng.randint(least, 3 * least), n_first)
    running: list[tuple[Lease, bytes]] = []
    held = [d.cache.handle(ids(*[7] * n)) for n in (5, 12)]
    for _ in range(300):
        match rng.randrange(6):
            case 0 if len(running) < 4:
                text = ids(*(rng.randrange(2) if rng.random() < 0.15 else 7 for _ in range(rng.randint(1, 36))))
                if lease := d.open(text):
                    running.append((lease, text))
            case 1 | 2 if running:
                lease, text = rng.choice(running)
                if lease.grow(len(text) // 4):
                    d.compute(lease, text, rng.randint(1, AHEAD))
            case 3 if running:
                lease, text = running.pop(rng.randrange(len(running)))
                if rng.random() < 0.7 and lease.grow(len(text) // 4):
                    d.compute(lease, text)
                lease.close()
            case 4:
                d.cache.hints.evict(rng.randint(0, 2))
            case 5:
                hint = rng.choice(held)
                hint.expect(5) if rng.random() < 0.5 else hint.release()
        check(d.cache)
    for lease, _ in running:
        lease.close()
    check(d.cache)
