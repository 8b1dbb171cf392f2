"""A mirror that is built only from cache events always has the same pages as the tree."""

from __future__ import annotations

import random
from contextlib import closing
from itertools import product

import pytest

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.digests import prefix_digests
from banyan.radix_cache.events import CacheEvents, EventPage
from cache_support import ids, open_published
from forms import short_form

PAGE = 4


def page_digests(prompt: bytes, namespace: bytes = b"") -> list[str]:
    """The digests of all prefixes that end with a full page."""
    return [digest.hex() for digest in prefix_digests(namespace, prompt, 0, 4 * PAGE)[1:]]


def device_pages(cache: Cache) -> set[str]:
    """Digests of all full pages on the device, read from the tree."""
    return {
        digest
        for namespace, root in cache.tree.roots.items()
        for node in cache.tree.subtree(root)
        if node.pages
        for digest in page_digests(node.path, namespace)[node.start // PAGE :]
    }


class Mirror:
    """A router's view of one cache."""

    def __init__(self, events: CacheEvents) -> None:
        self.events, self.position, self.n_resets = events, -1, 0
        self.digests: set[str] = set()

    def update(self) -> EventPage:
        page = self.events.since(self.position)
        self.position = page.next
        if page.is_all:
            self.n_resets += 1
            self.digests.clear()
        for event in page.events:
            if event.kind == "stored":
                assert not self.digests.intersection(event.digests), "stored twice"
                self.digests.update(event.digests)
            else:
                assert self.digests.issuperset(event.digests), "removed, but not stored"
                self.digests.difference_update(event.digests)
        return page


def test_events_report_stored_and_removed_pages() -> None:
    cache = Cache(8, PAGE)
    mirror = Mirror(cache.listen())
    prompt = ids(*range(10))
    open_published(cache, prompt).close()
    (event,) = mirror.update().events
    assert (event.kind, list(event.digests)) == ("stored", page_digests(prompt))
    assert event.parent == prefix_digests(b"", b"", 0, 4 * PAGE)[0].hex()
    with closing(open_published(cache, prompt + ids(*range(10, 14)))):
        (event,) = mirror.update().events
        assert event.parent == page_digests(prompt)[-1]
        assert list(event.digests) == page_digests(ids(*range(12)))[2:]
    cache.reset()
    mirror.update()
    assert mirror.digests == set()
    assert mirror.n_resets == 1


def test_long_namespaces_have_different_digests() -> None:
    cache = Cache(8, PAGE)
    mirror = Mirror(cache.listen())
    for namespace in (b"", b"x" * 64, b"x" * 65, b"x" * 66):
        open_published(cache, ids(1, 2, 3, 4), namespace).close()
    mirror.update()
    assert len(mirror.digests) == 4
    assert prefix_digests(b"x" * 65, b"", 0, 4) != prefix_digests(b"x" * 66, b"", 0, 4)


def test_late_listener_receives_the_whole_tree() -> None:
    cache = Cache(100, PAGE)
    events = cache.events = cache.tree.listener = CacheEvents(cache.tree, first=1000, n_kept=10)
    late, current, outdated = Mirror(events), Mirror(events), Mirror(events)
    outdated.position = 999  # an event number of an earlier process
    late.update()
    for i in range(20):
        open_published(cache, ids(i, 1, 2, 3, 4, 5, 6, 7)).close()
        current.update()
        if i % 7 == 6:
            cache.hints.evict(3)
    for mirror in (late, current, outdated):
        mirror.update()
        assert mirror.digests == device_pages(cache)
    assert (late.n_resets, current.n_resets, outdated.n_resets) == (2, 1, 1), (
        "only a listener without the recent events starts from the whole tree"
    )
    assert events._n_digests <= 10


@pytest.mark.parametrize(("n_host", "seed"), short_form(product([0, 12], range(6)), lambda n_host, seed: seed < 2))
def test_mirror_has_the_pages_of_the_tree(n_host: int, seed: int) -> None:
    rng = random.Random(seed)
    cache = Cache(40, PAGE, n_host=n_host)
    mirror = Mirror(cache.listen())
    leases: list[tuple[Lease, bytes]] = []
    prompts = [ids(*(rng.randrange(2) for _ in range(30)))]
    for _ in range(1500):
        action = rng.randrange(6)
        if action < 2 and len(leases) < 4:
            base = rng.choice(prompts)
            tail = ids(*(rng.randrange(2) for _ in range(rng.randrange(1, 14))))
            prompt = base[: 4 * rng.randrange(len(base) // 4 + 1)] + tail
            lease = cache.open(prompt, rng.choice((b"", b"t")))
            if lease.grow(len(prompt) // 4):
                prompts = [*prompts[-20:], prompt]
                leases.append((lease, prompt))
            else:
                lease.close()
        elif action < 4 and leases:
            lease, prompt = rng.choice(leases)
            lease.take_copies()
            lease.publish(prompt[: 4 * rng.randrange(lease._n_computed, len(prompt) // 4 + 1)])
        elif action == 4 and leases:
            leases.pop(rng.randrange(len(leases)))[0].close()
        elif action == 5:
            cache.hints.evict(rng.randrange(3))
        cache.take_moves()
        if rng.random() < 0.3:
            mirror.update()
            assert mirror.digests == device_pages(cache)
    assert mirror.n_resets == 1
    new_mirror = Mirror(cache.listen())
    new_mirror.update()
    assert new_mirror.digests == device_pages(cache)
