"""Where a run of tokens was last seen: the index behind drafters that copy.

A table of fixed size, without chains: a later run takes the place of an earlier one, so memory is bounded and what is
recent is found. What it says is a hint; who asks compares the tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import mul
from typing import NamedTuple

import numpy as np

_WORD = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15  # odd; Fibonacci hashing
_STRIDE = 0xD1342543DE82EF95  # odd; of the polynomial over the tokens
_NO_TOKEN = 1 << 32  # what stands before a text


class Piece(NamedTuple):
    """Of a text, for each i in start .. stop: the runs before ids[i] have the number base + i, for each of the salts.
    0 <= base + i < 2^63 - 1."""

    ids: array[int]
    start: int
    stop: int
    salts: tuple[int, ...]
    base: int = 0


class NgramIndex:
    """From runs of tokens of some lengths to a number, the last that was put for them. Runs of two salts differ."""

    __slots__ = ("_factors", "_places", "_rows", "_salting", "_salting_rows", "_shift", "_slots", "orders")

    def __init__(self, orders: Sequence[int], n_places: int) -> None:
        """orders: the lengths, the longest first. n_places: about how many runs it remembers; 8 bytes each, of which
        only those written to are claimed."""
        self.orders = tuple(orders)
        # Salt and tokens of a run are multiplied with these; the sum modulo 2^64 begins with its place.
        powers = [_FACTOR * pow(_STRIDE, k, 1 << 64) & _WORD for k in range(self.orders[0] + 1)]
        self._factors = [powers[:order][::-1] for order in self.orders]
        self._rows = [np.array(factors, np.uint64) for factors in self._factors]
        self._salting = [powers[order] for order in self.orders]
        self._salting_rows = np.array(self._salting, np.uint64)[:, None]
        bits = max(4, (n_places - 1).bit_length())
        self._shift = 64 - bits
        self._slots = np.zeros(1 << bits, np.int64)  # the number + 1; 0: none
        self._places = memoryview(self._slots.data)  # faster than numpy for one

    def claim(self) -> None:
        """Have all its memory now, and forget everything: a virtual machine may take 6 ms for each 2 MiB at first."""
        self._slots.fill(0)

    def find(self, ids: Sequence[int], *salts: int) -> Iterator[int]:
        """For each salt, and for each length in turn: the number put for the last tokens of `ids`, or for others; -1
        for none."""
        runs = [sum(map(mul, ids[-order:], by)) for order, by in zip(self.orders, self._factors, strict=True)]
        shift, places = self._shift, self._places
        for salt in salts:
            for run, salting in zip(runs, self._salting, strict=True):
                yield places[(run + salt * salting & _WORD) >> shift] - 1

    def put(self, pieces: Sequence[Piece]) -> None:
        """All pieces, the later ones over the earlier; as many salts for each. One call costs little more for many.

        Runs that begin before a piece's first token are put with it too, as if what happens to stand there were theirs:
        to leave them out takes longer than to find, should somebody meet one, that it is none.
        """
        longest = self.orders[0]
        joined, lengths, numbers = array("i", bytes(longest * array("i").itemsize)), [], []
        for ids, start, stop, _, base in pieces:
            first = max(0, start - longest)
            numbers.append(base + first + 1 - len(joined))
            joined += ids[first:stop]
            lengths.append(stop - first)
        if len(joined) == longest:  # no piece has a token
            return
        tokens = np.array(joined, np.uint64)
        tokens[:longest] = _NO_TOKEN
        salts = np.array([piece.salts for piece in pieces], np.uint64).T[:, None]
        places = np.repeat(salts * self._salting_rows, lengths, axis=2)
        for k, row in enumerate(self._rows):
            places[:, k] += np.correlate(tokens[longest + 1 - len(row) :], row)  # modulo 2^64
        places >>= np.uint64(self._shift)
        # Of a run that comes twice the later stays: numpy assigns in order.
        self._slots[places.view(np.int64)] = np.repeat(numbers, lengths) + np.arange(longest + 1, len(joined) + 1)
