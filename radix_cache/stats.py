"""What a cache counts: where the pages are, what was found, and why pages left."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

N_OWNERS = 1024
"""Programs whose hits are kept one by one; of those before them, the sum."""


class Stats(NamedTuple):
    """Where the pages are, and what was found. n_free + n_leased + n_cached + n_quarantined == n_pages, always."""

    n_pages: int
    n_free: int
    n_leased: int  # held by leases and not published
    n_cached: int  # in the tree
    n_evictable: int  # ... and not locked
    n_nodes: int
    n_leases: int  # open
    n_query_tokens: int  # of leases that published something: tokens they were opened for
    n_hit_tokens: int  # ... and found in the tree
    n_evicted_pages: int
    evicted: dict[str, int]  # ... by reason: dead, unused, expected, pinned
    n_held: int  # of the evictable, those that programs expect or have pinned
    n_handles: int  # that hold something
    n_empty_slots: int  # in the tree's pages: what is lost to leaves that end inside one
    n_host_hit_tokens: int  # of the hits, those that lay in host memory
    n_host_pages: int  # there are, in host memory
    n_host_cached: int  # ... and hold something
    n_moved_out: int  # pages that were moved to host memory
    n_moved_in: int  # ... and back
    n_quarantined: int  # withdrawn, as the books did not balance
    n_programs: int  # that published something
    program_hit_rate: float  # the mean of theirs, each counted once
    n_mended: int  # how often something had to be withdrawn


class Tally:
    """Tokens asked for and found, in all and by program."""

    __slots__ = ("_by_owner", "_n_ended", "_rates_of_ended", "n_hit", "n_host", "n_query")

    def __init__(self) -> None:
        self.n_query = self.n_hit = self.n_host = 0
        self._by_owner: dict[Hashable, tuple[int, int]] = {}
        self._n_ended = 0
        self._rates_of_ended = 0.0

    def add(self, owner: Hashable, n_query: int, n_hit: int, n_host: int) -> None:
        """A lease of `owner`, if any, asked for n_query tokens and found n_hit, n_host of them in host memory."""
        self.n_query += n_query
        self.n_hit += n_hit
        self.n_host += n_host
        if owner is None:
            return
        known = self._by_owner
        if one := known.get(owner):
            known[owner] = one[0] + n_query, one[1] + n_hit
            return
        if len(known) == N_OWNERS:
            asked, found = known.pop(next(iter(known)))
            self._n_ended += 1
            self._rates_of_ended += found / asked if asked else 0.0
        known[owner] = n_query, n_hit

    @property
    def n_programs(self) -> int:
        return self._n_ended + len(self._by_owner)

    @property
    def program_hit_rate(self) -> float:
        """The mean of the programs' hit rates; 0 where there are none."""
        rates = sum(found / asked for asked, found in self._by_owner.values() if asked)
        return (self._rates_of_ended + rates) / max(1, self.n_programs)

    def of(self, owner: Hashable) -> tuple[int, int]:
        """(tokens asked for, tokens found) by one of the last N_OWNERS programs."""
        return self._by_owner.get(owner, (0, 0))
