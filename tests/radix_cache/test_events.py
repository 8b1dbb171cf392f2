"""A mirror that only receives events always has the same pages as the tree."""

from __future__ import annotations

import random
from array import array

import pytest

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.events import CacheEvents, EventPage
from banyan.radix_cache.node import Node
from banyan.radix_cache.pagefile import prefix_digests

PAGE = 4


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def names(prompt: bytes, namespace: bytes = b"") -> list[str]:
    """Digests of the prefixes that end with its whole pages."""
    return [digest.hex() for digest in prefix_digests(namespace, prompt, 0, 4 * PAGE)[1:]]


def truth(cache: Cache) -> set[str]:
    """All whole pages on the device, from the tree itself."""
    there: set[str] = set()

    def walk(node: Node, namespace: bytes) -> None:
        if node.pages:
            whole = names(node.path, namespace)
            there.update(whole[node.start // PAGE :])
            for child in node.children.values():
                walk(child, namespace)

    for namespace, root in cache.tree.roots.items():
        for child in root.children.values():
            walk(child, namespace)
    return there


class Mirror:
    """A router's view of one cache."""

    def __init__(self, events: CacheEvents) -> None:
        self.events, self.at, self.n_all = events, -1, 0
        self.there: set[str] = set()

    def look(self) -> EventPage:
        said = self.events.since(self.at)
        self.at = said.next
        if said.is_all:
            self.n_all += 1
            self.there.clear()
        for event in said.events:
            if event.kind == "stored":
                assert not self.there.intersection(event.digests), "stored twice"
                self.there.update(event.digests)
            else:
                assert self.there.issuperset(event.digests), "removed, and was not there"
                self.there.difference_update(event.digests)
        return said


def store(cache: Cache, prompt: bytes, namespace: bytes = b"") -> Lease:
    lease = cache.open(prompt, namespace)
    assert lease.grow(len(prompt) // 4)
    lease.take_copies()
    lease.publish(prompt)
    return lease


def test_what_is_stored_and_removed_is_told() -> None:
    cache = Cache(8, PAGE)
    mirror = Mirror(cache.listen())
    prompt = ids(*range(10))
    store(cache, prompt).close()
    (event,) = mirror.look().events
    assert (event.kind, list(event.digests)) == ("stored", names(prompt))
    assert event.parent == prefix_digests(b"", b"", 0, 4 * PAGE)[0].hex()
    with store(cache, prompt + ids(*range(10, 14))):
        (event,) = mirror.look().events
        assert event.parent == names(prompt)[-1]
        assert list(event.digests) == names(ids(*range(12)))[2:]
    cache.reset()
    mirror.look()
    assert mirror.there == set()
    assert mirror.n_all == 1


def test_namespaces_are_told_apart_however_long() -> None:
    cache = Cache(8, PAGE)
    mirror = Mirror(cache.listen())
    for namespace in (b"", b"x" * 64, b"x" * 65, b"x" * 66):
        store(cache, ids(1, 2, 3, 4), namespace).close()
    mirror.look()
    assert len(mirror.there) == 4


def test_who_comes_too_late_gets_all_that_is_there() -> None:
    cache = Cache(100, PAGE)
    events = cache.events = cache.tree.listener = CacheEvents(cache.tree, first=1000, n_kept=10)
    slow, quick, other = Mirror(events), Mirror(events), Mirror(events)
    other.at = 999  # a number of an earlier process
    slow.look()
    for i in range(20):
        store(cache, ids(i, 1, 2, 3, 4, 5, 6, 7)).close()
        quick.look()
        if i % 7 == 6:
            cache.evict(3)
    for mirror in (slow, quick, other):
        mirror.look()
        assert mirror.there == truth(cache)
    assert (slow.n_all, quick.n_all, other.n_all) == (2, 1, 1), "all, where it had to be"
    assert events._n_digests <= 10


@pytest.mark.parametrize("n_host", [0, 12])
@pytest.mark.parametrize("seed", range(6))
def test_a_mirror_has_what_the_tree_has(n_host: int, seed: int) -> None:
    chance = random.Random(seed)
    cache = Cache(40, PAGE, n_host=n_host)
    mirror = Mirror(cache.listen())
    leases: list[tuple[Lease, bytes]] = []
    prompts = [ids(*(chance.randrange(2) for _ in range(30)))]
    for _ in range(1500):
        what = chance.randrange(6)
        if what < 2 and len(leases) < 4:
            base = chance.choice(prompts)
            tail = ids(*(chance.randrange(2) for _ in range(chance.randrange(1, 14))))
            prompt = base[: 4 * chance.randrange(len(base) // 4 + 1)] + tail
            lease = cache.open(prompt, chance.choice((b"", b"t")))
            if lease.grow(len(prompt) // 4):
                prompts = [*prompts[-20:], prompt]
                leases.append((lease, prompt))
            else:
                lease.close()
        elif what < 4 and leases:
            lease, prompt = chance.choice(leases)
            lease.take_copies()
            lease.publish(prompt[: 4 * chance.randrange(lease._n_computed, len(prompt) // 4 + 1)])
        elif what == 4 and leases:
            leases.pop(chance.randrange(len(leases)))[0].close()
        elif what == 5:
            cache.evict(chance.randrange(3))
        cache.take_moves()
        if chance.random() < 0.3:
            mirror.look()
            assert mirror.there == truth(cache)
    assert mirror.n_all == 1
    cold = Mirror(cache.listen())
    cold.look()
    assert cold.there == truth(cache)
