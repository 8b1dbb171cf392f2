"""The drafter that computes: a smaller model with the same tokenizer says what the large one will probably say.

It runs as the large one does, batched over requests, and on the same pages: the slots of a request's page hold its
tokens in the pools of both. So the tree serves both; what one request computed, all that share the page find. But the
small model goes its own way through the text, since it is asked only where that pays: which of a page's slots hold what
it should be is remembered by page, as a digest of the text up to its end. What is not there is computed when it is
wanted, as a chunk, and garbage would be a bad draft and nothing worse.

Where tokens are sampled it draws as the large one will, with the numbers of the same positions: where the two agree on
the law they agree on the draw. (Daliri et al., Coupling without communication and drafter-invariant speculative
decoding, 2024.) Where not, it proposes its best tokens, and beside the first its second best.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device
from banyan.kernels.ops import ragged
from banyan.radix_cache.cache import Lease
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.sampler import choose
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import Drafter, DraftPosition, Proposal
from banyan.runtime.engine.speculation.step_cost import Cost
from banyan.runtime.model.load import Model as Network

MOST_BEHIND = 512
"""Rows that a pass catches up with for one request; one that is farther behind comes nearer with each step."""
N_SECOND = 3
"""Tokens beside which the second best is proposed too."""


class _DrafterText:
    """What is in the small model's pools of one request."""

    __slots__ = ("digests", "lease", "number", "proposals", "tail", "upto")

    def __init__(self) -> None:
        self.number = 0  # who it is among those who wrote slots
        self.lease: Lease | None = None
        self.digests = array("L", [0])  # of the text up to each page's end, for pages that are known to be right
        self.upto = 0  # of its text, so many tokens were computed at the last pass ...
        self.tail: Sequence[int] = ()  # ... and these behind them, which were proposed
        self.proposals: list[Proposal] = []


class _DraftTurn:
    """One request in the passes of a step."""

    __slots__ = ("computed", "end", "head", "n", "pages", "request", "seconds", "start", "view")

    def __init__(self, request: Request, n: int, start: int) -> None:
        self.request, self.n, self.pages = request, n, request.pages
        self.computed = list(request.ids[start : start + MOST_BEHIND])  # tokens from `start` on
        self.start, self.end = start, start + len(self.computed)
        self.view: Request | DraftPosition = request  # as it stands behind what is proposed
        self.head: list[int] = []
        self.seconds: list[int] = []  # beside the first of them


class ModelDrafter(Drafter):
    """See `draft.Drafter`. A kind is whether a token is the best, or the second."""

    name = "model"
    n_kinds = 2
    keeps_tail = True  # what it computed of a draft is as good as what it would compute of the text

    def __init__(self, network: Network, n_pages: int, page: int, n_vocab: int, device: str,
                 stopwatch: Callable[[], float]) -> None:  # fmt: skip
        """n_pages, page: as the large model's. n_vocab: of the large model; what is beyond it is not proposed. Raises
        OutOfMemory."""
        self._network, self._n_vocab, self._stopwatch = network, n_vocab, stopwatch
        self._store = KVPool(network.spec, n_pages, page, device)
        self._device, self._page = torch.device(device), page
        self._digests = array("L", bytes(8 * n_pages))  # of the text up to the page's end; 0: it is not whole
        self._writers = array("L", bytes(8 * n_pages))
        self._texts: dict[int, _DrafterText] = {}
        self._n_writers = 0
        self.cost: Cost = Cost(8.0, 0.25, 0.25)

    @torch.inference_mode()
    def warm_up(self, n_rows: int) -> None:
        for n in (n_rows, 1, n_rows, 1, 1):
            start = self._stopwatch()
            self._forward([0] * n, [n], [n], [range(-(-n // self._page))], [n])
            self.cost.note(1, n - 1, self._stopwatch() - start)

    # ---- what is there ---------------------------------------------------------------------------------------------

    def n_behind(self, request: Request) -> int:
        return request.n_total - 1 - self._known(request)

    def _known(self, request: Request) -> int:
        """How many of its first tokens are in its pages, the last not counted."""
        text = self._texts.setdefault(request.rid, _DrafterText())
        if text.lease is not request.lease:
            self._n_writers += 1
            text.lease, text.number = request.lease, self._n_writers
            text.upto, text.tail = 0, ()
            del text.digests[1:]
        ids, page, pages = request.ids, self._page, request.pages
        own = text.upto
        for token in text.tail:
            if own == len(ids) or ids[own] != token:
                break
            own += 1
        i = len(text.digests) - 1  # pages before it are right, and held since
        known = i * page
        while known < len(ids) - 1 and i < len(pages):
            end = known + page
            is_own = self._writers[pages[i]] == text.number
            if is_own and own < end:
                known = max(known, own)
                break
            if end > len(ids):
                break
            digest = _digest(ids, known, end, text.digests[-1])
            if not is_own and self._digests[pages[i]] != digest:
                break
            text.digests.append(digest)
            i, known = i + 1, end
        return min(known, len(ids) - 1)

    def _note(self, turn: _DraftTurn) -> None:
        """What its slots hold now."""
        request, page = turn.request, self._page
        text = self._texts[request.rid]
        text.upto = min(turn.end, request.n_total)
        text.tail = turn.computed[request.n_total - turn.start :] if self.keeps_tail else ()
        for i in range(turn.start // page, -(-(turn.start + len(turn.computed)) // page)):
            self._writers[turn.pages[i]] = text.number
            self._digests[turn.pages[i]] = 0
        while (i := len(text.digests)) * page <= text.upto:  # pages that are whole now
            text.digests.append(_digest(request.ids, (i - 1) * page, i * page, text.digests[-1]))
            self._digests[turn.pages[i - 1]] = text.digests[-1]

    # ---- propose ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prepare(self, asks: Sequence[tuple[Request, int]]) -> None:
        """Chains for all of them: a pass over what each has to catch up with, then one for each token more."""
        start, turns = self._stopwatch(), []
        for request, n in asks:
            known = self._known(request)
            self._texts[request.rid].proposals = []
            n = min(n, self._network.spec.max_context - request.n_total)
            assert request.lease is not None
            if n > 0 and not request.lease.grow(request.n_total + n - 1):
                n = request.lease.n_slots - request.n_total + 1
            if n > 0:
                turns.append(_DraftTurn(request, n, known))
        if not turns:
            return
        logits = self._forward(
            [token for turn in turns for token in turn.computed],
            [len(turn.computed) for turn in turns], [turn.end for turn in turns], [turn.pages for turn in turns],
            [turn.request.n_total for turn in turns],
        )  # fmt: skip
        going, n_passes = self._take(turns, logits), 1
        while going:
            for turn in going:
                turn.computed.append(turn.head[-1])
            ends = [turn.start + len(turn.computed) for turn in going]
            logits = self._forward(
                [turn.head[-1] for turn in going], [1] * len(going), ends, [turn.pages for turn in going],
                [turn.request.n_total for turn in going],
            )  # fmt: skip
            going, n_passes = self._take(going, logits), n_passes + 1
        for turn in turns:
            self._note(turn)
            self._texts[turn.request.rid].proposals = _proposals(turn.head, turn.seconds, self._n_vocab)
        n_behind = sum(turn.end - turn.start - 1 for turn in turns)
        self.cost.note(len(turns), n_behind // n_passes, (self._stopwatch() - start) / n_passes)

    def _take(self, turns: Sequence[_DraftTurn], logits: Tensor) -> list[_DraftTurn]:
        """Choose the next token of each, as the large model's sampler would. Returns who wants one more."""
        ready = [i for i, turn in enumerate(turns) if turn.end >= turn.request.n_total]
        if len(ready) < len(turns):  # some are still behind
            logits, turns = logits[ready], [turns[i] for i in ready]
        if not turns:
            return []
        views = [turn.view for turn in turns]
        if len(turns[0].head) < N_SECOND and all(view.is_plain for view in views):
            for turn, (best, second) in zip(turns, logits.topk(2).indices.tolist(), strict=True):
                turn.head.append(best)
                turn.seconds.append(second)
        else:
            for turn, token in zip(turns, choose(logits, views)[0], strict=True):
                turn.head.append(token)
        for turn in turns:
            if not turn.request.is_plain:
                token, seen = turn.head[-1], turn.view.seen
                seen = None if seen is None else seen | {token: seen.get(token, 0) + 1}
                turn.view = DraftPosition(turn.request, len(turn.head), token, seen)
        return [turn for turn in turns if len(turn.head) < turn.n and 0 <= turn.head[-1] < self._n_vocab]

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        text = self._texts.get(request.rid)
        return [] if text is None else [one._replace(tokens=one.tokens[:n]) for one in text.proposals]

    def end(self, request: Request) -> None:
        self._texts.pop(request.rid, None)

    def _forward(self, ids: Sequence[int], q_lens: Sequence[int], kv_lens: Sequence[int],
                 pages: Sequence[Sequence[int]], known: Sequence[int]) -> Tensor:  # fmt: skip
        """Logits behind the last row of each. known: tokens of each that are its text's, not a draft's."""
        shape = ragged(q_lens, kv_lens, pages, self._page, self._device)
        assert shape.position is not None
        rows = to_device(np.array(ids, np.int64), self._device)
        last = to_device(np.cumsum(np.array(q_lens, np.int64)) - 1, self._device)
        return self._network.forward(rows, shape.position.long(), shape, self._store.kv, last)


def _proposals(head: list[int], seconds: Sequence[int], n_vocab: int) -> list[Proposal]:
    """The chain, and beside its first tokens the second best."""
    n = next((k for k, token in enumerate(head) if not 0 <= token < n_vocab), len(head))
    out = [Proposal(array("i", head[:n]))] if n else []
    for k, second in enumerate(seconds[: n + 1]):
        if second < n_vocab:
            out.append(Proposal(array("i", [*head[:k], second]), 1))
    return out


def _digest(ids: array[int], start: int, end: int, before: int) -> int:
    return crc32(ids[start:end].tobytes(), before) or 1
