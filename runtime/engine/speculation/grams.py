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

    __slots__ = ("_factors", "_places", "_row", "_salting", "_shift", "_slots", "order")

    def __init__(self, order: int, n_places: int) -> None:
        """n_places: about how many runs it remembers; 8 bytes each, of which only those written to are claimed."""
        bits = max(4, (n_places - 1).bit_length())
        self.order, self._shift = order, 64 - bits
        self._salting, self._factors, self._row = _factors(order)
        self._slots = np.zeros(1 << bits, np.int64)  # the number + 1; 0: none
        self._places = memoryview(self._slots.data)  # faster than numpy for one

    def find(self, ids: Sequence[int], *salts: int) -> list[int]:
        """For each salt the number put for the last `order` of `ids`, or for others; -1 for none."""
        run = sum(map(mul, ids[-self.order :], self._factors))
        return [self._places[(run + salt * self._salting & _WORD) >> self._shift] - 1 for salt in salts]

    def put(self, ids: Sequence[int], start: int, stop: int, salts: Sequence[int], base: int = 0) -> None:
        """For each i in start .. stop: the run before ids[i] has the number base + i. 0 <= base + i < 2^63 - 1."""
        start = max(start, self.order)
        if start > stop:
            return
        runs = np.correlate(np.array(ids[start - self.order : stop], np.uint64), self._row)  # modulo 2^64
        numbers = np.arange(base + start + 1, base + stop + 2)
        for salt in salts:
            # Of a run that comes twice the later stays: numpy assigns in order.
            self._slots[(runs + np.uint64(salt * self._salting & _WORD)) >> np.uint64(self._shift)] = numbers
