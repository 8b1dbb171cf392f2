"""Predicts output lengths from requests that have finished, and the pages that running requests will claim."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

_MEMORY = 512  # outputs of a class after which all earlier ones count half
_N_BINS = 4 * 32


class OutputLengths:
    """Statistics of output lengths, separate for each power of two of max_tokens."""

    def __init__(self) -> None:
        self._classes: dict[int, _LengthClass] = {}

    def note(self, max_tokens: int, n_out: int) -> None:
        """Record that an output finished after n_out tokens."""
        self._classes.setdefault(max_tokens.bit_length(), _LengthClass()).note(n_out)

    def left(self, max_tokens: int, n_out: int) -> int:
        """How many more tokens an output that has n_out tokens is expected to get. Computed from the mean length of
        finished outputs that were longer than n_out and had a similar max_tokens. If none of them was longer, returns
        half of max_tokens - n_out; if none has finished yet, all of max_tokens - n_out."""
        max_left = max_tokens - n_out
        known = self._classes.get(max_tokens.bit_length())
        if known is None:
            return max_left
        mean = known.mean_above(n_out)
        return min(max_left, int(mean - n_out) if mean else (max_left + 1) // 2)


class _LengthClass:
    """A histogram of output lengths, with four bins per power of two. Each bin keeps the number and the total length of
    the outputs in it and in all higher bins."""

    def __init__(self) -> None:
        self._n, self._sum = [0.0] * _N_BINS, [0.0] * _N_BINS

    def note(self, n_out: int) -> None:
        if self._n[0] >= _MEMORY:
            self._n, self._sum = [n / 2 for n in self._n], [s / 2 for s in self._sum]
        for i in range(_bin(n_out) + 1):
            self._n[i] += 1
            self._sum[i] += n_out

    def mean_above(self, n_out: int) -> float:
        """The mean of lengths in bins above n_out's; 0.0 if there are none."""
        i = _bin(n_out) + 1
        return self._sum[i] / self._n[i] if i < _N_BINS and self._n[i] else 0.0


def _bin(n: int) -> int:
    octave = n.bit_length()
    return min(4 * octave + (n << 2 >> max(octave - 1, 0) & 3), _N_BINS - 1)


class Growth(NamedTuple):
    """The expected future of a running request. n_left: tokens it will still get. n_room: further tokens that fit into
    the pages it holds. n_own: pages that become free when the request ends, including those that it will still
    claim."""

    n_left: int
    n_room: int
    n_own: int


def peak(requests: Collection[Growth], page: int, enough: int = 0) -> int:
    """Return how many pages the requests will need at most at one time beyond those that they hold now. Until it ends,
    each request grows by one token per step; when it ends, its pages become free. page: tokens per page.

    enough: if a simple upper bound, which ignores the pages that become free, is at most `enough`, it is returned in
    place of the exact number."""
    most = sum([max(0, n_left - n_room) for n_left, n_room, _ in requests]) / page + len(requests) / 2
    if most <= enough:
        return int(most)
    by_end = sorted(requests)
    n, room, freed, n_pages = len(by_end), sum(g.n_room for g in by_end), 0, 0.0
    for n_left, n_room, n_own in by_end:
        n_pages = max(n_pages, (n * n_left - room) / page + n / 2 - freed)  # n / 2: pages are claimed whole
        n, room, freed = n - 1, room - n_room, freed + n_own
    return max(0, int(n_pages))
