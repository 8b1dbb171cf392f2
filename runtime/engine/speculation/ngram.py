"""The drafter that copies from the request's own text: what followed the last tokens when they stood there before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from banyan.runtime.engine.request import Request
from banyan.runtime.engine.speculation.draft import Drafter, Proposal
from banyan.runtime.engine.speculation.grams import Grams, put

ORDERS = (4, 2, 1)
"""Lengths of the runs that are looked for, in this order: the longer says more."""
STRIDE = 8
"""So many tokens become known together: one call of numpy costs as much for one as for a hundred."""


class Ngram(Drafter):
    """See `draft.Drafter`. A kind is an order."""

    name = "ngram"
    n_kinds = len(ORDERS)

    def __init__(self) -> None:
        self._texts: dict[int, _Text] = {}

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        text = self._texts.get(request.rid)
        if text is None:
            text = self._texts[request.rid] = _Text(request.ids)
        at = text.find()
        return (Proposal(request.ids[at : at + n], text.kind),) if at else ()

    def end(self, request: Request) -> None:
        self._texts.pop(request.rid, None)


class _Text:
    """One request's tokens, which grow, and where runs of them stand."""

    __slots__ = ("_at", "_grams", "_ids", "_n_known", "_n_max", "_n_seen", "kind")

    def __init__(self, ids: array[int]) -> None:
        self._ids, self.kind = ids, 0
        self._at = self._n_seen = 0
        self._make()

    def _make(self) -> None:
        """Tables for twice the text."""
        self._n_known, self._n_max = 0, 2 * len(self._ids)
        self._grams = [Grams(order, 2 * self._n_max) for order in ORDERS]

    def find(self) -> int:
        """Where what may come next stands; 0: nowhere."""
        ids, n = self._ids, len(self._ids)
        if n - self._n_known > STRIDE:
            if n > self._n_max:
                self._make()
            put(self._grams, ids, self._n_known, n - 1, (0,))  # behind the last token stands nothing yet
            self._n_known = n
        at = self._at + n - self._n_seen  # where the last find leads, if the text went on as it does
        if not self._at or at >= n or ids[at - 1] != ids[-1]:
            at = 0
            for kind, grams in enumerate(self._grams):
                (hint,), order = grams.find(ids, 0), grams.order
                if order <= hint < n and ids[hint - order : hint] == ids[n - order :]:
                    at, self.kind = hint, kind
                    break
        self._at, self._n_seen = at, n
        return at
