"""From logits to tokens: what `Sampling` says, for all rows of a step at once.

The order is: repetition penalty, frequency and presence penalty, logit bias, min_tokens, the constraint's mask; then,
where temperature is above 0, temperature, top-k, top-p (of what top-k left), min-p, and one draw. Logprobs are the
model's own: those of the logits as they came, before all of that.

A draw is a function of (seed, sample, position in the text) and of the row (`kernels/draw/reference.py`): a request
draws the same tokens whatever it is batched with, and again after a retraction or in another engine. On a GPU nothing
here waits for the device before the tokens themselves are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.batch import to_device
from banyan.kernels.draw.rows import Rows, draw_rows
from banyan.kernels.ops import draw, edit_logits, mask_logits
from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.guide import Masks, takes_best
from banyan.runtime.engine.request import Request, Result
from banyan.runtime.engine.speculation.draft import Ahead
from banyan.runtime.wire import TopLogprobs


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

    Where there is nothing to choose from (NaN, or all forbidden), the token is NO_TOKEN, -1.
    """
    if not logits.is_cuda and all(r.is_plain or takes_best(r) for r in requests):
        if masks is not None:
            mask_logits(logits, *masks)
        rows = logits.numpy()
        best = rows.argmax(-1)
        if np.isfinite(rows[np.arange(len(best)), best]).all():  # the greedy path of a CPU: few calls, no tensor
            return best.tolist(), {}
    asked = [i for i, r in enumerate(requests) if r.sampling.logprobs]
    at = to_device(np.array(asked, np.int64), logits.device)
    own = logits[at].log_softmax(-1) if asked else None
    if any(r.has_edits for r in requests):
        edit(logits, requests)
    if masks is not None:
        mask_logits(logits, *masks)
    ids = draw(logits, _rows(requests, logits.device))
    if own is None:
        return ids.tolist(), {}
    return ids.tolist(), _logprobs(own, ids[at].clamp(min=0), [requests[i] for i in asked])


def _rows(requests: Sequence[Request | Ahead], device: torch.device) -> Rows:
    """What the draw has to know of them."""
    s = [r.sampling for r in requests]
    runs = [r.run for r in requests]
    return draw_rows(
        [x.temperature for x in s],
        [x.top_k for x in s],
        [x.top_p for x in s],
        [x.min_p for x in s],
        [run.seed for run in runs],
        [run.sample for run in runs],
        [r.n_total for r in requests],
        device,
    )


def edit(logits: Tensor, requests: Sequence[Request | Ahead]) -> None:
    """Penalties, bias and min_tokens, in place."""
    cells = [
        cell for row, r in enumerate(requests) if r.has_edits and len((cell := _cells(row, r, logits.shape[1]))[0])
    ]
    if not cells:
        return
    numbers, reals = (np.concatenate(x, axis=1) for x in zip(*cells, strict=True))
    with np.errstate(over="ignore"):  # more than float32 holds is infinite, as it should be
        small = reals.astype(np.float32)
    edit_logits(logits, *to_device(numbers, logits.device), *to_device(small, logits.device))


def _cells(row: int, r: Request | Ahead, n_vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Of the tokens whose logits change: int64 [2, n], row and token; float64 [2, n], factor and shift."""
    s = r.sampling
    seen = np.fromiter(r.seen or (), np.int64)
    counts = np.fromiter(r.seen.values() if r.seen else (), np.float64)
    biased = np.fromiter(s.logit_bias or (), np.int64)
    ends = r.stop_ids if r.n_out < s.min_tokens and r.guide is None else ()  # a guide's mask sees to it
    barred = np.fromiter((i for i in ends if i < n_vocab), np.int64)
    shifts = [-(s.frequency_penalty * counts + s.presence_penalty * (counts > 0))]
    shifts.append(np.fromiter(s.logit_bias.values() if s.logit_bias else (), np.float64))
    tokens, shift = np.concatenate([seen, biased, barred]), np.concatenate([*shifts, np.zeros(len(barred))])
    if len(biased) or len(barred):  # a token may have a penalty and a bias
        tokens, at = np.unique(tokens, return_inverse=True)
        shift = np.bincount(at, shift, len(tokens))
        shift[at[len(at) - len(barred) :]] = -np.inf
        factor = np.ones(len(tokens))
        factor[at[: len(seen)]] = s.repetition_penalty
    else:
        factor = np.full(len(tokens), s.repetition_penalty)
    return np.stack([np.full(len(tokens), row), tokens]), np.stack([factor, shift])


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
