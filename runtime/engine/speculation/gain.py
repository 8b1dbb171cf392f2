"""What drafts are worth in fact: what came in a second, with drafts and without, beside what was expected of it.

The chance of a token and the cost of a row are guesses, and some things are in neither: what drafting itself takes, and
text that a constraint forces, which comes without drafts as well. What is systematically wrong with what is expected
shows in what comes, so that "it pays" is what was seen, and not what was reckoned.
"""

from __future__ import annotations

MEMORY = 0.98
"""How much of what was known counts when a step is added: fifty steps."""
OLD = 0.995
"""The same of steps with drafts, for each step without them."""
TRUST = 8
"""Steps that came as expected, which are believed to be there always."""
EVERY, SURE = 16, 1.3
"""Where drafts are expected to give less than SURE times what comes without, one step in so many is without: else it
would be forgotten what comes then."""
LEAST, MOST = 0.2, 2.0
"""Of `factor`."""


class _Tally:
    """Tokens that came, and those that were expected in the same time; both fade."""

    __slots__ = ("came", "expected")

    def __init__(self) -> None:
        self.came = self.expected = 0.0

    def fade(self, memory: float) -> None:
        self.came, self.expected = memory * self.came, memory * self.expected

    def share(self, trust: float) -> float:
        return (self.came + trust) / (self.expected + trust)


class _Size:
    """Steps of about the same number of requests."""

    __slots__ = ("drafted", "gain", "n_drafted", "plain")

    def __init__(self) -> None:
        self.plain, self.drafted = _Tally(), _Tally()
        self.n_drafted = 0  # steps since the last without drafts
        self.gain = 1.0  # expected, the last time


class Gain:
    """By how many requests draw in a step, to a power of two."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def _size(self, n_draws: int) -> _Size:
        bits = n_draws.bit_length()
        if bits not in self._sizes:
            self._sizes[bits] = _Size()
        return self._sizes[bits]

    def factor(self, n_draws: int) -> float:
        """What is expected of drafts, times what comes without, is to be multiplied with this."""
        size, trust = self._size(n_draws), TRUST * n_draws
        return min(max(size.drafted.share(trust) / size.plain.share(trust), LEAST), MOST)

    def expect(self, n_draws: int, gain: float) -> None:
        """Drafts are to give so many times what comes without."""
        self._size(n_draws).gain = gain

    def has_to_rest(self, n_draws: int) -> bool:
        """Whether this step should have no drafts, whatever is expected of them."""
        size = self._size(n_draws)
        return size.n_drafted >= EVERY and size.gain < SURE

    def note(self, n_draws: int, is_drafted: bool, came: int, expected: float) -> None:
        """Of a step: how many tokens came, and were expected in the time that it took."""
        size = self._size(n_draws)
        if is_drafted:
            size.n_drafted += 1
            tally = size.drafted
        else:
            size.n_drafted = 0
            size.drafted.fade(OLD)
            tally = size.plain
        tally.fade(MEMORY)
        tally.came += came
        tally.expected += expected
