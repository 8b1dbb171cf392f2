"""From logits to tokens: what `Sampling` says, for all rows of a step at once.

The order is: repetition penalty, frequency and presence penalty, logit bias, min_tokens; then, where temperature is
above 0, temperature, top-k, top-p (of what top-k left), min-p, and one draw. Logprobs are the model's own: those of the
logits as they came, before all of that.

A draw is inverse-CDF with one uniform number, a hash of (seed, sample, position in the text) and of nothing else. So a
request draws the same tokens whatever it is batched with, and again after a retraction or in another engine. A filter
is a threshold on probabilities: tokens that tie with the last one kept are kept too. That spares a choice among equals,
which would depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.request import Request, Result
from banyan.runtime.wire import TopLogprobs


@torch.inference_mode()
def sample(logits: Tensor, batch: Batch) -> Result:
    """logits: float32 [n_scored + n_drawn, vocab], changed in place. On a GPU this waits for the step to end."""
    n_scored = len(batch.targets)
    scores = _scores(logits[:n_scored], batch) if n_scored else {}
    if not batch.drawn:
        return Result([], {}, scores)
    return Result(*choose(logits[n_scored:], batch.drawn), scores)


def choose(logits: Tensor, requests: Sequence[Request]) -> tuple[list[int], dict[int, TopLogprobs]]:
    """One token for each request from its row of `logits`, [n, vocab], and the logprobs that were asked for, by rid."""
    asked = [i for i, r in enumerate(requests) if r.sampling.logprobs]
    own = logits[asked].log_softmax(-1) if asked else None
    if any(r.has_edits for r in requests):
        edit(logits, requests)
    ids = logits.argmax(-1)
    hot = [i for i, r in enumerate(requests) if r.sampling.temperature > 0]
    if len(hot) == len(requests):
        ids = draw(logits, requests)
    elif hot:
        ids[hot] = draw(logits[hot], [requests[i] for i in hot])
    if own is None:
        return ids.tolist(), {}
    return ids.tolist(), _logprobs(own, ids[asked], [requests[i] for i in asked])


def edit(logits: Tensor, requests: Sequence[Request]) -> None:
    """Penalties, bias and min_tokens, in place."""
    scaled, shifted, masked = _Cells(), _Cells(), _Cells()
    for row, r in enumerate(requests):
        s = r.sampling
        if s.repetition_penalty != 1.0:
            scaled.add(row, np.unique(np.array(r.ids)), s.repetition_penalty)
        if (s.frequency_penalty or s.presence_penalty) and r.n_out:
            seen, counts = np.unique(np.array(r.ids[r.n_prompt :]), return_counts=True)
            shifted.add(row, seen, -(s.frequency_penalty * counts + s.presence_penalty))
        if s.logit_bias:
            shifted.add(row, np.array(list(s.logit_bias)), np.array(list(s.logit_bias.values())))
        if r.n_out < s.min_tokens and r.stop_ids:
            masked.add(row, np.array(sorted(r.stop_ids)), 0.0)
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
        values = torch.from_numpy(np.concatenate(self.values).astype(np.float32))
        return (rows.to(like.device), columns.to(like.device)), values.to(like.device)


def draw(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """One draw per row at temperatures above 0: int64 [n] from float32 [n, vocab]."""
    device = logits.device

    def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device).unsqueeze(1)

    temperature = column([r.sampling.temperature for r in requests])
    # The maximum goes first: a tiny temperature then gives -inf below it, never inf - inf.
    p = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    least = _least_kept(p, requests, column)
    if least is not None:
        p = p.masked_fill(p < least, 0.0)
    cdf = p.double().cumsum(-1)
    u = uniforms([r.run.seed for r in requests], [r.run.sample for r in requests], [r.n_total for r in requests])
    at = torch.from_numpy(u).to(device).unsqueeze(1) * cdf[:, -1:]  # strictly inside (0, total), see `uniforms`
    return torch.searchsorted(cdf, at, right=True).squeeze(1)


def _least_kept(p: Tensor, requests: Sequence[Request], column) -> Tensor | None:
    """[n, 1]: the least probability that top-k, top-p and min-p keep; None where nobody filters."""
    n_vocab = p.shape[1]
    top_k = [r.sampling.top_k if 0 < r.sampling.top_k < n_vocab else n_vocab for r in requests]
    top_p = [r.sampling.top_p for r in requests]
    min_p = [r.sampling.min_p for r in requests]
    least = column(min_p) * p.amax(-1, keepdim=True) if any(min_p) else None
    filters = [k < n_vocab or q < 1.0 for k, q in zip(top_k, top_p, strict=True)]
    if not any(filters):
        return least
    n_best = max(k for k, on in zip(top_k, filters, strict=True) if on)
    best = p.topk(n_best).values if n_best < n_vocab else p.sort(-1, descending=True).values  # [n, n_best]
    k = column([min(k, n_best) for k in top_k], torch.int64)
    mass = best.masked_fill(torch.arange(n_best, device=p.device) >= k, 0.0).double()
    before = mass.cumsum(-1) - mass  # the mass of all better tokens
    kept = (before < column(top_p, torch.float64) * mass.sum(-1, keepdim=True)) & (mass > 0)
    last = best.gather(1, kept.sum(-1, keepdim=True).clamp(min=1) - 1)
    last = last.masked_fill(~column(filters, torch.bool), 0.0)
    return last if least is None else torch.maximum(last, least)


def uniforms(seeds: Sequence[int], samples: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """float64 [n], each a function of its (seed, sample, position) alone.

    Numbers lie in the middle of 2^-48 steps, so u * total is neither 0 nor, after rounding, total. The hash chains the
    finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
    """
    word = (1 << 64) - 1
    h = _mix(np.array([s & word for s in seeds], np.uint64))
    h = _mix(h ^ np.array([s & word for s in samples], np.uint64))
    h = _mix(h ^ np.array(positions, np.uint64))
    return ((h >> np.uint64(16)).astype(np.float64) + 0.5) * 2.0**-48


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _scores(logits: Tensor, batch: Batch) -> dict[int, list[float]]:
    """By rid, the logprobs of the tokens to be scored."""
    own = logits.gather(1, batch.targets[:, None]).squeeze(1) - logits.logsumexp(-1)
    flat, at, out = own.tolist(), 0, {}
    for rid, n in batch.scored:
        out[rid] = flat[at : at + n]
        at += n
    return out


def _logprobs(own: Tensor, ids: Tensor, requests: Sequence[Request]) -> dict[int, TopLogprobs]:
    """own: the model's logprobs, [n, vocab]; ids [n]: the tokens chosen."""
    chosen = own.gather(1, ids[:, None]).squeeze(1).tolist()
    n_top = min(max(r.sampling.top_logprobs for r in requests), own.shape[1])
    best = own.topk(n_top)
    top_ids, top = best.indices.int().cpu().numpy(), best.values.cpu().numpy()
    out = {}
    for i, r in enumerate(requests):
        k = r.sampling.top_logprobs
        out[r.rid] = TopLogprobs(chosen[i], top_ids[i, :k].tobytes(), top[i, :k].tobytes())
    return out
