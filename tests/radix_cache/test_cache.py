"""The behaviour of leases, one property per test. test_contents.py tests that a lease never reads wrong KV."""

from __future__ import annotations

from array import array

import pytest

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import check


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def run(cache: Cache, some: bytes, namespace: bytes = b"") -> Lease:
    """Opens a lease that has computed and published a prompt."""
    lease = cache.open(some, namespace, len(some) // 4 - 1)
    assert lease.grow(len(some) // 4)
    lease.take_copies()
    lease.publish(some)
    return lease


PROMPT = ids(*range(10))  # two pages of 4 and half of a third


# ---- open ----------------------------------------------------------------------------------------------------------


def test_an_empty_cache_gives_an_empty_lease() -> None:
    cache = Cache(8, 4)
    lease = cache.open(PROMPT)
    assert (lease.n_cached, lease.pages, lease.n_slots, lease.take_copies()) == (0, [], 0, [])
    assert cache.stats().n_free == 8


@pytest.mark.parametrize("limit", range(11))
def test_a_second_run_has_all_that_it_may_have(limit: int) -> None:
    cache = Cache(8, 4)
    run(cache, PROMPT).close()
    lease = cache.open(PROMPT, limit=limit)
    assert lease.n_cached == limit
    copies = lease.take_copies()
    assert [n_slots for _, _, n_slots in copies] == [limit % 4] * (limit % 4 > 0 and limit < 10)
    assert lease.n_slots == -(-limit // 4) * 4
    check(cache)


def test_a_limit_below_nothing_is_nothing() -> None:
    cache = Cache(8, 4)
    run(cache, PROMPT).close()
    assert cache.open(PROMPT, limit=-1).n_cached == 0


def test_two_runs_at_once_share_to_the_token() -> None:
    """The first lease is filling its last page, so the second copies the filled part."""
    cache = Cache(8, 4)
    one = run(cache, PROMPT)
    two = cache.open(PROMPT + ids(77), limit=10)
    assert two.n_cached == 10
    assert two.pages[:2] == one.pages[:2]
    assert two.take_copies() == [(one.pages[2], two.pages[2], 2)]
    assert two.take_copies() == [], "each is given once"


def test_who_goes_on_where_nobody_is_fills_the_page() -> None:
    cache = Cache(8, 4)
    run(cache, PROMPT).close()
    turn = cache.open(PROMPT + ids(10, 11), limit=11)
    assert (turn.n_cached, turn.take_copies(), cache.stats().n_leased) == (10, [], 0)
    turn.grow(12)
    turn.publish(PROMPT + ids(10, 11))
    turn.close()
    assert cache.stats().n_cached == 3
    assert cache.open(ids(*range(12))).n_cached == 12
    check(cache)


def test_a_copy_has_its_source_until_the_first_publish() -> None:
    cache = Cache(8, 4)
    run(cache, PROMPT).close()
    lease = cache.open(PROMPT, limit=9)
    assert lease.take_copies()
    assert cache.n_available == 8 - 4, "two pages of the path, the source, the destination"
    assert cache.evict(8) == 0
    lease.publish(PROMPT)
    assert cache.n_available == 8 - 3
    check(cache)


def test_a_copy_has_its_source_until_the_close() -> None:
    cache = Cache(8, 4)
    run(cache, PROMPT).close()
    cache.open(PROMPT, limit=9).close()
    assert cache.n_available == 8
    check(cache)


@pytest.mark.parametrize(("n_pages", "n_ids", "n_cached"), [(3, 11, 8), (4, 11, 9), (4, 14, 8), (5, 14, 9)])
def test_alone_a_lease_can_grow_to_all_of_its_ids(n_pages: int, n_ids: int, n_cached: int) -> None:
    """If the pool can hold them. A copy is not made if its source would take the room."""
    cache = Cache(n_pages, 4)
    run(cache, PROMPT).close()
    lease = cache.open(PROMPT + bytes(4 * (n_ids - 10)), limit=9)
    assert lease.n_cached == n_cached
    assert cache.n_available >= -(-n_ids // 4) - len(lease.pages)
    assert lease.grow(n_ids)
    check(cache)


def test_open_claims_no_page_but_for_a_copy() -> None:
    cache = Cache(8, 4)
    run(cache, PROMPT).close()
    n_free = cache.stats().n_free
    with cache.open(PROMPT, limit=8):
        assert cache.stats().n_free == n_free
    with cache.open(PROMPT, limit=7):
        assert cache.stats().n_free == n_free - 1


@pytest.mark.parametrize("some", [b"\1\0\0", PROMPT + b"\1"])
def test_ids_are_whole_numbers(some: bytes) -> None:
    with pytest.raises(ValueError, match="not a multiple of 4"):
        Cache(8, 4).open(some)


# ---- grow, shrink --------------------------------------------------------------------------------------------------


def test_grow_evicts_what_it_must() -> None:
    cache = Cache(4, 4)
    run(cache, PROMPT).close()
    lease = cache.open(ids(99))
    assert lease.grow(8)
    assert cache.stats().n_evicted_pages == 1
    assert lease.grow(5), "there is room already"
    assert lease.n_slots == 8


def test_a_grow_that_cannot_be_changes_nothing() -> None:
    cache = Cache(4, 4)
    holder = run(cache, ids(*range(8)))
    run(cache, ids(50)).close()
    lease = cache.open(ids(99))
    before = cache.stats()
    assert not lease.grow(12)
    assert cache.stats() == before
    assert lease.pages == []
    assert lease.grow(8)
    holder.close()


def test_shrink_gives_back_pages_of_its_own() -> None:
    cache = Cache(8, 4)
    lease = run(cache, PROMPT)
    assert lease.grow(25)
    assert (lease.n_slots, lease.n_private) == (28, 4)
    lease.shrink(13)
    assert (lease.n_slots, lease.n_private) == (16, 1)
    lease.shrink(0)
    assert lease.n_slots == 12, "what is published stays"
    copier = cache.open(PROMPT, limit=9)
    copier.grow(20)
    copier.shrink(0)
    assert copier.n_slots == 12, "what is copied stays"
    check(cache)


# ---- publish -------------------------------------------------------------------------------------------------------


def test_what_is_published_is_found_chunk_by_chunk() -> None:
    cache = Cache(8, 4)
    with cache.open(PROMPT) as lease:
        lease.grow(10)
        for n in range(1, 11):
            lease.publish(PROMPT[: 4 * n])
            with cache.open(PROMPT) as other:
                assert other.n_cached == n
            check(cache)


def test_the_chunks_of_one_lease_are_one_node() -> None:
    cache = Cache(64, 4)
    lease = cache.open(ids(*range(100)))
    lease.grow(100)
    for n in (7, 16, 17, 40, 99, 100):
        lease.publish(ids(*range(n)))
    assert cache.stats().n_nodes == 1
    assert lease.n_private == 0


def test_what_another_has_published_is_taken_over() -> None:
    cache = Cache(16, 4)
    one, two = cache.open(PROMPT), cache.open(PROMPT + ids(10, 11, 12))
    one.grow(10)
    two.grow(13)
    one.publish(PROMPT)
    two.publish(PROMPT + ids(10, 11, 12))
    assert two.pages[:2] == one.pages[:2]
    assert two.pages[2] != one.pages[2], "the first is filling it"
    assert cache.stats()[1:4] == (16 - 5, 0, 5)
    check(cache)


def test_what_was_not_published_is_not_kept() -> None:
    cache = Cache(8, 4)
    with cache.open(PROMPT) as lease:
        lease.grow(10)
        lease.publish(PROMPT[:20])
    assert cache.stats()[1:4] == (6, 0, 2)
    assert cache.open(PROMPT).n_cached == 5


def test_to_publish_more_than_there_is_room_for_is_an_error() -> None:
    with Cache(8, 4).open(PROMPT) as lease:
        lease.grow(8)
        with pytest.raises(ValueError, match="10 tokens are published, but the lease has 8 slots"):
            lease.publish(PROMPT)


def test_to_publish_before_copying_is_an_error() -> None:
    cache = Cache(8, 4)
    run(cache, PROMPT).close()
    with cache.open(PROMPT, limit=9) as lease, pytest.raises(ValueError, match="copies"):
        lease.publish(PROMPT)


# ---- fork ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 8, 10])
def test_a_fork_has_what_is_published(n: int) -> None:
    cache = Cache(8, 4)
    parent = cache.open(PROMPT)
    parent.grow(12)
    parent.publish(PROMPT[: 4 * n])
    child = parent.fork()
    assert child.n_cached == n
    assert child.pages[: n // 4] == parent.pages[: n // 4]
    assert [copy[0] for copy in child.take_copies()] == parent.pages[n // 4 : -(-n // 4)]
    parent.close()
    check(cache)


def test_a_fork_of_what_was_only_found_has_that() -> None:
    cache = Cache(8, 4)
    run(cache, PROMPT).close()
    parent = cache.open(PROMPT, limit=9)
    child = parent.fork()
    assert child.n_cached == 9
    assert child.take_copies()[0][0] == parent.take_copies()[0][0], "both copy from the same page"
    check(cache)


# ---- close ---------------------------------------------------------------------------------------------------------


def test_nothing_leaks() -> None:
    cache = Cache(64, 4)
    for i in range(50):
        leases = [cache.open(PROMPT + ids(i, j, j), limit=12) for j in range(3)]
        for j, lease in enumerate(leases):
            lease.grow(13 + j)
            lease.take_copies()
            if j:
                lease.publish(PROMPT + ids(i, j, j))
        leases += [lease.fork() for lease in leases]
        for lease in leases:
            lease.close()
        check(cache)
    assert cache.stats().n_leased == cache.stats().n_leases == 0
    cache.reset()
    assert cache.stats().n_free == 64


def test_the_end_of_a_cache_closes_its_leases_in_the_order_they_were_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cache leaves in host memory depends only on the calls, not on the addresses of its leases."""
    closed, close = list[int](), Lease.close
    monkeypatch.setattr(Lease, "close", lambda self: (closed.append(len(self._ids) // 4), close(self)))
    for _ in range(5):
        cache = Cache(64, 4)
        leases = [cache.open(ids(*range(n))) for n in range(1, 17)]
        leases[7].close()
        closed.clear()
        cache.close()
        assert closed == [n for n in range(1, 17) if n != 8]


def test_to_close_twice_does_nothing() -> None:
    cache = Cache(8, 4)
    one, two = run(cache, PROMPT), cache.open(PROMPT)
    one.close()
    before = cache.stats()
    one.close()
    assert cache.stats() == before
    two.close()
    check(cache)


def test_a_closed_lease_does_nothing_more() -> None:
    lease = Cache(8, 4).open(PROMPT)
    lease.close()
    for act in (lambda: lease.grow(1), lambda: lease.publish(PROMPT), lease.fork):
        with pytest.raises(ValueError, match="the lease is closed"):
            act()


# ---- the cache -----------------------------------------------------------------------------------------------------


def test_a_cache_that_is_off_finds_and_keeps_nothing() -> None:
    cache = Cache(8, 4, enabled=False)
    lease = run(cache, PROMPT)
    assert cache.stats()[1:4] == (5, 3, 0)
    assert cache.open(PROMPT).n_cached == 0
    assert lease.fork().n_cached == 0
    lease.close()
    assert cache.stats().n_free == 8


def test_reset_forgets_what_nobody_holds() -> None:
    cache = Cache(16, 4)
    run(cache, ids(50, 51)).close()
    lease = run(cache, PROMPT)
    cache.reset()
    assert cache.stats().n_cached == 3
    lease.close()
    cache.reset()
    assert cache.stats().n_free == 16


def test_the_statistics_count_a_lease_when_it_has_run() -> None:
    cache = Cache(16, 4)
    run(cache, PROMPT).close()
    for _ in range(5):
        cache.open(PROMPT).close()  # a waiting request tries repeatedly
    run(cache, PROMPT).close()
    assert cache.stats().n_query_tokens == 20
    assert cache.stats().n_hit_tokens == 9


@pytest.mark.parametrize(("n_pages", "page"), [(-1, 16), (8, 0), (8, 12)])
def test_a_cache_has_pages_of_a_power_of_two(n_pages: int, page: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Cache(n_pages, page)
