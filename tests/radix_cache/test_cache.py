"""The properties of leases. test_contents.py tests that a lease never reads wrong KV."""

from __future__ import annotations

from contextlib import closing

import pytest

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import check
from cache_support import ids, open_published


def open_run(cache: Cache, prompt: bytes, namespace: bytes = b"") -> Lease:
    return open_published(cache, prompt, namespace, len(prompt) // 4 - 1)


PROMPT = ids(*range(10))  # two and a half pages of 4


# ---- open ----------------------------------------------------------------------------------------------------------


def test_lease_on_an_empty_cache_is_empty() -> None:
    cache = Cache(8, 4)
    lease = cache.open(PROMPT)
    assert (lease.n_cached, len(lease.pages), lease.n_slots, lease.take_copies()) == (0, 0, 0, [])
    assert cache.stats().n_free == 8


@pytest.mark.parametrize("limit", range(11))
def test_second_lease_reuses_the_prefix_up_to_its_limit(limit: int) -> None:
    cache = Cache(8, 4)
    open_run(cache, PROMPT).close()
    lease = cache.open(PROMPT, limit=limit)
    assert lease.n_cached == limit
    copies = lease.take_copies()
    assert [n_slots for _, _, n_slots in copies] == [limit % 4] * (limit % 4 > 0 and limit < 10)
    assert lease.n_slots == -(-limit // 4) * 4
    check(cache)


def test_negative_limit_is_zero() -> None:
    cache = Cache(8, 4)
    open_run(cache, PROMPT).close()
    assert cache.open(PROMPT, limit=-1).n_cached == 0


def test_concurrent_leases_share_to_the_token() -> None:
    """The first lease is filling its last page, so the second copies the filled part."""
    cache = Cache(8, 4)
    first = open_run(cache, PROMPT)
    second = cache.open(PROMPT + ids(77), limit=10)
    assert second.n_cached == 10
    assert second.pages[:2] == first.pages[:2]
    assert second.take_copies() == [(first.pages[2], second.pages[2], 2)]
    assert second.take_copies() == [], "each copy is returned once"


def test_continuation_fills_the_partial_page_of_a_closed_lease() -> None:
    cache = Cache(8, 4)
    open_run(cache, PROMPT).close()
    continuation = cache.open(PROMPT + ids(10, 11), limit=11)
    assert (continuation.n_cached, continuation.take_copies(), cache.stats().n_leased) == (10, [], 0)
    continuation.grow(12)
    continuation.publish(PROMPT + ids(10, 11))
    continuation.close()
    assert cache.stats().n_cached == 3
    assert cache.open(ids(*range(12))).n_cached == 12
    check(cache)


def test_source_of_a_copy_is_locked_until_the_first_publish() -> None:
    cache = Cache(8, 4)
    open_run(cache, PROMPT).close()
    lease = cache.open(PROMPT, limit=9)
    assert lease.take_copies()
    assert cache.n_available == 8 - 4, "two pages of the path, the source, the destination"
    assert cache.hints.evict(8) == 0
    lease.publish(PROMPT)
    assert cache.n_available == 8 - 3
    check(cache)


def test_source_of_a_copy_is_locked_until_the_close() -> None:
    cache = Cache(8, 4)
    open_run(cache, PROMPT).close()
    cache.open(PROMPT, limit=9).close()
    assert cache.n_available == 8
    check(cache)


@pytest.mark.parametrize(("n_pages", "n_ids", "n_cached"), [(3, 11, 8), (4, 11, 9), (4, 14, 8), (5, 14, 9)])
def test_single_lease_can_grow_to_all_of_its_ids(n_pages: int, n_ids: int, n_cached: int) -> None:
    """The pool can just hold them. If the source page of a copy is needed for that, no copy is made."""
    cache = Cache(n_pages, 4)
    open_run(cache, PROMPT).close()
    lease = cache.open(PROMPT + bytes(4 * (n_ids - 10)), limit=9)
    assert lease.n_cached == n_cached
    assert cache.n_available >= -(-n_ids // 4) - len(lease.pages)
    assert lease.grow(n_ids)
    check(cache)


def test_open_takes_a_page_only_for_a_copy() -> None:
    cache = Cache(8, 4)
    open_run(cache, PROMPT).close()
    n_free = cache.stats().n_free
    with closing(cache.open(PROMPT, limit=8)):
        assert cache.stats().n_free == n_free
    with closing(cache.open(PROMPT, limit=7)):
        assert cache.stats().n_free == n_free - 1


@pytest.mark.parametrize("prompt", [b"\1\0\0", PROMPT + b"\1"])
def test_ids_of_partial_tokens_are_refused(prompt: bytes) -> None:
    with pytest.raises(ValueError, match="not a multiple of 4"):
        Cache(8, 4).open(prompt)


# ---- grow, shrink --------------------------------------------------------------------------------------------------


def test_grow_evicts_only_the_pages_it_needs() -> None:
    cache = Cache(4, 4)
    open_run(cache, PROMPT).close()
    lease = cache.open(ids(99))
    assert lease.grow(8)
    assert cache.stats().n_evicted_pages == 1
    assert lease.grow(5), "the lease has these slots"
    assert lease.n_slots == 8


def test_failed_grow_changes_nothing() -> None:
    cache = Cache(4, 4)
    holder = open_run(cache, ids(*range(8)))
    open_run(cache, ids(50)).close()
    lease = cache.open(ids(99))
    before = cache.stats()
    assert not lease.grow(12)
    assert cache.stats() == before
    assert not lease.pages
    assert lease.grow(8)
    holder.close()


def test_shrink_frees_private_pages_only() -> None:
    cache = Cache(8, 4)
    lease = open_run(cache, PROMPT)
    assert lease.grow(25)
    assert (lease.n_slots, lease.n_private) == (28, 4)
    lease.shrink(13)
    assert (lease.n_slots, lease.n_private) == (16, 1)
    lease.shrink(0)
    assert lease.n_slots == 12, "published pages stay"
    copier = cache.open(PROMPT, limit=9)
    copier.grow(20)
    copier.shrink(0)
    assert copier.n_slots == 12, "the destination of a copy stays"
    check(cache)


# ---- publish -------------------------------------------------------------------------------------------------------


def test_every_published_chunk_is_found() -> None:
    cache = Cache(8, 4)
    with closing(cache.open(PROMPT)) as lease:
        lease.grow(10)
        for n in range(1, 11):
            lease.publish(PROMPT[: 4 * n])
            with closing(cache.open(PROMPT)) as other:
                assert other.n_cached == n
            check(cache)


def test_chunks_of_one_lease_form_one_node() -> None:
    cache = Cache(64, 4)
    lease = cache.open(ids(*range(100)))
    lease.grow(100)
    for n in (7, 16, 17, 40, 99, 100):
        lease.publish(ids(*range(n)))
    assert cache.stats().n_nodes == 1
    assert lease.n_private == 0


def test_publish_adopts_the_pages_of_another_lease() -> None:
    cache = Cache(16, 4)
    first, second = cache.open(PROMPT), cache.open(PROMPT + ids(10, 11, 12))
    first.grow(10)
    second.grow(13)
    first.publish(PROMPT)
    second.publish(PROMPT + ids(10, 11, 12))
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2], "the first lease writes to this page"
    assert cache.stats()[1:4] == (16 - 5, 0, 5)
    check(cache)


def test_unpublished_tokens_are_not_kept() -> None:
    cache = Cache(8, 4)
    with closing(cache.open(PROMPT)) as lease:
        lease.grow(10)
        lease.publish(PROMPT[:20])
    assert cache.stats()[1:4] == (6, 0, 2)
    assert cache.open(PROMPT).n_cached == 5


def test_publish_beyond_the_slots_raises() -> None:
    with closing(Cache(8, 4).open(PROMPT)) as lease:
        lease.grow(8)
        with pytest.raises(ValueError, match="10 tokens are published, but the lease has 8 slots"):
            lease.publish(PROMPT)


def test_publish_before_copying_raises() -> None:
    cache = Cache(8, 4)
    open_run(cache, PROMPT).close()
    with closing(cache.open(PROMPT, limit=9)) as lease, pytest.raises(ValueError, match="copies"):
        lease.publish(PROMPT)


# ---- fork ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 8, 10])
def test_fork_has_the_published_tokens(n: int) -> None:
    cache = Cache(8, 4)
    parent = cache.open(PROMPT)
    parent.grow(12)
    parent.publish(PROMPT[: 4 * n])
    child = cache.open(PROMPT[: 4 * n])
    assert child.n_cached == n
    assert child.pages[: n // 4] == parent.pages[: n // 4]
    assert [copy[0] for copy in child.take_copies()] == list(parent.pages[n // 4 : -(-n // 4)])
    parent.close()
    check(cache)


def test_fork_of_an_unpublished_lease_has_its_cached_prefix() -> None:
    cache = Cache(8, 4)
    open_run(cache, PROMPT).close()
    parent = cache.open(PROMPT, limit=9)
    child = cache.open(PROMPT, limit=9)
    assert child.n_cached == 9
    assert child.take_copies()[0][0] == parent.take_copies()[0][0], "both copy from the same page"
    check(cache)


# ---- close ---------------------------------------------------------------------------------------------------------


def test_closed_leases_leak_no_pages() -> None:
    cache = Cache(64, 4)
    for i in range(50):
        leases = [cache.open(PROMPT + ids(i, j, j), limit=12) for j in range(3)]
        for j, lease in enumerate(leases):
            lease.grow(13 + j)
            lease.take_copies()
            if j:
                lease.publish(PROMPT + ids(i, j, j))
        leases += [cache.open(PROMPT + ids(i, j, j), limit=13 if j else 12) for j in range(3)]
        for lease in leases:
            lease.close()
        check(cache)
    assert cache.stats().n_leased == cache.stats().n_leases == 0
    cache.reset()
    assert cache.stats().n_free == 64


def test_close_of_the_cache_closes_leases_in_the_order_of_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contents of host memory then depend only on the calls, not on the addresses of the leases."""
    closed, close = list[int](), Lease.close
    monkeypatch.setattr(Lease, "close", lambda self: (closed.append(len(self._ids) // 4), close(self)))
    for _ in range(5):
        cache = Cache(64, 4)
        leases = [cache.open(ids(*range(n))) for n in range(1, 17)]
        leases[7].close()
        closed.clear()
        cache.close()
        assert closed == [n for n in range(1, 17) if n != 8]


def test_second_close_does_nothing() -> None:
    cache = Cache(8, 4)
    first, second = open_run(cache, PROMPT), cache.open(PROMPT)
    first.close()
    before = cache.stats()
    first.close()
    assert cache.stats() == before
    second.close()
    check(cache)


def test_closed_lease_refuses_every_call() -> None:
    lease = Cache(8, 4).open(PROMPT)
    lease.close()
    for call in (lambda: lease.grow(1), lambda: lease.publish(PROMPT)):
        with pytest.raises(ValueError, match="the lease is closed"):
            call()


# ---- the cache -----------------------------------------------------------------------------------------------------


def test_disabled_cache_finds_and_keeps_nothing() -> None:
    cache = Cache(8, 4, enabled=False)
    lease = open_run(cache, PROMPT)
    assert cache.stats()[1:4] == (5, 3, 0)
    assert cache.open(PROMPT).n_cached == 0
    lease.close()
    assert cache.stats().n_free == 8


def test_reset_removes_unlocked_nodes() -> None:
    cache = Cache(16, 4)
    open_run(cache, ids(50, 51)).close()
    lease = open_run(cache, PROMPT)
    cache.reset()
    assert cache.stats().n_cached == 3
    lease.close()
    cache.reset()
    assert cache.stats().n_free == 16


def test_statistics_count_a_lease_at_its_first_publish() -> None:
    cache = Cache(16, 4)
    open_run(cache, PROMPT).close()
    for _ in range(5):
        cache.open(PROMPT).close()  # as when a waiting request is not admitted
    open_run(cache, PROMPT).close()
    assert cache.stats().n_query_tokens == 20
    assert cache.stats().n_hit_tokens == 9


@pytest.mark.parametrize(("n_pages", "page"), [(-1, 16), (8, 0), (8, 12)])
def test_page_size_other_than_a_power_of_two_is_refused(n_pages: int, page: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Cache(n_pages, page)
