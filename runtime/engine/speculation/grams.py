"""Where a run of tokens was last seen: the index behind drafters that copy.

A table of fixed size, without chains: a later run takes the place of an earlier one, so memory is bounded and what is
recent is found. What it says is a hint; who asks compares the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import mul

import numpy as np

_WORD = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15  # odd; Fibonacci hashing
_STRIDE = 0xD1342543DE82EF95  # odd; of the polynomial over the tokens


@cache
def _factors(order: int) -> tuple[int, list[int], np.ndarray]:
    """What salt and tokens of a run are multiplied with: their sum modulo 2^64 begins with its place."""
    salting, *factors = (_FACTOR * pow(_STRIDE, order - k, 1 << 64) & _WORD for k in range(order + 1))
    return salting, factors, np.array(factors, np.uint64)


class Grams:
    """From `order` tokens in a row to a number, the last that was put for them. salt: runs of two salts differ."""

    __slots__ = ("_factors", "_places", "_shift", "order", "row", "salting", "shift", "slots")

    def __init__(self, order: int, n_places: int) -> None:
        """n_places: about how many runs it remembers; 8 bytes each, of which only those written to are claimed."""
        bits = max(4, (n_places - 1).bit_length())
        self.order, self._shift, self.shift = order, 64 - bits, np.uint64(64 - bits)
        self.salting, self._factors, self.row = _factors(order)
        self.slots = np.zeros(1 << bits, np.int64)  # the number + 1; 0: none
        self._places = memoryview(self.slots.data)  # faster than numpy for one

    def find(self, ids: Sequence[int], *salts: int) -> list[int]:
        """For each salt the number put for the last `order` of `ids`, or for others; -1 for none."""
        run = sum(map(mul, ids[-self.order :], self._factors))
        return [self._places[(run + salt * self.salting & _WORD) >> self._shift] - 1 for salt in salts]


def put(tables: Sequence[Grams], ids: Sequence[int], start: int, stop: int, salts: Sequence[int],
        base: int = 0) -> None:  # fmt: skip
    """In each table, for each i in start .. stop: the run before ids[i] has the number base + i. 0 <= base + i <
    2^63 - 1. The table of the longest runs comes first."""
    first = max(0, start - tables[0].order)
    tokens = np.array(ids[first:stop], np.uint64)
    numbers = np.arange(base + start + 1, base + stop + 2)
    for table in tables:
        skipped = max(0, table.order - start)  # before it stand fewer tokens than a run has
        if skipped > stop - start:
            continue
        runs = np.correlate(tokens[start + skipped - table.order - first :], table.row)  # modulo 2^64
        salted = np.array([[salt * table.salting & _WORD] for salt in salts], np.uint64)
        # Of a run that comes twice the later stays: numpy assigns in order.
        table.slots[(runs + salted) >> table.shift] = numbers[skipped:]
