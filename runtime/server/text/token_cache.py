"""Pieces of text and their ids, kept: what many prompts have in common is encoded once.

A piece is text between two control tokens: a system prompt, the text between two gens, a template's constant turn. One
that is known whole costs a look-up. One that only begins with known text, as where a template's constant text stands
before an argument, is encoded from near the end of that text on.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MOST = 4 << 20
"""Characters that are kept, whole pieces and beginnings of pieces together: the last that were used."""

LONG = 256
"""Characters from which on the beginning of a piece is kept."""

MARGIN = 32
"""Characters at the end of a beginning that are always encoded anew, with what follows them."""


class CachedIds(NamedTuple):
    """The ids of text[:at]: of all of a piece or, of one that begins other pieces, up to the end of a word."""

    ids: array[int]
    at: int


class TokenCache:
    """Ids of pieces of text. encode: text -> an Encoding of `tokenizers`, without special tokens. Thread-safe.

    Only for tokenizers that first cut text into words and then encode each by itself: what they make of the words up to
    a space does not depend on what follows. Where a piece is one word as a whole, no beginning of it is kept.
    """

    def __init__(self, encode: Callable[[str], Any]) -> None:
        self._encode = encode
        self._known: OrderedDict[tuple[bool, str], CachedIds] = OrderedDict()  # (whether it is whole, text)
        self._n_chars = 0
        self._lock = threading.Lock()

    def ids(self, text: str, borders: Sequence[int] = ()) -> list[int]:
        """borders: where a part of `text` ends, in order; many pieces may begin with the same parts."""
        if not text:
            return []
        if (known := self._get(True, text)) is not None:
            return known.ids.tolist()
        ends = [border for border in borders if LONG <= border < len(text)]
        for end in reversed(ends):
            if (known := self._get(False, text[:end])) is not None:
                return known.ids.tolist() + self._encode(text[known.at :]).ids  # type: ignore[no-any-return]
        encoding = self._encode(text)
        self._put(True, text, CachedIds(array("i", encoding.ids), len(text)))
        for end in ends:
            if (beginning := self._beginning(text, end - MARGIN, encoding)) is not None:
                self._put(False, text[:end], beginning)
        return encoding.ids  # type: ignore[no-any-return]

    def _beginning(self, text: str, limit: int, encoding: Any) -> CachedIds | None:
        """The ids of the words that end at the last single space before `limit`."""
        offsets, words = encoding.offsets, encoding.word_ids
        k = bisect_right(offsets, limit, key=lambda offset: offset[0]) - 1
        for i in range(k, max(0, k - MARGIN), -1):
            at = offsets[i - 1][1]  # the space may be left out of the offsets of the token that it belongs to
            if words[i] != words[i - 1] and text[at] == " " and not text[at - 1].isspace() and at <= offsets[i][0]:
                ids = encoding.ids
                return CachedIds(array("i", ids[:i]), at) if self._encode(text[at:]).ids == ids[i:] else None
        return None

    def _get(self, is_whole: bool, text: str) -> CachedIds | None:
        with self._lock:
            if (known := self._known.get((is_whole, text))) is not None:
                self._known.move_to_end((is_whole, text))
            return known

    def _put(self, is_whole: bool, text: str, known: CachedIds) -> None:
        if len(text) > MOST:
            return
        with self._lock:
            if (is_whole, text) not in self._known:
                self._known[is_whole, text] = known
                self._n_chars += len(text)
            while self._n_chars > MOST:
                (_, old), _ = self._known.popitem(last=False)
                self._n_chars -= len(old)
