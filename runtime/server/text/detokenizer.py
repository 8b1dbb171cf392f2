"""Incremental detokenization of outputs. The text comes in whole characters only, and without an end that a stop string
may still cut off."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence

from banyan.runtime.server.text.stop_patterns import REACH, Patterns
from banyan.runtime.server.text.stop_strings import StopStrings, stop_strings


class Detokenizer:
    """Decodes the tokens of one output to text, and ends the text at a stop.

    A stop string ends the text before itself, also if it begins inside a token or spans several tokens. A stop pattern
    ends the text after its match. If several stops match, the one that ends at the smallest character index counts. If
    two stops end at the same index, the longer stop string counts, and a stop string counts before a pattern. So the
    result does not depend on how the text is split into tokens. A stop counts only if at least `min_tokens` tokens come
    before the token that completes it.

    text       the text so far, cut at the stop
    matched    the stop string or pattern that ended the text, or None
    n_tokens   tokens taken so far, including the token that completed a stop
    """

    def __init__(
        self,
        spelling: Sequence[bytes],
        hidden: Collection[int],
        stops: Iterable[str] = (),
        min_tokens: int = 0,
        patterns: Sequence[str] = (),
    ) -> None:
        """spelling: bytes of each id. hidden: ids without text. BadProgram: invalid patterns; `feed` and `finish`
        raise it for patterns that take too long."""
        self._spelling, self._hidden, self._min_tokens = spelling, hidden, min_tokens
        given = tuple(dict.fromkeys(stops))
        self._stops = stop_strings(given) if given else None
        self._stop_state = StopStrings.START
        self._patterns = Patterns(patterns) if patterns else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._length = 0
        self._tail = ""  # the last REACH characters of the text, if there are patterns
        self._unsent = ""
        self._ends: list[int] = []  # characters of the first k + 1 tokens; -1 if they end inside a character
        self.matched: str | None = None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def n_tokens(self) -> int:
        return len(self._ends)

    def feed(self, ids: Iterable[int]) -> str:
        """Take ids, and return the new text that no stop can cut any more. Ids after a stop are ignored."""
        for i in ids:
            if self.matched is not None:
                break
            spelled = b"" if i in self._hidden or i >= len(self._spelling) else self._spelling[i]
            is_added = self._add(self._decoder.decode(spelled), search=len(self._ends) >= self._min_tokens)
            self._ends.append(self._length if is_added and not self._decoder.getstate()[0] else -1)
        return self._take_certain()

    def finish(self, stop_id: int | None = None) -> str:
        """End the output. Returns the text that `feed` held back.

        stop_id: the token that ended the output, if its text contains a whole stop string. The part of its text before
        the stop string is added to `text`, but `n_tokens` does not count the token."""
        if self.matched is None and stop_id is not None:
            self._add(self._decoder.decode(self._spelling[stop_id]), search=True)
        if self.matched is None:
            self._add(self._decoder.decode(b"", True), search=True)
        rest, self._unsent = self._unsent, ""
        return rest

    def kept(self) -> tuple[int, int]:
        """(tokens, characters) of the longest prefix of tokens whose text is wholly in `text`. If `text` is longer than
        these characters, the rest belongs to tokens that a stop has cut."""
        return (self.n_tokens, self._length) if self.matched is None else self.fit(self._length)

    def fit(self, n_chars: int) -> tuple[int, int]:
        """(tokens, characters) of the longest prefix of tokens that spells at most `n_chars` characters."""
        for k in range(len(self._ends) - 1, -1, -1):
            if 0 <= self._ends[k] <= n_chars:
                return k + 1, self._ends[k]
        return 0, 0

    def n_chars(self, n_tokens: int) -> int:
        """The number of whole characters of the first `n_tokens` tokens."""
        return next((end for end in reversed(self._ends[:n_tokens]) if end >= 0), 0)

    def within(self, start: int, end: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Find the longest run of tokens whose text lies within the characters start : end.

        Returns two pairs (tokens, characters): how many come before the run, and how many up to its end. If no token
        lies within, the pairs are equal, and have `end` characters."""
        n_tokens, n_chars = self.fit(end)
        for k, at in enumerate((0, *self._ends[:n_tokens])):
            if start <= at < n_chars:
                return (k, at), (n_tokens, n_chars)
        return (n_tokens, end), (n_tokens, end)

    def silent(self, start: int, end: int) -> int:
        """Returns the index, among the characters start : end, of the first position at which there is a token without
        text; `end` if there is none."""
        before = 0
        for at in self._ends:
            if start <= at == before:
                return min(at, end)
            if at >= end:
                break
            before = at
        return end

    def _add(self, new: str, search: bool) -> bool:
        """Append text. Returns whether all of `new` was kept: False if a stop has cut it."""
        end = self._length + len(new)
        has_stops = self._stops is not None or self._patterns is not None
        cut = self._find_stop(new, search) if has_stops else None
        if cut is not None:
            new = new[: max(0, cut - self._length)]
        self._length += len(new)
        if cut is not None and cut < self._length:  # the stop began in earlier text
            text = self.text[:cut]
            self._unsent = self._unsent[: len(self._unsent) - (self._length - len(new) - cut)]
            self._pieces, self._length = [text], cut
            return False
        self._pieces.append(new)
        self._unsent += new
        if self._patterns is not None:
            self._tail = (self._tail + new)[-REACH:]
        return cut is None or cut == end

    def _find_stop(self, new: str, search: bool) -> int | None:
        """Find where the text must be cut because a stop is complete in `new`. Returns the character index of the cut,
        and sets `matched`; returns None if no stop is complete. search: False while fewer than `min_tokens` tokens have
        come, when stops do not count yet."""
        best: tuple[int, int] | None = None  # (end, start), in characters of the whole text
        if self._stops is not None:
            self._stop_state, n, stop = self._stops.walk(self._stop_state, new, search)
            if stop is not None:
                end = self._length + n
                best, self.matched = (end, end - len(stop)), stop
        if self._patterns is not None and search and new:
            n_before = self._length - len(self._tail)
            found = self._patterns.first_end(self._tail + new, len(self._tail), is_whole=not n_before)
            if found is not None and (best is None or n_before + found[0] < best[0]):
                best, self.matched = (n_before + found[0],) * 2, found[1]
        return None if best is None else best[1]

    def _take_certain(self) -> str:
        """Return the unsent text, except its end if that may be the beginning of a stop, and mark it as sent."""
        certain, self._unsent = self._unsent, ""
        if self._stops is not None and self.matched is None and (n := self._stops.n_begun(self._stop_state)):
            certain, self._unsent = certain[:-n], certain[-n:]
        return certain
