"""How long outputs get: learned from those that ended, for guesses about those that run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_MEMORY = 512  # outputs of one kind; then older ones count half, and half again
_N_BINS = 4 * 32


class OutputLengths:
    """Lengths of outputs, apart for each power of two of max_tokens: who asks for 8 tokens and who for 2,048 differ."""

    def __init__(self) -> None:
        self._kinds: dict[int, _LengthClass] = {}

    def note(self, max_tokens: int, n_out: int) -> None:
        """An output ended after n_out tokens."""
        kind = self._kinds.get(max_tokens.bit_length())
        if kind is None:
            kind = self._kinds[max_tokens.bit_length()] = _LengthClass()
        kind.note(n_out)

    def left(self, max_tokens: int, n_out: int) -> int:
        """How many more tokens an output is expected to get that has n_out, and may have max_tokens: what the longer
        ones got on average. Where none was longer, half of what it may still get; where none has ended, all of it."""
        most = max_tokens - n_out
        kind = self._kinds.get(max_tokens.bit_length())
        if kind is None:
            return most
        mean = kind.mean_above(n_out)
        return min(most, int(mean - n_out) if mean else (most + 1) // 2)


class _LengthClass:
    """Numbers and sums of lengths, in bins four to an octave."""

    __slots__ = ("_n", "_n_above", "_n_all", "_sum", "_sum_above")

    def __init__(self) -> None:
        self._n, self._sum = [0.0] * _N_BINS, [0.0] * _N_BINS
        self._n_above, self._sum_above = [0.0] * (_N_BINS + 1), [0.0] * (_N_BINS + 1)
        self._n_all = 0.0

    def note(self, n_out: int) -> None:
        if self._n_all >= _MEMORY:
            self._n, self._sum = [n / 2 for n in self._n], [s / 2 for s in self._sum]
            self._n_all /= 2
        self._n_all += 1
        self._n[_bin(n_out)] += 1
        self._sum[_bin(n_out)] += n_out
        n = s = 0.0
        for i in range(_N_BINS - 1, -1, -1):
            n, s = n + self._n[i], s + self._sum[i]
            self._n_above[i], self._sum_above[i] = n, s

    def mean_above(self, n_out: int) -> float:
        """Of the lengths in higher bins than n_out's; 0.0 if there are none."""
        i = _bin(n_out) + 1
        return self._sum_above[i] / self._n_above[i] if self._n_above[i] else 0.0


def _bin(n: int) -> int:
    octave = n.bit_length()
    return min(4 * octave + (n << 2 >> max(octave - 1, 0) & 3), _N_BINS - 1)


class Growth(NamedTuple):
    """What a running request is expected to do. n_left: tokens it still gets. n_room: tokens for which it has pages.
    n_own: pages that are free again at its end, those still to come included."""

    n_left: int
    n_room: int
    n_own: int


def peak(some: Iterable[Growth], page: int) -> int:
    """The most pages that requests claim from now on before those of them that end first have given as many back.

    All get a token in each step; so just before one with t tokens left ends, all that are left have grown by t.
    """
    by_end = sorted(some)
    n, room, freed, most = len(by_end), sum(g.n_room for g in by_end), 0, 0.0
    for n_left, n_room, n_own in by_end:
        most = max(most, (n * n_left - room) / page + n / 2 - freed)  # n / 2: pages are claimed whole
        n, room, freed = n - 1, room - n_room, freed + n_own
    return max(0, int(most))
