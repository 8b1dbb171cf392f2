"""The drafter that copies from other texts: what the radix tree holds, and generations that ended or run beside.

Each new token of any request is known here once: of a prompt what the tree did not have (the rest was new in the
request that put it there), and the output as it grows. Runs of one program are looked for first, since its branches and
turns say what the others said; then runs of all who share a namespace, and of nobody else. (Suffix decoding: Oliaro et
al., SuffixDecoding, 2024; here with runs of fixed lengths in place of a suffix tree, so that memory is bounded and a
look costs the same at any size.)

Of outputs that a constraint holds it is also known what they quoted of their prompts, and from between what: see
`quotes`. In free text quotes are few and short.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import NamedTuple
from zlib import crc32

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import Drafter, Proposal
from banyan.runtime.engine.speculation.ngram_index import NgramIndex, Piece
from banyan.runtime.engine.speculation.quotes import HOPE, LEAST, Quotes, Quoting

ORDERS = (16, 6, 3)
"""Lengths of the runs that are looked for, in this order. The longest reaches from the start of a turn over its marker,
which all turns have, into what was asked."""
STRIDE, MOST = 32, 1 << 13
"""So many tokens of a running output become known together, and of all texts together at most: to put them into the
index takes 0.1 ms, of few as of many. What has ended is put when somebody is asked about."""
QUOTED = 2 * len(ORDERS)
HARDLY = frozenset(kind for kind in range(QUOTED) if kind % len(ORDERS))
"""Kinds of what is found. Where it was by a run shorter than the longest, a quote is likelier."""
N_TOKENS = 1 << 20
"""Tokens of ended texts that are kept; of more, the oldest texts go."""
N_PLACES = 8
"""Of the index, for each of them: the runs of three lengths before it are put, for its program and for everyone."""
_N_BITS = 24  # of a number: where in its text a run ends. No text is longer, or what is longer is not known.


class _TreeText(NamedTuple):
    """Token `base + i` of a text is ids[i]; of one that runs, ids grow."""

    ids: array[int]
    base: int
    namespace: bytes


class _Reader:
    """A request that runs: its text, and where it reads in another."""

    __slots__ = ("at", "doubts", "first", "kind", "n_known", "n_seen", "number", "quoting", "salts", "source")

    def __init__(self, number: int, first: int, salts: tuple[int, int], quoting: Quoting | None) -> None:
        """first: of its tokens, the first that is not known of another text."""
        self.number, self.first, self.salts = number, first, salts
        self.n_known = first
        self.quoting = quoting
        self.source: array[int] | None = None
        self.doubts: list[int] = []  # of a quote: tokens of the source
        self.at = self.kind = self.n_seen = 0


class TreeDrafter(Drafter):
    """See `draft.Drafter`. A kind is an order, and whose text it was found in."""

    name = "tree"
    n_kinds = QUOTED + 1

    def __init__(self, n_tokens: int = N_TOKENS) -> None:
        self._n_max, self._n_kept = n_tokens, 0
        self._grams = NgramIndex(ORDERS, N_PLACES * n_tokens)
        self._pieces: list[Piece] = []  # to be put
        self._n_pending = 0  # tokens of these
        self._texts: dict[int, _TreeText] = {}  # by number, oldest first
        self._ended: dict[int, int] = {}  # number -> tokens, oldest first
        self._readers: dict[int, _Reader] = {}
        self._quotes = Quotes()
        self._n_texts = 0

    def warm_up(self, n_rows: int) -> None:
        self._grams.claim()

    def learn(self, spelling: Sequence[bytes], marks: Collection[int]) -> None:
        self._quotes.learn(spelling, marks)

    @property
    def n_tokens(self) -> int:
        """Of ended texts, that are kept."""
        return self._n_kept

    def prepare(self, asks: Sequence[tuple[Request, int]]) -> None:
        for request, _ in asks:
            self._reader(request)

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        reader = self._reader(request)
        if self._pieces:
            self._put()
        ids, n_ids = request.ids, len(request.ids)
        at, source = reader.at + n_ids - reader.n_seen, reader.source
        quoting = reader.quoting
        if quoting is not None and reader.kind == QUOTED:
            quoting.judge(ids[n_ids - at :])
        if source is not None and (at >= len(source) or source[at - 2 : at] != ids[n_ids - 2 :]):
            source = None
        least = LEAST if source is None else HOPE
        if source is None:
            source, at, reader.kind = self._look(request, reader)
        if quoting is not None and (source is None or reader.kind in HARDLY):
            quotes, doubts = self._quotes.propose(quoting, request, n, least)
            if quotes and (source is None or source[at : at + len(quotes)] != quotes):  # else it says more
                source, at, reader.kind, reader.doubts = quotes, 0, QUOTED, doubts
        reader.source, reader.at, reader.n_seen = source, at, n_ids
        if source is None:
            return ()
        doubtful = [i - at for i in reader.doubts if at <= i < at + n] if reader.kind == QUOTED else None
        return (Proposal(source[at : at + n], reader.kind, doubtful),)

    def end(self, request: Request) -> None:
        reader = self._readers.pop(request.rid, None)
        if reader is None:
            if request.n_cached < 0:  # it never ran
                return
            reader = self._begin(request)
        self._learn(reader, request.ids)
        if reader.quoting is not None:
            self._quotes.end(reader.quoting, request)
        base = max(0, reader.first - max(ORDERS))
        kept = request.ids[base:]
        self._texts[reader.number] = _TreeText(kept, base, request.run.namespace)
        self._ended[reader.number] = len(kept)
        self._n_kept += len(kept)
        while self._n_kept > self._n_max:
            number = next(iter(self._ended))
            self._n_kept -= self._ended.pop(number)
            del self._texts[number]

    def _reader(self, request: Request) -> _Reader:
        reader = self._readers.get(request.rid)
        if reader is None:
            reader = self._readers[request.rid] = self._begin(request)
        if len(request.ids) - reader.n_known > STRIDE:
            self._learn(reader, request.ids)
        return reader

    def _begin(self, request: Request) -> _Reader:
        run = request.run
        number, self._n_texts = self._n_texts, self._n_texts + 1
        self._texts[number] = _TreeText(request.ids, 0, run.namespace)
        everyone = crc32(run.namespace)
        kin = crc32(repr((run.client, run.order[:1])).encode(), everyone)
        return _Reader(number, request.n_cached, (kin, everyone), None if request.guide is None else Quoting(request))

    def _learn(self, reader: _Reader, ids: array[int]) -> None:
        """All its tokens but the last, behind which stands nothing yet."""
        n = min(len(ids), 1 << _N_BITS) - 1
        if n >= reader.n_known:
            self._pieces.append(Piece(ids, reader.n_known, n, reader.salts, reader.number << _N_BITS))
            self._n_pending += n - reader.n_known
        reader.n_known = n + 1
        if self._n_pending > MOST:
            self._put()

    def _put(self) -> None:
        self._grams.put(self._pieces)
        self._pieces, self._n_pending = [], 0

    def _look(self, request: Request, reader: _Reader) -> tuple[array[int] | None, int, int]:
        """(text, where in it what may come next stands, kind); (None, 0, 0): it is nowhere."""
        ids, n = request.ids, len(request.ids)
        for kind, number in enumerate(self._grams.find(ids, *reader.salts)):
            text = self._texts.get(number >> _N_BITS)
            if text is not None and text.namespace == request.run.namespace:
                at, order = (number & (1 << _N_BITS) - 1) - text.base, ORDERS[kind % len(ORDERS)]
                if order <= at < len(text.ids) and text.ids[at - order : at] == ids[n - order :]:
                    return text.ids, at, kind
        return None, 0, 0
