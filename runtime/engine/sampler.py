"""Samples tokens from logits as `Sampling` says, for all rows of a step at once.

The order is: repetition penalty, frequency and presence penalty, logit bias, min_tokens, the constraint's mask; then,
with a temperature above 0: temperature, top-k, top-p (of what top-k left), min-p, and one draw. Logprobs are those of
the model's own logits. A draw is a function of (seed, sample, position in the text) and of the row
(`kernels/draw/reference.py`), so a request gets the same tokens in any batch, after a retraction, and in another
engine. On a GPU nothing waits for the device before `PendingSample.read`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain, islice
from math import isfinite
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
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
_MAX_TOP_K = 2**31 - 1  # no vocabulary is larger


class PendingSample(NamedTuple):
    """The tokens that a step samples, which the device may not have computed yet. ids: int64 [n_sampled] on the device;
    None if the host has them already, or there are none. read: waits for the result."""

    ids: Tensor | None
    read: Callable[[], Result]


@torch.inference_mode()
def sample(logits: Tensor, batch: Batch, masks: Masks | None = None) -> PendingSample:
    """Launch the sampling of a step, and the computation of the prompt logprobs that it needs. logits: float32
    [n_scored + n_sampled, vocab], changed in place. masks: the masks of the rows that sample."""
    scores = _scores(logits[: len(batch.targets)], batch) if batch.scored else None
    ids, chosen = (
        _choose(batch.sampling_logits(logits), batch.sampled_for, masks) if batch.sampled_for else (None, None)
    )
    wait = _completion(logits)

    def read() -> Result:
        wait()
        return Result(*(chosen() if chosen else ([], {})), *(scores() if scores else ({}, {})))

    return PendingSample(ids, read)


@torch.inference_mode()
def choose(
    logits: Tensor, requests: Sequence[Request | DraftPosition], masks: Masks | None = None
) -> tuple[list[int], Logprobs]:
    """Choose one token for each row of `logits`, [n, vocab]. Also returns the requested logprobs by rid. The token is
    NO_TOKEN if the row has nothing to sample from (NaN, or all tokens forbidden)."""
    _, chosen = _choose(logits, requests, masks)
    _completion(logits)()
    return chosen()


def _choose(
    logits: Tensor, requests: Sequence[Request | DraftPosition], masks: Masks | None
) -> tuple[Tensor | None, Callable[[], tuple[list[int], Logprobs]]]:
    """Returns the sampled ids on the device (None if the host has them), and a function that returns the result of
    `choose`."""
    if not logits.is_cuda and all(r.is_plain or takes_best(r) for r in requests):
        if masks is not None:
            mask_logits(logits, *masks)
        rows = logits.numpy()
        best: list[int] = rows.argmax(-1).tolist()
        if all(isfinite(row[i]) for row, i in zip(rows, best, strict=True)):  # the greedy path of a CPU: few calls
            return None, lambda: (best, {})
    with_logprobs = [i for i, r in enumerate(requests) if r.sampling.logprobs]
    at = to_device(np.array(with_logprobs, np.int64), logits.device)
    own = logits[at].log_softmax(-1) if with_logprobs else None
    if any(r.has_edits for r in requests):
        edit(logits, requests)
    if masks is not None:
        mask_logits(logits, *masks)
    ids = draw(logits, _draw_rows(requests, logits.device))
    logprobs = None if own is None else _logprobs(own, ids[at].clamp(min=0), [requests[i] for i in with_logprobs])
    host = _to_host(ids)
    return ids, lambda: (host.tolist(), {} if logprobs is None else logprobs())


def _to_host(tensor: Tensor) -> Tensor:
    """Return a copy on the host. A copy from a GPU is complete only after a call of the function that `_completion`
    returns."""
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _completion(like: Tensor) -> Callable[[], object]:
    """Returns a function that waits for all work submitted so far to the tensor's device, but not for later work."""
    if not like.is_cuda:
        return lambda: None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize


def _draw_rows(requests: Sequence[Request | DraftPosition], device: torch.device) -> Rows:
    s = [r.sampling for r in requests]
    return draw_rows(
        [x.temperature for x in s], [max(0, min(x.top_k, _MAX_TOP_K)) for x in s],
        [x.top_p for x in s], [x.min_p for x in s],
        [r.run.seed for r in requests], [r.run.sample for r in requests], [r.n_total for r in requests], device,
    )  # fmt: skip


_Edit = tuple[int, Collection[int], float, npt.NDArray[np.float64]]
"""(row, tokens, factor, shifts): changes to the logits of some tokens of a row. There is one shift for each token."""


def edit(logits: Tensor, requests: Sequence[Request | DraftPosition]) -> None:
    """Apply penalties, bias and min_tokens, in place."""
    penalties, biases = list[_Edit](), list[_Edit]()  # two lists, because a token may have both a penalty and a bias
    for row, r in enumerate(requests):
        if not r.has_edits:
            continue
        s = r.sampling
        if r.token_counts:
            counts = np.fromiter(r.token_counts.values(), np.float64, len(r.token_counts))
            shifts = -(s.frequency_penalty * counts + s.presence_penalty * (counts > 0))
            penalties.append((row, r.token_counts, s.repetition_penalty, shifts))
        bias = s.logit_bias or {}
        if r.n_out < s.min_tokens and r.stop_ids and r.guide is None:  # a guide's mask handles min_tokens
            bias = bias | dict.fromkeys(r.stop_ids, -np.inf)
        if bias:
            biases.append((row, bias, 1.0, np.fromiter(bias.values(), np.float64, len(bias))))
    _apply(penalties, logits)
    _apply(biases, logits)


def _apply(edits: list[_Edit], logits: Tensor) -> None:
    """Apply edits to the logits, in place. No two edits may change the same logit. Skips tokens without a logit: some
    stop ids, and tokens of the large model that a draft model lacks."""
    if not edits:
        return
    rows, tokens, factors, shifts = zip(*edits, strict=True)
    sizes = [len(one) for one in tokens]
    at = np.stack([np.repeat(rows, sizes), np.fromiter(chain.from_iterable(tokens), np.int64, sum(sizes))])
    with np.errstate(over="ignore"):  # a value beyond float32's range becomes infinite, as it should
        values = np.stack([np.repeat(factors, sizes), np.concatenate(shifts)]).astype(np.float32)
    known = at[1] < logits.shape[1]
    if not known.all():
        at, values = at.compress(known, 1), values.compress(known, 1)
    edit_logits(logits, *to_device(at, logits.device), *to_device(values, logits.device))


def _scores(logits: Tensor, batch: Batch) -> Callable[[], tuple[dict[int, list[float]], Logprobs]]:
    """Start to compute the logprobs of the prompt tokens that this step scores. Returns a function to call when the
    device is done. It returns two dicts by rid: the logprobs of the tokens, and the most likely alternatives for
    requests that asked for them."""
    logprobs = logits.log_softmax(-1)  # row by row; logsumexp would split the sum of one row among threads
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
    """Start to compute the logprobs of sampled tokens, and the most likely alternatives. own: logprobs of the rows, [n,
    vocab], before penalties and masks. ids: the sampled token of each row, [n]. Returns a function to call when the
    device is done. It returns a dict: rid -> one entry per row of the request."""
    chosen = _to_host(own.gather(1, ids[:, None]).squeeze(1))
    values, best = own.topk(min(max(r.sampling.top_logprobs for r in requests), own.shape[1]))
    tops, top_ids = _to_host(values), _to_host(best.int())
    keys = [(r.rid, r.sampling.top_logprobs) for r in requests]

    def read() -> Logprobs:
        out: Logprobs = {}
        rows = zip(keys, chosen.tolist(), top_ids.numpy(), tops.numpy(), strict=True)
        for (rid, k), p, row_ids, row_tops in rows:
            out.setdefault(rid, []).append(TopLogprobs(p, row_ids[:k].tobytes(), row_tops[:k].tobytes()))
        return out

    return read
