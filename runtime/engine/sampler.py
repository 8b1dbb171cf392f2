"""From logits to tokens: what `Sampling` says, for all rows of a step at once.

The order is: repetition penalty, frequency and presence penalty, logit bias, min_tokens, the constraint's mask; then,
where temperature is above 0, temperature, top-k, top-p (of what top-k left), min-p, and one draw. Logprobs are the
model's own: those of the logits as they came, before all of that.

A draw is a function of (seed, sample, position in the text) and of the row (`kernels/draw/reference.py`): a request
draws the same tokens whatever it is batched with, and again after a retraction or in another engine. On a GPU nothing
here waits for the device before `Drawn.read`, which waits for these draws and not for what was launched behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device
from banyan.kernels.draw.rows import Rows, draw_rows
from banyan.kernels.ops import draw, edit_logits, mask_logits
from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.guides import Masks, takes_best
from banyan.runtime.engine.scheduling.request import Request, Result
from banyan.runtime.engine.speculation.draft import DraftPosition
from banyan.runtime.protocol.wire import TopLogprobs

Logprobs = dict[int, list[TopLogprobs]]
_MOST_K = 2**31 - 1  # no vocabulary has more


class Drawn(NamedTuple):
    """What a step draws. The device may still be at it.

    ids: int64 [n_drawn], there; None where they are known here, or there are none. read: wait for them.
    """

    ids: Tensor | None
    read: Callable[[], Result]


@torch.inference_mode()
def sample(logits: Tensor, batch: Batch, masks: Masks | None = None) -> Drawn:
    """logits: float32 [n_scored + n_drawn, vocab], changed in place; masks of the rows that draw."""
    scores = _scores(logits[: len(batch.targets)], batch) if batch.scored else None
    ids, chosen = _choose(batch.drawing(logits), batch.drawn, masks) if batch.drawn else (None, None)
    wait = _landing(logits)

    def read() -> Result:
        wait()
        return Result(*(chosen() if chosen else ([], {})), *(scores() if scores else ({}, {})))

    return Drawn(ids, read)


@torch.inference_mode()
def choose(
    logits: Tensor, requests: Sequence[Request | DraftPosition], masks: Masks | None = None
) -> tuple[list[int], Logprobs]:
    """One token for each row of `logits`, [n, vocab], and the logprobs that were asked for, by rid.

    Where there is nothing to choose from (NaN, or all forbidden), the token is NO_TOKEN, -1.
    """
    _, chosen = _choose(logits, requests, masks)
    _landing(logits)()
    return chosen()


def _choose(
    logits: Tensor, requests: Sequence[Request | DraftPosition], masks: Masks | None
) -> tuple[Tensor | None, Callable[[], tuple[list[int], Logprobs]]]:
    """`choose`, in two: the tokens on the device, None where they are known; and what is to be read of them."""
    if not logits.is_cuda and all(r.is_plain or takes_best(r) for r in requests):
        if masks is not None:
            mask_logits(logits, *masks)
        rows = logits.numpy()
        best = rows.argmax(-1).tolist()
        if all(isfinite(row[i]) for row, i in zip(rows, best, strict=True)):  # the greedy path of a CPU: few calls
            return None, lambda: (best, {})
    asked = [i for i, r in enumerate(requests) if r.sampling.logprobs]
    at = to_device(np.array(asked, np.int64), logits.device)
    own = logits[at].log_softmax(-1) if asked else None
    if any(r.has_edits for r in requests):
        edit(logits, requests)
    if masks is not None:
        mask_logits(logits, *masks)
    ids = draw(logits, _rows(requests, logits.device))
    logprobs = None if own is None else _logprobs(own, ids[at].clamp(min=0), [requests[i] for i in asked])
    host = _to_host(ids)
    return ids, lambda: (host.tolist(), {} if logprobs is None else logprobs())


def _to_host(tensor: Tensor) -> Tensor:
    """It, on the host; from a GPU it is there when `_landing` says so."""
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _landing(like: Tensor) -> Callable[[], None]:
    """Call it to wait for all that the device of a tensor was given by now, and for no more."""
    if not like.is_cuda:
        return _nothing
    event = torch.cuda.Event()
    event.record()
    return event.synchronize


def _nothing() -> None:
    pass


def _rows(requests: Sequence[Request | DraftPosition], device: torch.device) -> Rows:
    """What the draw has to know of them."""
    s = [r.sampling for r in requests]
    runs = [r.run for r in requests]
    return draw_rows(
        [x.temperature for x in s],
        [max(0, min(x.top_k, _MOST_K)) for x in s],
        [x.top_p for x in s],
        [x.min_p for x in s],
        [run.seed for run in runs],
        [run.sample for run in runs],
        [r.n_total for r in requests],
        device,
    )


def edit(logits: Tensor, requests: Sequence[Request | DraftPosition]) -> None:
    """Penalties, bias and min_tokens, in place."""
    penalties, biases = _Cells(), _Cells()  # apart, as a token may have both
    for row, r in enumerate(requests):
        if not r.has_edits:
            continue
        s = r.sampling
        if r.seen:
            counts = np.fromiter(r.seen.values(), np.float64, len(r.seen))
            shifts = -(s.frequency_penalty * counts + s.presence_penalty * (counts > 0))
            penalties.add(row, r.seen, s.repetition_penalty, shifts)
        bias = s.logit_bias or {}
        if r.n_out < s.min_tokens and r.stop_ids and r.guide is None:  # a guide's mask sees to it
            bias = bias | dict.fromkeys((i for i in r.stop_ids if i < logits.shape[1]), -np.inf)
        if bias:
            biases.add(row, bias, 1.0, np.fromiter(bias.values(), np.float64, len(bias)))
    penalties.edit(logits)
    biases.edit(logits)


class _Cells:
    """Cells of the logits, each of them once."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.counts: list[int] = []
        self.factors: list[float] = []
        self.tokens: list[np.ndarray] = []
        self.shifts: list[np.ndarray] = []

    def add(self, row: int, tokens: Collection[int], factor: float, shifts: np.ndarray) -> None:
        self.rows.append(row)
        self.counts.append(len(tokens))
        self.factors.append(factor)
        self.tokens.append(np.fromiter(tokens, np.int64, len(tokens)))
        self.shifts.append(shifts)

    def edit(self, logits: Tensor) -> None:
        if not self.rows:
            return
        rows, factors = np.repeat(self.rows, self.counts), np.repeat(np.array(self.factors, np.float32), self.counts)
        with np.errstate(over="ignore"):  # more than float32 holds is infinite, as it should be
            shifts = np.concatenate(self.shifts).astype(np.float32)
        cells = to_device(np.stack([rows, np.concatenate(self.tokens)]), logits.device)
        edit_logits(logits, *cells, *to_device(np.stack([factors, shifts]), logits.device))


def _scores(logits: Tensor, batch: Batch) -> Callable[[], tuple[dict[int, list[float]], Logprobs]]:
    """By rid, the logprobs of the tokens to be scored, and where alternatives are asked for, these too."""
    logprobs = logits.log_softmax(-1)  # of each row by itself; logsumexp parts the sum of one row among threads
    flat = _to_host(logprobs.gather(1, batch.targets[:, None]).squeeze(1))
    best: dict[int, tuple[Tensor, Tensor]] = {}
    at = 0
    for rid, n, n_top in batch.scored:
        if n_top:
            values, ids = logprobs[at : at + n].topk(min(n_top, logits.shape[1]))
            best[rid] = _to_host(values), _to_host(ids.int())
        at += n

    def read() -> tuple[dict[int, list[float]], Logprobs]:
        out: dict[int, list[float]] = {}
        tops: Logprobs = {}
        own = iter(flat.tolist())
        for rid, n, _ in batch.scored:
            out[rid] = list(islice(own, n))
            if rid in best:
                pairs = zip(out[rid], *(part.numpy() for part in best[rid]), strict=True)
                tops[rid] = [TopLogprobs(p, ids.tobytes(), top.tobytes()) for p, top, ids in pairs]
        return out, tops

    return read


def _logprobs(own: Tensor, ids: Tensor, requests: Sequence[Request | DraftPosition]) -> Callable[[], Logprobs]:
    """own: the model's logprobs, [n, vocab]; ids [n]: the tokens chosen. By rid, row by row."""
    chosen = _to_host(own.gather(1, ids[:, None]).squeeze(1))
    values, best = own.topk(min(max(r.sampling.top_logprobs for r in requests), own.shape[1]))
    tops, top_ids = _to_host(values), _to_host(best.int())
    asked = [(r.rid, r.sampling.top_logprobs) for r in requests]

    def read() -> Logprobs:
        out: Logprobs = {}
        for (rid, k), p, its_ids, its in zip(asked, chosen.tolist(), top_ids.numpy(), tops.numpy(), strict=True):
            out.setdefault(rid, []).append(TopLogprobs(p, its_ids[:k].tobytes(), its[:k].tobytes()))
        return out

    return read
