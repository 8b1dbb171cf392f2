"""A hash table from n-grams to the places where they last occurred, for the drafters that copy.

A later n-gram overwrites an earlier one with the same hash. The answers are hints; the caller compares the tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import mul
from typing import NamedTuple

import numpy as np

_WORD = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15  # odd; Fibonacci hashing
_STRIDE = 0xD1342543DE82EF95  # odd; base of the polynomial over the tokens
_NO_TOKEN = 1 << 32  # stands before the start of a text


class Piece(NamedTuple):
    """A part of a text to index: for each i in start .. stop, the n-grams that end with ids[i - 1] are mapped to the
    number base + i, under each of the salts. 0 <= base + i < 2^63 - 1."""

    ids: array[int]
    start: int
    stop: int
    salts: tuple[int, ...]
    base: int = 0


class NgramIndex:
    """A hash table from n-grams of some lengths to numbers. If `put` is called again for an n-gram, the later number
    replaces the earlier one. Each salt has its own entries."""

    def __init__(self, orders: Sequence[int], size: int) -> None:
        """orders: the lengths, the longest first. size: number of entries, of 8 bytes each. The operating system
        allocates their memory when they are first written."""
        self.orders = tuple(orders)
        # The hash is the top bits of a polynomial in salt and tokens modulo 2^64.
        powers = [_FACTOR * pow(_STRIDE, k, 1 << 64) & _WORD for k in range(self.orders[0] + 1)]
        self._factors = [powers[:order][::-1] for order in self.orders]
        self._factor_rows = [np.array(factors, np.uint64) for factors in self._factors]
        self._salt_factors = [powers[order] for order in self.orders]
        self._salt_factor_rows = np.array(self._salt_factors, np.uint64)[:, None]
        bits = max(4, (size - 1).bit_length())
        self._shift = 64 - bits
        self._table = np.zeros(1 << bits, np.int64)  # number + 1; 0: none
        self._numbers = memoryview(self._table.data)  # faster than numpy for single entries

    def claim(self) -> None:
        """Clear the table, which claims all its memory now. In a virtual machine, the first write to 2 MiB may take
        6 ms."""
        self._table.fill(0)

    def find(self, ids: Sequence[int], *salts: int) -> Iterator[int]:
        """Look up the last tokens of `ids`. Yields one number for each salt and, within it, for each of the table's
        n-gram lengths: the number that `put` stored last, or -1. If another n-gram has the same hash, its number is
        returned, so the caller must compare the tokens."""
        sums = [sum(map(mul, ids[-order:], by)) for order, by in zip(self.orders, self._factors, strict=True)]
        shift, numbers = self._shift, self._numbers
        for salt in salts:
            for value, factor in zip(sums, self._salt_factors, strict=True):
                yield numbers[(value + salt * factor & _WORD) >> shift] - 1

    def put(self, pieces: Sequence[Piece]) -> None:
        """Index all pieces. Later pieces overwrite earlier ones. All pieces must have the same number of salts. Only
        the part of a text that may be needed is hashed, so an n-gram that begins before this part gets a wrong hash and
        a useless entry. The caller rejects such entries when it compares tokens; to leave them out would cost more."""
        longest = self.orders[0]
        joined, lengths, numbers = array("i", bytes(longest * array("i").itemsize)), list[int](), list[int]()
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
        entries = np.repeat(salts * self._salt_factor_rows, lengths, axis=2)
        for k, row in enumerate(self._factor_rows):
            entries[:, k] += np.correlate(tokens[longest + 1 - len(row) :], row)  # modulo 2^64
        entries >>= np.uint64(self._shift)
        # numpy assigns in order, so the later of two equal n-grams stays.
        self._table[entries.view(np.int64)] = np.repeat(numbers, lengths) + np.arange(longest + 1, len(joined) + 1)
