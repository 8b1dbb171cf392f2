"""A cache of tokenised text: text that many prompts share is tokenised only once.

A piece is the text between two control tokens, such as a system prompt, the text between two gens, or a constant turn
of a template. A known piece costs one lookup. If only the beginning of a piece is known (because a template's constant
text precedes an argument, or because a client sends one growing text), tokenisation starts near the end of that
beginning.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from banyan.runtime.server.text.bounded_cache import BoundedCache
from banyan.runtime.server.text.encoder import EncodedText

MAX_BYTES = 8 << 20
"""Maximum number of bytes of all cached texts and their ids. The least recently used are evicted."""

ENTRY = 450
"""Bytes that a cached text takes besides its characters and ids, including its share of the hash table."""

LONG = 256
"""Minimum length in characters of a beginning that is cached."""

MARGIN = 32
"""Characters at the end of a beginning that are tokenised again, together with the text after them."""

MAX_BORDERS = 4
"""Maximum number of beginnings of one piece that are looked up and cached: the longest ones."""

STEP = 2048
"""A text that grows has a border after every STEP characters. The text before the last border is cached."""


class CachedIds(NamedTuple):
    """The ids of the first `at` characters of a text. They are a whole piece of text, or a beginning that several
    pieces may share and that ends with a word."""

    ids: array[int]
    at: int


class TokenCache:
    """Caches the ids of pieces of text: of whole pieces, and of long beginnings that other pieces may share.
    Thread-safe.

    encode: encodes a text; called like Encoder.encode. The cache may be used only for tokenizers that split text into
    words and encode each word by itself. The ids of the words before a space then do not depend on the text after it.
    If a whole piece is one word, no beginning of it is cached."""

    def __init__(self, encode: Callable[..., EncodedText]) -> None:
        self._encode = encode
        # keys: (owner, whether it is a whole piece, text)
        self.cache: BoundedCache[CachedIds] = BoundedCache(MAX_BYTES)

    def ids(self, text: str, borders: Sequence[int] = (), owner: bytes = b"", grows: bool = False) -> list[int]:
        """Returns the ids of a piece of text.

        borders: the indices at which the piece's parts end, in order; other pieces may begin with the same parts.
        grows: the text may come again with more text after it, so other pieces may begin with any part of it. owner:
        the tenant's namespace; only texts of this owner are looked up."""
        if not text:
            return []
        if (cached := self.cache.get((owner, True, text))) is not None:
            return cached.ids.tolist()
        ends = [border for border in borders[-MAX_BORDERS:] if LONG <= border < len(text)]
        last = max(0, len(text) - MARGIN) // STEP * STEP if grows else 0
        for end in sorted({*ends, *range(last, 0, -STEP)[:MAX_BORDERS]}, reverse=True):
            if (cached := self.cache.get((owner, False, text[:end]))) is not None:
                new = [last] if end < last else []
                break
        else:
            cached, new = CachedIds(array("i"), 0), [*ends, last] if last else ends
        encoding = self._encode(text[cached.at :], offsets=bool(new))
        if not cached.at:
            self._put(owner, True, text, CachedIds(array("i", encoding.ids), len(text)))
        for end in new:
            if (more := self._beginning(text[cached.at :], end - MARGIN - cached.at, encoding)) is not None:
                self._put(owner, False, text[:end], CachedIds(cached.ids + more.ids, cached.at + more.at))
        return cached.ids.tolist() + encoding.ids

    def _put(self, owner: bytes, is_whole: bool, text: str, cached: CachedIds) -> None:
        n_bytes = ENTRY + sys.getsizeof(text) + cached.ids.itemsize * len(cached.ids)
        self.cache.put((owner, is_whole, text), cached, n_bytes)

    def forget(self, owner: bytes) -> None:
        """Drop all texts of an owner."""
        self.cache.drop(lambda key: key[0] == owner)

    def _beginning(self, text: str, limit: int, encoding: EncodedText) -> CachedIds | None:
        """Returns the ids of a beginning of `text`, and its length in characters. The beginning ends before a single
        space between two words, close before index `limit`. Returns None if there is no such space, or if the text
        after the beginning is encoded differently when it stands alone."""
        offsets, words = encoding.offsets, encoding.word_ids
        k = bisect_right(offsets, limit, key=lambda offset: offset[0]) - 1
        for i in range(k, max(0, k - MARGIN), -1):
            at = offsets[i - 1][1]  # offsets of a token may leave out the space that belongs to it
            if words[i] != words[i - 1] and text[at] == " " and not text[at - 1].isspace() and at <= offsets[i][0]:
                ids = encoding.ids
                return CachedIds(array("i", ids[:i]), at) if self._encode(text[at:]).ids == ids[i:] else None
        return None
