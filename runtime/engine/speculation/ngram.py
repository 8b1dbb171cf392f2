"""The drafter that copies from the request's own text: it finds where the last tokens occurred before, and proposes
what followed them there.

(Saxena, Prompt lookup decoding, 2023.)
"""

from __future__ import annotations

from collections.abc import Sequence

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import Drafter, Proposal
from banyan.runtime.engine.speculation.ngram_index import NgramIndex, Piece

ORDERS = (4, 2, 1)  # lengths of the n-grams that are looked up, in this order
STRIDE = 8
"""A text is indexed again after this many new tokens, because a numpy call costs as much for one token as for a
hundred."""
INDEX_SIZE = 1 << 21
"""Entries of the index. All requests share it, each with its own salt, so that one call indexes many texts."""


class _NgramText:
    """What the drafter knows of one request's text. n_indexed: how many of its tokens are indexed. n_seen: length of
    the text at the last proposal. at: the position in the text from which the last proposal was copied; 0: there was
    none."""

    def __init__(self, salt: int) -> None:
        self.salt = salt
        self.at = self.kind = self.n_indexed = self.n_seen = 0


class NgramDrafter(Drafter):
    """Copies from the request's own text. A proposal's kind is the index in ORDERS of the n-gram's length."""

    name = "ngram"
    n_kinds = len(ORDERS)

    def __init__(self) -> None:
        self._index = NgramIndex(ORDERS, INDEX_SIZE)
        self._texts: dict[int, _NgramText] = {}  # by rid
        self._n_texts = 0

    def warm_up(self, n_rows: int) -> None:
        self._index.claim()

    def prepare(self, asks: Sequence[tuple[Request, int]]) -> None:
        pieces = []
        for request, _ in asks:
            text, n = self._texts.get(request.rid), len(request.ids)
            if text is None:
                self._n_texts += 1
                text = self._texts[request.rid] = _NgramText(self._n_texts)
            if n - text.n_indexed > STRIDE:  # nothing follows the last token yet
                pieces.append(Piece(request.ids, text.n_indexed, n - 1, (text.salt,)))
                text.n_indexed = n
        if pieces:
            self._index.put(pieces)

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        text = self._texts.get(request.rid)
        if text is None or len(request.ids) - text.n_indexed > STRIDE:
            self.prepare([(request, n)])
            text = self._texts[request.rid]
        ids, n_ids = request.ids, len(request.ids)
        at = text.at + n_ids - text.n_seen  # where the last match continues, if the text followed it
        if not text.at or at >= n_ids or ids[at - 1] != ids[-1]:
            at = 0
            for kind, (order, hint) in enumerate(zip(ORDERS, self._index.find(ids, text.salt), strict=True)):
                if order <= hint < n_ids and ids[hint - order : hint] == ids[n_ids - order :]:
                    at, text.kind = hint, kind
                    break
        text.at, text.n_seen = at, n_ids
        return (Proposal(ids[at : at + n], text.kind),) if at else ()

    def end(self, request: Request) -> None:
        self._texts.pop(request.rid, None)
