"""The drafter that copies from the request's own text: what followed the last tokens when they stood there before."""

from __future__ import annotations

from collections.abc import Sequence

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import Drafter, Proposal
from banyan.runtime.engine.speculation.ngram_index import NgramIndex, Piece

ORDERS = (4, 2, 1)
"""Lengths of the runs that are looked for, in this order: the longer says more."""
STRIDE = 8
"""So many tokens become known together: one call of numpy costs as much for one as for a hundred."""
N_PLACES = 1 << 21
"""Of the index. It is one for all texts that run, as one call then serves many of them; each has its own salt."""


class NgramDrafter(Drafter):
    """See `draft.Drafter`. A kind is an order."""

    name = "ngram"
    n_kinds = len(ORDERS)

    def __init__(self) -> None:
        self._grams = NgramIndex(ORDERS, N_PLACES)
        self._texts: dict[int, _NgramText] = {}  # by rid
        self._n_texts = 0

    def warm_up(self, n_rows: int) -> None:
        self._grams.claim()

    def prepare(self, asks: Sequence[tuple[Request, int]]) -> None:
        pieces = []
        for request, _ in asks:
            text, n = self._texts.get(request.rid), len(request.ids)
            if text is None:
                self._n_texts += 1
                text = self._texts[request.rid] = _NgramText(self._n_texts)
            if n - text.n_known > STRIDE:  # behind the last token stands nothing yet
                pieces.append(Piece(request.ids, text.n_known, n - 1, (text.salt,)))
                text.n_known = n
        if pieces:
            self._grams.put(pieces)

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        text = self._texts.get(request.rid)
        if text is None or len(request.ids) - text.n_known > STRIDE:
            self.prepare([(request, n)])
            text = self._texts[request.rid]
        ids, n_ids = request.ids, len(request.ids)
        at = text.at + n_ids - text.n_seen  # where the last find leads, if the text went on as it does
        if not text.at or at >= n_ids or ids[at - 1] != ids[-1]:
            at = 0
            for kind, (order, hint) in enumerate(zip(ORDERS, self._grams.find(ids, text.salt), strict=True)):
                if order <= hint < n_ids and ids[hint - order : hint] == ids[n_ids - order :]:
                    at, text.kind = hint, kind
                    break
        text.at, text.n_seen = at, n_ids
        return (Proposal(ids[at : at + n], text.kind),) if at else ()

    def end(self, request: Request) -> None:
        self._texts.pop(request.rid, None)


class _NgramText:
    """Of a request: how many of its tokens are known, and where it stood when it had n_seen; 0: nowhere."""

    __slots__ = ("at", "kind", "n_known", "n_seen", "salt")

    def __init__(self, salt: int) -> None:
        self.salt = salt
        self.at = self.kind = self.n_known = self.n_seen = 0
