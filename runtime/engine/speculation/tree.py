"""The drafter that copies from other texts: from prompts in the radix tree, and from ended and running outputs.

Each new token of any request is indexed once. N-grams of the same program are looked up first, because its branches and
turns repeat each other, then those of all requests in the namespace. (Oliaro et al., SuffixDecoding, 2024; here with
n-grams of fixed lengths in place of a suffix tree, so that memory is bounded and a lookup costs the same at any size.)

From outputs under a constraint it also learns what they quoted from their prompts: see `quotes`."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple
from zlib import crc32

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import Drafter, Proposal
from banyan.runtime.engine.speculation.ngram_index import NgramIndex, Piece
from banyan.runtime.engine.speculation.quotes import FIRST_RATE, MIN_RATE, QuoteIndex, QuoteState

ORDERS = (16, 6, 3)
"""Lengths of the n-grams that are looked up, in this order. At the start of an answer, the longest n-gram includes the
role marker, which all answers share, and the end of the question."""
STRIDE, MAX_PENDING = 32, 1 << 13
"""STRIDE: a running text is queued for the index after this many new tokens. MAX_PENDING: most queued tokens of all
texts. An index update takes 0.1 ms, whether for few or many tokens. Ended texts are queued until the next proposal."""
QUOTED = 2 * len(ORDERS)
WEAK = frozenset(kind for kind in range(QUOTED) if kind % len(ORDERS))
"""The kinds of proposals that follow an n-gram other than the longest. A quote is more likely to be right."""
N_TOKENS = 1 << 20  # most tokens of ended texts; beyond that the oldest are evicted
TEXT_BYTES = 300  # bytes that an ended text takes besides its tokens
MIN_TOKENS = 32  # if ended texts are shorter on average, fewer tokens are kept, because of TEXT_BYTES
ENTRIES_PER_TOKEN = 8  # index entries: three lengths are indexed for the program and for everyone
_N_BITS = 24  # lower bits of an index number: the position in the text. Tokens beyond 2^24 of a text are not indexed


class _TreeText(NamedTuple):
    """A text that drafts are copied from. ids: its tokens starting at position `base`; while the request runs, this
    array grows. namespace: only requests of this namespace may copy from it."""

    ids: array[int]
    base: int
    namespace: bytes


class _Reader:
    """A running request: its text, and the source it copies from."""

    def __init__(self, number: int, first: int, salts: tuple[int, int], quotes: QuoteState | None) -> None:
        """first: index of the first token to add to the n-gram index; another text has added those before it. salts:
        hash salts of the program and of the namespace. quotes: None if no quotes are proposed for this request."""
        self.number, self.first, self.salts, self.quotes = number, first, salts, quotes
        self.n_indexed = first
        self.source: array[int] | None = None
        self.uncertain: list[int] = []  # indexes of uncertain tokens in the source, if it was made of quotes
        self.at = self.kind = self.n_seen = 0  # position in the source, when the request had n_seen tokens


class TreeDrafter(Drafter):
    """Proposes copies from other texts: prompts in the radix tree, and ended and running outputs.

    The kind of a proposal is an int. It is i if the n-gram of length ORDERS[i] was found in a text of the same program,
    len(ORDERS) + i if it was found in another text, and QUOTED if a rule of `quotes` made the proposal."""

    name = "tree"
    n_kinds = QUOTED + 1

    def __init__(self, n_tokens: int = N_TOKENS) -> None:
        self._max_tokens = n_tokens
        self.n_tokens = 0  # tokens of all ended texts
        self._index = NgramIndex(ORDERS, ENTRIES_PER_TOKEN * n_tokens)
        self._pieces: list[Piece] = []  # queued for the index
        self._n_pending = 0  # their tokens
        self._texts: dict[int, _TreeText] = {}  # by number
        self._ended: deque[int] = deque()  # numbers of ended texts, oldest first
        self._readers: dict[int, _Reader] = {}  # by rid
        self._quotes = QuoteIndex()
        self._n_texts = 0

    def warm_up(self, n_rows: int) -> None:
        self._index.claim()

    def set_vocabulary(self, spelling: Sequence[bytes], control: Collection[int]) -> None:
        self._quotes.set_vocabulary(spelling, control)

    def prepare(self, asks: Sequence[tuple[Request, int]]) -> None:
        for request, _ in asks:
            self._reader(request)

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        reader = self._reader(request)
        if self._pieces:
            self._update_index()
        ids, n_ids = request.ids, len(request.ids)
        at, source = reader.at + n_ids - reader.n_seen, reader.source
        state = reader.quotes
        if state is not None and reader.kind == QUOTED:
            state.judge(ids[n_ids - at :])
        if source is not None and (at >= len(source) or source[at - 2 : at] != ids[n_ids - 2 :]):
            source = None
        min_rate = MIN_RATE if source is None else FIRST_RATE
        if source is None:
            source, at, reader.kind = self._find(request, reader)
        if state is not None and (source is None or reader.kind in WEAK):
            quotes, uncertain = self._quotes.propose(state, request, n, min_rate)
            # If the source begins with the quotes, it also knows what comes after them.
            if quotes and (source is None or source[at : at + len(quotes)] != quotes):
                source, at, reader.kind, reader.uncertain = quotes, 0, QUOTED, uncertain
        reader.source, reader.at, reader.n_seen = source, at, n_ids
        if source is None:
            return ()
        uncertain_here = [i - at for i in reader.uncertain if at <= i < at + n] if reader.kind == QUOTED else None
        return (Proposal(source[at : at + n], reader.kind, uncertain_here),)

    def end(self, request: Request) -> None:
        reader = self._readers.pop(request.rid, None)
        if reader is None:
            if request.n_cached < 0:  # the request never ran
                return
            reader = self._begin(request)
        self._queue(reader, request.ids)
        if reader.quotes is not None:
            self._quotes.end(reader.quotes, request)
        base = max(0, reader.first - max(ORDERS))
        kept = request.ids[base:]
        self._texts[reader.number] = _TreeText(kept, base, request.run.namespace)
        self._ended.append(reader.number)
        self.n_tokens += len(kept)
        while self.n_tokens > self._max_tokens or MIN_TOKENS * len(self._ended) > self._max_tokens:
            self.n_tokens -= len(self._texts.pop(self._ended.popleft()).ids)

    def kept(self) -> dict[str, tuple[int, int]]:
        def n_bytes(n_tokens: int, n_texts: int) -> int:
            return 4 * n_tokens + TEXT_BYTES * n_texts

        most = n_bytes(self._max_tokens, self._max_tokens // MIN_TOKENS)
        return {"draft_texts": (n_bytes(self.n_tokens, len(self._ended)), most), "quote_rules": self._quotes.kept()}

    def _reader(self, request: Request) -> _Reader:
        reader = self._readers.get(request.rid)
        if reader is None:
            reader = self._readers[request.rid] = self._begin(request)
        if len(request.ids) - reader.n_indexed > STRIDE:
            self._queue(reader, request.ids)
        return reader

    def _begin(self, request: Request) -> _Reader:
        run = request.run
        number, self._n_texts = self._n_texts, self._n_texts + 1
        self._texts[number] = _TreeText(request.ids, 0, run.namespace)
        everyone = crc32(run.namespace)
        program = crc32(repr((run.client, run.order[:1])).encode(), everyone)
        quotes = None if request.guide is None or run.images else QuoteState(request)
        return _Reader(number, request.n_cached, (program, everyone), quotes)

    def _queue(self, reader: _Reader, ids: array[int]) -> None:
        """Queue a text's new tokens for the n-gram index, except the last token, because nothing follows it yet. The
        queue copies the tokens, because it must not keep whole texts alive: a text may end before the index is
        updated."""
        n = min(len(ids), 1 << _N_BITS) - 1
        if n >= reader.n_indexed:
            first = max(0, reader.n_indexed - max(ORDERS))
            base = (reader.number << _N_BITS) + first
            self._pieces.append(Piece(ids[first:n], reader.n_indexed - first, n - first, reader.salts, base))
            self._n_pending += n + 1 - reader.n_indexed
        reader.n_indexed = n + 1
        if self._n_pending > MAX_PENDING:
            self._update_index()

    def _update_index(self) -> None:
        self._index.put(self._pieces)
        self._pieces, self._n_pending = [], 0

    def _find(self, request: Request, reader: _Reader) -> tuple[array[int] | None, int, int]:
        """Find a text to copy from. Returns the text, the position in it of the token that may come next, and the kind
        of the match; (None, 0, 0) if there is none."""
        ids, n = request.ids, len(request.ids)
        for kind, number in enumerate(self._index.find(ids, *reader.salts)):
            text = self._texts.get(number >> _N_BITS)
            if text is not None and text.namespace == request.run.namespace:
                at, order = (number & (1 << _N_BITS) - 1) - text.base, ORDERS[kind % len(ORDERS)]
                if order <= at < len(text.ids) and text.ids[at - order : at] == ids[n - order :]:
                    return text.ids, at, kind
        return None, 0, 0
