"""Ids to text as they come: whole characters only, and nothing that a stop string may still cut."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence

from banyan.runtime.server.text.stop_patterns import REACH, Patterns


class Detokenizer:
    """The text of one output.

    A stop string ends the text before it, wherever it begins inside a token and however many tokens it spans; a pattern
    ends it behind its match. Of several the one that is complete first counts, and of those the longest; so what comes
    out does not depend on how the text is cut into tokens. None is looked for before `min_tokens` tokens are there.

    text       all text so far, cut at the stop
    matched    the stop string or pattern that ended it, or None
    n_tokens   tokens taken, the one that completed a stop included
    """

    def __init__(
        self,
        spelling: Sequence[bytes],
        hidden: Collection[int],
        stops: Iterable[str] = (),
        min_tokens: int = 0,
        patterns: Sequence[str] = (),
    ) -> None:
        """BadProgram: patterns that cannot be used; also from `feed` and `finish`, for those that take too long."""
        self._spelling, self._hidden, self._min_tokens = spelling, hidden, min_tokens
        self._stops = tuple(dict.fromkeys(stops))
        self._patterns = Patterns(patterns)
        self._reach = max(map(len, self._stops), default=1) - 1  # characters that may begin a stop
        if self._patterns:
            self._reach = max(self._reach, REACH)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._length = 0
        self._tail = ""  # the last `reach` characters
        self._unsent = ""
        # Characters spelled by the first k + 1 tokens; -1 where they end inside a character.
        self._ends: list[int] = []
        self.matched: str | None = None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def n_tokens(self) -> int:
        return len(self._ends)

    def feed(self, ids: Iterable[int]) -> str:
        """Take ids; what of the text is now certain and was not returned before. Ids after a stop are ignored."""
        for i in ids:
            if self.matched is not None:
                break
            spelled = b"" if i in self._hidden or i >= len(self._spelling) else self._spelling[i]
            text = self._decoder.decode(spelled)
            if self._add(text, look=self.n_tokens >= self._min_tokens):
                whole = not self._decoder.getstate()[0]
                self._ends.append(self._length if whole else -1)
            else:
                self._ends.append(-1)
        return self._certain()

    def finish(self, stop_id: int | None = None) -> str:
        """The output ends; returns the rest of its text. `stop_id`: a token that holds a stop string whole and that is
        not part of the output, but whose text before the stop is."""
        if self.matched is None and stop_id is not None:
            self._add(self._decoder.decode(self._spelling[stop_id]), look=True)
        if self.matched is None:
            self._add(self._decoder.decode(b"", True), look=True)
        rest, self._unsent = self._unsent, ""
        return rest

    def kept(self) -> tuple[int, int]:
        """(tokens, characters): the most tokens whose text is wholly in `text`, and how many characters they spell.

        The text behind them belongs to a token that a stop cut."""
        if self.matched is None:
            return self.n_tokens, self._length
        return self.fit(self._length)

    def fit(self, n_chars: int) -> tuple[int, int]:
        """(tokens, characters): the most tokens whose text lies wholly in the first `n_chars`, and what they spell."""
        for k in range(len(self._ends) - 1, -1, -1):
            if 0 <= self._ends[k] <= n_chars:
                return k + 1, self._ends[k]
        return 0, 0

    def within(self, start: int, end: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The longest stretch of tokens whose text lies wholly in characters start : end, as (tokens, characters)
        before it and up to its end. An empty one, at `end`, where there is none."""
        n_tokens, n_chars = self.fit(end)
        for k, at in enumerate((0, *self._ends[:n_tokens])):
            if start <= at < n_chars:
                return (k, at), (n_tokens, n_chars)
        return (n_tokens, end), (n_tokens, end)

    def _add(self, new: str, look: bool) -> bool:
        """Append text; False if a stop cut it."""
        cut = self._find(new) if look and new else None
        if cut is not None:
            new = new[: max(0, cut - self._length)]
        self._length += len(new)
        if cut is not None and cut < self._length:  # the stop began in text that was there before
            text = self.text[:cut]
            self._unsent = self._unsent[: len(self._unsent) - (self._length - len(new) - cut)]
            self._pieces, self._length = [text], cut
            return False
        self._pieces.append(new)
        self._unsent += new
        self._tail = (self._tail + new)[-self._reach :] if self._reach else ""
        return cut is None

    def _find(self, new: str) -> int | None:
        """Where the text must be cut because a stop is complete in tail + new; sets `matched`."""
        window = self._tail + new
        best: tuple[int, int] | None = None  # (end, start)
        for stop in self._stops:
            start = window.find(stop, max(0, len(self._tail) - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best, self.matched = (start + len(stop), start), stop
        if self._patterns:
            is_whole = len(self._tail) == self._length
            found = self._patterns.first_end(window, len(self._tail), is_whole)
            if found is not None and (best is None or found[0] < best[0]):
                best, self.matched = (found[0], found[0]), found[1]
        return None if best is None else self._length - len(self._tail) + best[1]

    def _certain(self) -> str:
        """Take from `unsent` all but what may begin a stop."""
        hold = 0
        if self.matched is None:
            for stop in self._stops:
                for n in range(min(len(stop) - 1, len(self._unsent)), hold, -1):
                    if self._unsent.endswith(stop[:n]):
                        hold = n
                        break
        n = len(self._unsent) - hold
        certain, self._unsent = self._unsent[:n], self._unsent[n:]
        return certain
