"""The drafter that runs a smaller model with the same tokenizer.

Like the large model, it is batched over requests. It uses the same page tables: a slot of a page stands for the same
token in the pools of both models. But the small model is only run where that saves time, so it skips parts of the text.
For each page whose KV it has computed, the drafter remembers a digest of the text from its start to the end of the
page. Missing KV is computed as a chunk when it is needed. Wrong KV would only make a bad draft.

When tokens are sampled, the small model uses the random numbers of the same positions: if both models agree on the
distribution, they agree on the token. For greedy requests it proposes its best tokens, and chains in which one of the
first tokens is its second best."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device
from banyan.kernels.ops import Pool, Ragged, ragged
from banyan.radix_cache.cache import Lease
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.sampler import choose
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import Drafter, DraftPosition, PagesLost, Proposal
from banyan.runtime.engine.speculation.step_cost import Cost
from banyan.runtime.model import heads
from banyan.runtime.model.load import Model

# Maximum number of rows of one request per pass. A request that lags further behind catches up over several steps.
MAX_CATCH_UP = 512
N_SECOND = 3  # number of positions at which the second best token is proposed too


class _DraftText:
    """What the small model's pools hold for one request."""

    def __init__(self) -> None:
        self.writer = 0  # the request's number as a writer of slots; a new one for each lease
        self.lease: Lease | None = None
        self.digests = array("L", [0])  # digests of the text up to the end of each page that is known to be right
        self.n_computed = 0  # how many tokens of its text had KV after the last pass
        self.tail: Sequence[int] = ()  # the draft tokens whose KV was computed after them
        self.proposals: list[Proposal] = []


class _DraftTurn:
    """One request while its draft is computed."""

    def __init__(self, request: Request, n: int, start: int) -> None:
        self.request, self.n = request, n
        self.computed = list(request.ids[start : start + MAX_CATCH_UP])  # token ids starting at position `start`
        self.start, self.end = start, start + len(self.computed)
        self.position: Request | DraftPosition = request  # after the last draft token
        self.draft: list[int] = []
        self.second_best: list[int] = []  # the second best token at each of the first N_SECOND positions


class ModelDrafter(Drafter):
    """Runs a smaller model with the same tokenizer as the large one. Proposes the chain of its best tokens (kind 0),
    and chains that follow this chain and end in the second best token of a position (kind 1)."""

    name = "model"
    n_kinds = 2
    keeps_tail = True  # whether KV computed for an accepted draft token is valid for the text

    def __init__(self, network: Model | heads.Eagle, kv: Sequence[tuple[Pool, Pool]], store: KVPool, n_vocab: int,
                 stopwatch: Callable[[], float]) -> None:  # fmt: skip
        """network: the small model. kv: its KV pools, with as many pages and slots as `store`, the large model's.
        n_vocab: the large model's vocabulary size; higher ids are not proposed. stopwatch: returns the time in seconds,
        to measure passes."""
        self._network, self._kv, self._n_vocab, self._stopwatch = network, kv, n_vocab, stopwatch
        self._device, self._page = store.device, store.page
        # For each page: digest of the text up to the page's end; 0: the page is not complete.
        self._digests = array("L", bytes(8 * store.n_pages))
        self._writers = array("L", bytes(8 * store.n_pages))
        self._texts: dict[int, _DraftText] = {}
        self._n_writers = 0
        self.cost: Cost = Cost(8.0, 0.25, 0.25)

    @torch.inference_mode()
    def warm_up(self, n_rows: int) -> None:
        for n in (n_rows, 1, n_rows, 1, 1):
            start = self._stopwatch()
            self._forward([0] * n, [n], [n], [range(-(-n // self._page))], [n])
            self.cost.note(1, n - 1, self._stopwatch() - start)

    # ---- which KV is valid -----------------------------------------------------------------------------------------

    def can_draft(self, request: Request) -> bool:
        return not request.run.images  # the small model reads text only

    def n_behind(self, request: Request) -> int:
        return request.n_total - 1 - self._n_valid(request)

    def _n_valid(self, request: Request) -> int:
        """How many of the request's first tokens have valid KV in its pages, not counting the last token."""
        text = self._texts.setdefault(request.rid, _DraftText())
        if text.lease is not request.lease:
            self._n_writers += 1
            text.lease, text.writer = request.lease, self._n_writers
            text.n_computed, text.tail = 0, ()
            del text.digests[1:]
        ids, page, pages = request.ids, self._page, request.pages
        own = text.n_computed
        for token in text.tail:
            if own == len(ids) or ids[own] != token:
                break
            own += 1
        i = len(text.digests) - 1  # the KV of all pages before it is known to be right
        valid = i * page
        while valid < len(ids) - 1 and i < len(pages):
            end = valid + page
            is_own = self._writers[pages[i]] == text.writer
            if is_own and own < end:
                valid = max(valid, own)
                break
            if end > len(ids):
                break
            digest = _digest(ids, valid, end, text.digests[-1])
            if not is_own and self._digests[pages[i]] != digest:
                break
            text.digests.append(digest)
            i, valid = i + 1, end
        return min(valid, len(ids) - 1)

    def _record(self, turn: _DraftTurn) -> None:
        """Record what the request's slots hold after the passes of a draft, so that `_n_valid` knows which KV is
        valid."""
        request, page, pages = turn.request, self._page, turn.request.pages
        text = self._texts[request.rid]
        text.n_computed = min(turn.end, request.n_total)
        text.tail = turn.computed[request.n_total - turn.start :] if self.keeps_tail else ()
        for i in range(turn.start // page, -(-(turn.start + len(turn.computed)) // page)):
            self._writers[pages[i]] = text.writer
            self._digests[pages[i]] = 0
        while (i := len(text.digests)) * page <= text.n_computed:  # pages that are complete now
            text.digests.append(_digest(request.ids, (i - 1) * page, i * page, text.digests[-1]))
            self._digests[pages[i - 1]] = text.digests[-1]

    # ---- propose ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prepare(self, asks: Sequence[tuple[Request, int]]) -> None:
        """Compute the proposals: one pass over the tokens whose KV is missing, then one per further draft token."""
        start, turns = self._stopwatch(), list[_DraftTurn]()
        for request, n in asks:
            n_valid = self._n_valid(request)
            self._texts[request.rid].proposals = []
            n = min(n, self._network.spec.max_context - request.n_total)
            assert request.lease is not None
            if n > 0 and not request.lease.grow(request.n_total + n - 1):
                n = request.lease.n_slots - request.n_total + 1
            if n > 0:
                turns.append(_DraftTurn(request, n, n_valid))
        if not turns:
            return
        q_lens = [len(turn.computed) for turn in turns]
        logits = self._pass(turns, [token for turn in turns for token in turn.computed], q_lens)
        active, n_passes = self._extend(turns, logits), 1
        while active:
            for turn in active:
                turn.computed.append(turn.draft[-1])
            logits = self._pass(active, [turn.draft[-1] for turn in active], [1] * len(active))
            active, n_passes = self._extend(active, logits), n_passes + 1
        for turn in turns:
            self._record(turn)
            self._texts[turn.request.rid].proposals = _proposals(turn.draft, turn.second_best, self._n_vocab)
        n_behind = sum(turn.end - turn.start - 1 for turn in turns)
        self.cost.note(len(turns), n_behind // n_passes, (self._stopwatch() - start) / n_passes)

    def _pass(self, turns: Sequence[_DraftTurn], ids: Sequence[int], q_lens: Sequence[int]) -> Tensor:
        kv_lens = [turn.start + len(turn.computed) for turn in turns]
        return self._forward(
            ids, q_lens, kv_lens, [turn.request.pages for turn in turns], [turn.request.n_total for turn in turns]
        )

    def _extend(self, turns: Sequence[_DraftTurn], logits: Tensor) -> list[_DraftTurn]:
        """Choose each request's next draft token as the large model's sampler would. Returns the requests that need a
        further token."""
        ready = [i for i, turn in enumerate(turns) if turn.end >= turn.request.n_total]
        if len(ready) < len(turns):  # some requests still lag behind
            logits, turns = logits[ready], [turns[i] for i in ready]
        if not turns:
            return []
        positions = [turn.position for turn in turns]
        if len(turns[0].draft) < N_SECOND and all(position.is_plain for position in positions):
            for turn, (best, second) in zip(turns, logits.topk(2).indices.tolist(), strict=True):
                turn.draft.append(best)
                turn.second_best.append(second)
        else:
            for turn, token in zip(turns, choose(logits, positions)[0], strict=True):
                turn.draft.append(token)
        for turn in turns:
            if not turn.request.is_plain:
                token, counts = turn.draft[-1], turn.position.token_counts
                counts = None if counts is None else counts | {token: counts.get(token, 0) + 1}
                turn.position = DraftPosition(turn.request, len(turn.draft), token, counts)
        return [turn for turn in turns if len(turn.draft) < turn.n and 0 <= turn.draft[-1] < self._n_vocab]

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        text = self._texts.get(request.rid)
        return [] if text is None else [one._replace(tokens=one.tokens[:n]) for one in text.proposals]

    def end(self, request: Request) -> None:
        self._texts.pop(request.rid, None)

    def _forward(self, ids: Sequence[int], q_lens: Sequence[int], kv_lens: Sequence[int],
                 pages: Sequence[Sequence[int]], n_texts: Sequence[int]) -> Tensor:  # fmt: skip
        """Run one forward pass. Returns the logits of each request's last row. n_texts: for each request, how many of
        its tokens belong to the text, not to a draft."""
        shape = ragged(q_lens, kv_lens, pages, self._page, self._device, chunk=self._network.spec.chunk)
        # The small model may have fewer tokens than the large one. A token that it lacks is replaced by another, whose
        # wrong KV only makes a bad draft.
        known = np.minimum(np.array(ids, np.int64), self._network.spec.vocab_size - 1)
        rows = to_device(known, self._device)
        last = to_device(np.cumsum(np.array(q_lens, np.int64)) - 1, self._device)
        return self._compute(rows, shape, last, pages, n_texts)

    def _compute(self, ids: Tensor, shape: Ragged, last: Tensor, pages: Sequence[Sequence[int]],
                 n_texts: Sequence[int]) -> Tensor:  # fmt: skip
        assert not isinstance(self._network, heads.Eagle)
        assert shape.position is not None
        return self._network.forward(ids, shape.position.long(), shape, self._kv, last)


class EarlyExitDrafter(ModelDrafter):
    """Runs the first layers of the large model, and then its output head.

    It reads and writes KV in the large model's own pools: the first layers have computed the text already, and the
    large model overwrites the KV of draft tokens when it verifies them. After Elhoushi et al., LayerSkip: enabling
    early exit inference and self-speculative decoding, 2024."""

    name = "early_exit"

    def __init__(self, move_pages: Callable[[], object], *arguments: Any) -> None:
        """move_pages: function that executes the page moves between device and host memory that the cache has ordered;
        called before each pass. arguments: see ModelDrafter."""
        super().__init__(*arguments)
        self._move_pages = move_pages

    def can_draft(self, request: Request) -> bool:
        return is_computed(request)

    def _n_valid(self, request: Request) -> int:
        self._texts.setdefault(request.rid, _DraftText())
        return request.n_total - 1

    def _pass(self, turns: Sequence[_DraftTurn], ids: Sequence[int], q_lens: Sequence[int]) -> Tensor:
        try:
            self._move_pages()  # the pages that were claimed for the draft may still have to move to host memory
        except Exception as e:
            raise PagesLost from e
        return super()._pass(turns, ids, q_lens)

    def _record(self, turn: _DraftTurn) -> None:
        """Record nothing: the large model writes all KV that is kept."""


def is_computed(request: Request) -> bool:
    """Whether the large model has computed all tokens but the last. False if the request has only one token."""
    return 0 < request.n_computed == request.n_total - 1


def _proposals(draft: list[int], second_best: Sequence[int], n_vocab: int) -> list[Proposal]:
    """The chain of best tokens, and for each of its first tokens a chain that ends in the second best token instead."""
    n = next((k for k, token in enumerate(draft) if not 0 <= token < n_vocab), len(draft))
    out = [Proposal(array("i", draft[:n]))] if n else []
    for k, second in enumerate(second_best[: n + 1]):
        if second < n_vocab:
            out.append(Proposal(array("i", [*draft[:k], second]), 1))
    return out


def _digest(ids: array[int], start: int, end: int, before: int) -> int:
    return crc32(ids[start:end].tobytes(), before) or 1
