"""From logits to tokens: what `Sampling` says, for all rows of a step at once.

The order is: repetition penalty, frequency and presence penalty, logit bias, min_tokens, the constraint's mask; then,
where temperature is above 0, temperature, top-k, top-p (of what top-k left), min-p, and one draw. Logprobs are the
model's own: those of the logits as they came, before all of that.

A draw is inverse-CDF with one uniform number, a hash of (seed, sample, position in the text) and of nothing else. So a
request draws the same tokens whatever it is batched with, and again after a retraction or in another engine. A filter
is a threshold on probabilities: tokens that tie with the last one kept are kept too. That spares a choice among equals,
which would depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.ops import mask_logits
from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.guide import Masks, takes_best
from banyan.runtime.engine.request import NO_TOKEN, Request, Result
from banyan.runtime.engine.speculation.draft import Ahead
from banyan.runtime.wire import TopLogprobs

_FIRST_LOOK = 64  # so many of the best tokens hold most nuclei
_WORD = (1 << 64) - 1


@torch.inference_mode()
def sample(logits: Tensor, batch: Batch, masks: Masks | None = None) -> Result:
    """logits: float32 [n_scored + n_drawn, vocab], changed in place; masks of the rows that draw. On a GPU this waits
    for the step to end."""
    n_scored = len(batch.targets)
    scores, tops = _scores(logits[:n_scored], batch) if n_scored else ({}, {})
    if not batch.drawn:
        return Result([], {}, scores, tops)
    return Result(*choose(logits[n_scored:], batch.drawn, masks), scores, tops)


def choose(
    logits: Tensor, requests: Sequence[Request | Ahead], masks: Masks | None = None
) -> tuple[list[int], dict[int, list[TopLogprobs]]]:
    """One token for each row of `logits`, [n, vocab], and the logprobs that were asked for, by rid.

    Where there is nothing to choose from (NaN, or all forbidden), the token is NO_TOKEN.
    """
    if not logits.is_cuda and all(r.is_plain or takes_best(r) for r in requests):
        if masks is not None:
            mask_logits(logits, *masks)
        rows = logits.numpy()
        best = rows.argmax(-1)
        if np.isfinite(rows[np.arange(len(best)), best]).all():  # the greedy path of a CPU: few calls, no tensor
            return best.tolist(), {}
    asked = [i for i, r in enumerate(requests) if r.sampling.logprobs]
    own = logits[asked].log_softmax(-1) if asked else None
    if any(r.has_edits for r in requests):
        edit(logits, requests)
    if masks is not None:
        mask_logits(logits, *masks)
    ids = _argmax(logits)
    peak = logits.gather(1, ids.unsqueeze(1))  # NaN where any of the row is
    hot = [i for i, r in enumerate(requests) if r.sampling.temperature > 0]
    if len(hot) == len(requests):
        ids = draw(logits - peak, requests)
    elif hot:
        ids[hot] = draw(logits[hot] - peak[hot], [requests[i] for i in hot])
    ids = ids.masked_fill(~peak.squeeze(1).isfinite(), NO_TOKEN)
    if own is None:
        return ids.tolist(), {}
    return ids.tolist(), _logprobs(own, ids[asked].clamp(min=0), [requests[i] for i in asked])


def _argmax(logits: Tensor) -> Tensor:
    """int64 [n]. On a CPU numpy's takes a twelfth of torch's time (64 x 8192, one core of an AMD EPYC, torch 2.13)."""
    return logits.argmax(-1) if logits.is_cuda else torch.from_numpy(logits.numpy().argmax(-1))


def edit(logits: Tensor, requests: Sequence[Request | Ahead]) -> None:
    """Penalties, bias and min_tokens, in place."""
    scaled, shifted, masked = _Cells(), _Cells(), _Cells()
    for row, r in enumerate(requests):
        s = r.sampling
        if r.seen:
            tokens, counts = (np.fromiter(x, np.int64, len(r.seen)) for x in (r.seen, r.seen.values()))
            if s.repetition_penalty != 1.0:
                scaled.add(row, tokens, s.repetition_penalty)
            if s.frequency_penalty or s.presence_penalty:
                shifted.add(row, tokens, -(s.frequency_penalty * counts + s.presence_penalty * (counts > 0)))
        if s.logit_bias:
            shifted.add(row, np.array(list(s.logit_bias)), np.array(list(s.logit_bias.values())))
        if r.n_out < s.min_tokens and r.stop_ids and r.guide is None:  # a guide's mask sees to it
            masked.add(row, np.array([i for i in r.stop_ids if i < logits.shape[1]]), 0.0)
    if scaled.rows:
        at, factor = scaled.tensors(logits)
        was = logits[at]
        logits[at] = torch.where(was > 0, was / factor, was * factor)
    if shifted.rows:
        at, amount = shifted.tensors(logits)
        logits.index_put_(at, amount, accumulate=True)  # a token may have a penalty and a bias
    if masked.rows:
        at, _ = masked.tensors(logits)
        logits[at] = -torch.inf


class _Cells:
    """Cells of the logits, and a number for each."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.columns: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def add(self, row: int, columns: np.ndarray, values: np.ndarray | float) -> None:
        self.rows.append(np.full(len(columns), row))
        self.columns.append(columns)
        self.values.append(np.broadcast_to(values, columns.shape))

    def tensors(self, like: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        rows, columns = (torch.from_numpy(np.concatenate(x).astype(np.int64)) for x in (self.rows, self.columns))
        with np.errstate(over="ignore"):  # more than float32 holds is infinite, as it should be
            values = torch.from_numpy(np.concatenate(self.values).astype(np.float32))
        return (rows.to(like.device), columns.to(like.device)), values.to(like.device)


def draw(logits: Tensor, requests: Sequence[Request | Ahead]) -> Tensor:
    """One draw per row at temperatures above 0: int64 [n].

    logits: float32 [n, vocab], each row's maximum at 0, so that a tiny temperature gives -inf below it, not inf - inf.
    """

    def column(values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(logits.device).unsqueeze(1)

    p = (logits / column([r.sampling.temperature for r in requests])).softmax(-1)
    least = _least_kept(p, requests, column)
    if least is not None:
        p.masked_fill_(p < least, 0.0)
    cdf = p.cumsum(-1, dtype=torch.float64)
    u = column([uniform(r.run.seed, r.run.sample, r.n_total) for r in requests], torch.float64)
    return torch.searchsorted(cdf, u * cdf[:, -1:], right=True).squeeze(1)


def _least_kept(p: Tensor, requests: Sequence[Request | Ahead], column: Callable[..., Tensor]) -> Tensor | None:
    """[n, 1]: the least probability that top-k, top-p and min-p keep; None where nobody filters."""
    n_vocab = p.shape[1]
    min_p = [r.sampling.min_p for r in requests]
    least = column(min_p) * p.amax(-1, keepdim=True) if any(min_p) else None
    top_k = [min(r.sampling.top_k, n_vocab) if r.sampling.top_k > 0 else n_vocab for r in requests]
    top_p = [r.sampling.top_p for r in requests]
    is_on = [k < n_vocab or q < 1.0 for k, q in zip(top_k, top_p, strict=True)]
    if not any(is_on):
        return least
    k, share = column(top_k, torch.int64), column(top_p, torch.float64)
    n_best = min(max(_FIRST_LOOK, *(k for k in top_k if k < n_vocab), 1), n_vocab)
    while True:  # a second look, at all, only where the best few do not hold all that is kept
        best = _largest(p, n_best)
        mass = best.double().masked_fill_(torch.arange(n_best, device=p.device) >= k, 0.0)
        upto = mass.cumsum(-1)
        goal = share * torch.where(k < n_vocab, upto[:, -1:], _sums(p))
        goal.masked_fill_(~column(is_on, torch.bool), 0.0)
        if n_best == n_vocab or bool((upto[:, -1:] >= goal).all()):
            break
        n_best = n_vocab
    n_kept = ((upto - mass < goal) & (mass > 0)).sum(-1, keepdim=True)  # those before which the goal was not reached
    last = best.gather(1, n_kept.clamp(min=1) - 1).masked_fill(goal == 0, 0.0)
    return last if least is None else torch.maximum(last, least)


def _sums(p: Tensor) -> Tensor:
    """float64 [rows, 1]. Never of a row alone: torch parts its sum among threads, and its bits depend on that."""
    return (p if len(p) > 1 else p.expand(2, -1)).sum(-1, keepdim=True, dtype=torch.float64)[: len(p)]


def _largest(p: Tensor, n: int) -> Tensor:
    """[rows, n], the largest first. On a CPU numpy sorts in a quarter of torch's time."""
    if n < p.shape[1] or p.is_cuda:
        return p.topk(n).values
    return torch.from_numpy(np.sort(p.numpy(), -1)[:, ::-1].copy())


def uniform(seed: int, sample: int, position: int) -> float:
    """A number in (0, 1), a function of its arguments alone.

    It lies in the middle of one of 2^48 equal steps; so u * total is neither 0 nor, after rounding, total. The hash
    chains the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    """
    return ((_mix(_stream(seed, sample) ^ position) >> 16) + 0.5) * 2.0**-48


@lru_cache(4096)
def _stream(seed: int, sample: int) -> int:
    return _mix(_mix(seed & _WORD) ^ (sample & _WORD))


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def _scores(logits: Tensor, batch: Batch) -> tuple[dict[int, list[float]], dict[int, list[TopLogprobs]]]:
    """By rid, the logprobs of the tokens to be scored, and where alternatives are asked for, these too."""
    logprobs = logits.log_softmax(-1)  # of each row by itself; logsumexp parts the sum of one row among threads
    flat, at = logprobs.gather(1, batch.targets[:, None]).squeeze(1).tolist(), 0
    out: dict[int, list[float]] = {}
    tops: dict[int, list[TopLogprobs]] = {}
    for rid, n, n_top in batch.scored:
        out[rid] = flat[at : at + n]
        if n_top:
            best = logprobs[at : at + n].topk(min(n_top, logits.shape[1]))
            values = best.values.cpu().numpy()
            pairs = zip(out[rid], best.indices.int().cpu().numpy(), values, strict=True)
            tops[rid] = [TopLogprobs(p, ids.tobytes(), top.tobytes()) for p, ids, top in pairs]
        at += n
    return out, tops


def _logprobs(own: Tensor, ids: Tensor, requests: Sequence[Request | Ahead]) -> dict[int, list[TopLogprobs]]:
    """own: the model's logprobs, [n, vocab]; ids [n]: the tokens chosen. By rid, row by row."""
    chosen = own.gather(1, ids[:, None]).squeeze(1).tolist()
    n_top = min(max(r.sampling.top_logprobs for r in requests), own.shape[1])
    best = own.topk(n_top)
    top_ids, top = best.indices.int().cpu().numpy(), best.values.cpu().numpy()
    out: dict[int, list[TopLogprobs]] = {}
    for i, r in enumerate(requests):
        k = r.sampling.top_logprobs
        out.setdefault(r.rid, []).append(TopLogprobs(chosen[i], top_ids[i, :k].tobytes(), top[i, :k].tobytes()))
    return out
