"""Every invariant of the scheduler."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from banyan.radix_cache.check import check as check_cache

if TYPE_CHECKING:
    from banyan.runtime.engine.scheduling.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """And those of its cache. Raises AssertionError where one does not hold."""
    cache, requests, running, waiting = scheduler.cache, scheduler.requests, scheduler.running, scheduler.waiting
    check_cache(cache)
    scheduler.drafting.check(set(requests))
    lanes = [*running, *waiting, *scheduler.following]
    assert sorted(r.rid for r in lanes) == sorted(requests), "a request is in no lane, or in two"
    assert len(waiting) == sum(r.is_waiting for r in requests.values()) == len(list(waiting))
    assert all(a.key < b.key for a, b in pairwise(running)), "the running are out of rank"
    for r in requests.values():
        assert (r.lease is not None) == (r in running)
        assert r.lease.n_cached <= r.n_computed if r.lease else r.n_computed == 0
        assert r.n_published <= r.n_computed < r.n_total <= r.end
        assert r.n_flying == r.n_pending == 0, "more of it is in flight than a plan is made of"
    assert len(running) <= scheduler.max_running
    assert len(cache.in_flight) == sum(r.n_computed < r.n_given for r in running)
