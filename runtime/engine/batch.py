"""Builds the tensors of one step from its `Plan`."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device
from banyan.kernels.lora.adapted import AdaptedRows, AdapterWeights
from banyan.kernels.ops import Ragged, ragged
from banyan.runtime.engine.scheduling.request import Plan, Request
from banyan.runtime.engine.speculation.draft import DraftPosition, draft_rows
from banyan.runtime.model.towers import ImageInputs

Span = tuple[int, int, Sequence[tuple[int, int]]]
"""(n_rows, slot, kept) of one request: its rows, the slot of its recurrent state, and `Work.kept`."""


class DeferredTokens(NamedTuple):
    """Rows whose token ids the previous step samples. The ids are only on the device."""

    rows: Tensor  # int64 [n]
    which: Tensor  # int64 [n]: indexes into sampled
    sampled: Tensor  # int64 [n_sampled]: the previous step's sampled tokens, valid once it has ended


class Batch(NamedTuple):
    """The tensors of one step. The model returns logits of `rows`: first the rows for which the logprob of the next
    prompt token is requested (n_scored), then the rows that sample a token (n_sampled)."""

    ids: Tensor  # int64 [n_rows]
    positions: Tensor  # int64 [n_rows]
    ragged: Ragged
    rows: Tensor  # int64 [n_scored + n_sampled]: the rows whose logits are needed
    targets: Tensor  # int64 [n_scored]: the tokens whose logprobs are requested
    scored: tuple[tuple[int, int, int], ...]  # (rid, number of targets, number of alternatives), in order
    sampled_for: tuple[Request | DraftPosition, ...]  # [n_sampled]
    deferred: DeferredTokens | None = None
    adapted: AdaptedRows | None = None  # the rows that use an adapter
    spans: tuple[Span, ...] = ()  # for models with a recurrent state: see `StatePool.begin`
    state_copies: tuple[tuple[int, int], ...] = ()  # (source slot, destination slot), copied before the step
    images: ImageInputs | None = None

    def sampling_logits(self, logits: Tensor) -> Tensor:
        """The part of a step's logits that belongs to the rows that sample."""
        return logits[len(self.targets) :] if self.scored else logits  # most steps score nothing: no call into torch

    def fill_deferred(self) -> None:
        """Copy the tokens that the previous step sampled into `ids`, on the device, after that step. If a row sampled
        -1 (no token), its request has ended, so any token will do."""
        if self.deferred is not None:
            rows, which, sampled = self.deferred
            self.ids[rows] = sampled[which].clamp(min=0)


def assemble(
    plan: Plan,
    page: int,
    device: torch.device,
    deterministic: bool = False,
    before: tuple[Sequence[Request | DraftPosition], Tensor] | None = None,
    adapters: Mapping[bytes, AdapterWeights] = {},
    chunk: int = 0,
    row_id: int = -1,
) -> Batch:
    """Concatenate the rows of a plan's works. Copies to a GPU are asynchronous.

    before: only for a plan made ahead: the requests for which the previous step samples, and the ids that it samples.
    adapters: the adapters that requests may use, by digest.
    chunk: the chunk size of layers that attend in chunks; see `ragged`. row_id: the token id that stands in for rows of
    images."""
    ids, targets = array("i"), array("i")
    rows, score_rows = list[int](), list[int]()
    scored: list[tuple[int, int, int]] = []
    sampled_for: list[Request | DraftPosition] = []
    deferred: list[tuple[int, int]] = []  # row, rid
    q_lens, kv_lens, pages = [], [], []
    parents: list[list[int] | None] = []  # parents of draft rows, for drafts that branch
    adapted: dict[bytes, list[int]] = {}  # rows by adapter
    is_ahead = plan.is_ahead
    for request, lease, start, n_new, draws, score_at, n_scored, draft, above, _ in plan.works:
        first = len(ids)
        if is_ahead and start == request.n_total:
            deferred.append((first, request.rid))
            ids.append(0)
        elif n_new == 1:
            ids.append(request.ids[start])
        else:
            ids.extend(request.ids[start : start + n_new])
        if draws:
            rows.append(len(ids) - 1)
            sampled_for.append(request)
        if draft:
            rows.extend(range(len(ids), len(ids) + len(draft)))
            sampled_for += draft_rows(draft, above, request)
            ids.extend(draft)
        if request.run.adapter:
            adapted.setdefault(request.run.adapter, []).extend(range(first, len(ids)))
        n_rows = n_new + len(draft)
        q_lens.append(n_rows)
        kv_lens.append(start + n_rows)
        pages.append(lease.pages)
        parents.append([*range(-1, n_new - 1), *(n_new + i if i >= 0 else n_new - 1 for i in above)] if above else None)
        if n_scored:
            row = first + score_at - 1 - start  # a token's logprob comes from the row before it
            score_rows.extend(range(row, row + n_scored))
            targets.extend(request.ids[score_at : score_at + n_scored])
            scored.append((request.rid, n_scored, request.sampling.top_logprobs))

    later = None
    if deferred:
        assert before is not None, "a plan made ahead needs the step before it"
        index = {request.rid: i for i, request in enumerate(before[0])}  # without drafts, each request has one row
        table = to_device(np.array([(row, index[rid]) for row, rid in deferred], np.int64).T, device)
        later = DeferredTokens(table[0], table[1], before[1])
    is_whole = bool(scored) or len(rows) == len(ids)  # no row may be left out
    wanted = None if is_whole else [work.draws + len(work.draft) for work in plan.works]
    trees = parents if any(parents) else None
    shape = ragged(q_lens, kv_lens, pages, page, device, trees, deterministic, wanted, chunk)
    assert shape.position is not None
    if plan.works[0].lease.window is not None:
        own = [work.lease.window.pages for work in plan.works if work.lease.window is not None]
        windowed = ragged(q_lens, kv_lens, own, page, device, trees, deterministic, wanted)
        shape = shape._replace(windowed=windowed)
    numbers = np.array(ids, np.int64), np.array(targets, np.int64)
    for one in numbers if row_id >= 0 else ():
        one[one < 0] = row_id
    return Batch(
        to_device(numbers[0], device),
        shape.position.long(),
        shape,
        to_device(np.array(score_rows + rows, np.int64), device),
        to_device(numbers[1], device),
        tuple(scored),
        tuple(sampled_for),
        later,
        AdaptedRows([adapters[one] for one in adapted], [*adapted.values()], None if scored else rows)
        if adapted
        else None,
        tuple((work.n_new, work.lease.state, work.kept) for work in plan.works if work.lease.state >= 0),
        plan.states,
    )
