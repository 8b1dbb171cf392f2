"""Statistics of a cache: where the pages are, hit rates, and reasons of evictions."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

N_OWNERS = 1024
"""How many programs' hit rates are kept separately. For older programs, only the sum of the rates is kept."""


class Stats(NamedTuple):
    """A snapshot of the counters. n_free + n_leased + n_cached + n_quarantined == n_pages, always."""

    n_pages: int
    n_free: int
    n_leased: int  # owned by leases and not published
    n_cached: int  # in the tree
    n_evictable: int  # in the tree and not locked
    n_nodes: int
    n_leases: int  # open
    n_query_tokens: int  # tokens of all requests whose lease published something
    n_hit_tokens: int  # query tokens that were found in the tree
    n_evicted_pages: int
    evicted: dict[str, int]  # evicted pages by reason: dead, unused, expected, pinned
    n_held: int  # evictable pages that programs expect or have pinned
    n_handles: int  # hints that hold something
    n_empty_slots: int  # in pages of the tree, because leaves end inside a page
    n_host_hit_tokens: int  # hit tokens that were in host memory
    n_host_pages: int  # pages of host memory
    n_host_cached: int  # pages of host memory in use
    n_moved_out: int  # pages moved to host memory
    n_moved_in: int  # pages moved back
    n_quarantined: int  # pages withdrawn after an invariant was violated
    n_programs: int  # programs that published something
    program_hit_rate: float  # the mean of their hit rates
    n_mended: int  # repairs after a violated invariant
    n_window_pages: int  # pages of windowed layers, if these have their own
    n_window_used: int  # pages of windowed layers in use by leases
    n_window_cached: int  # pages of windowed layers in the tree and not in use


class Tally:
    """Counts tokens asked for and found, in all and by program."""

    __slots__ = ("_by_owner", "_n_ended", "_rates_of_ended", "n_hit", "n_host", "n_query")

    def __init__(self) -> None:
        self.n_query = self.n_hit = self.n_host = 0
        self._by_owner: dict[Hashable, tuple[int, int]] = {}  # tokens asked for, tokens found
        self._n_ended = 0
        self._rates_of_ended = 0.0

    def add(self, owner: Hashable, n_query: int, n_hit: int, n_host: int) -> None:
        """Counts a lease that asked for n_query tokens and found n_hit, n_host of them in host memory. owner: its
        program, or None."""
        self.n_query += n_query
        self.n_hit += n_hit
        self.n_host += n_host
        if owner is None:
            return
        by_owner = self._by_owner
        if owner not in by_owner and len(by_owner) == N_OWNERS:
            asked, found = by_owner.pop(next(iter(by_owner)))
            self._n_ended += 1
            self._rates_of_ended += found / asked if asked else 0.0
        asked, found = by_owner.get(owner, (0, 0))
        by_owner[owner] = asked + n_query, found + n_hit

    @property
    def n_programs(self) -> int:
        return self._n_ended + len(self._by_owner)

    @property
    def program_hit_rate(self) -> float:
        """The mean of the programs' hit rates; 0 if there are none."""
        rates = sum(found / asked for asked, found in self._by_owner.values() if asked)
        return (self._rates_of_ended + rates) / max(1, self.n_programs)
