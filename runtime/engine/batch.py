"""From a plan, which is ints, to the tensors of one step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device
from banyan.kernels.ops import Ragged, ragged
from banyan.runtime.engine.scheduling.request import Plan, Request
from banyan.runtime.engine.speculation.draft import DraftPosition, rows_of


class Unseen(NamedTuple):
    """Rows whose token is not known here: each is one that the step before draws."""

    rows: Tensor  # int64 [n]
    which: Tensor  # int64 [n]: of what was drawn
    drawn: Tensor  # int64 [n_drawn], once the step before has ended


class Batch(NamedTuple):
    """One step. Logits are wanted of the rows before tokens to be scored, then of the rows that draw a token."""

    ids: Tensor  # int64 [n_rows]
    positions: Tensor  # int64 [n_rows]
    ragged: Ragged
    rows: Tensor  # int64 [n_scored + n_drawn]
    targets: Tensor  # int64 [n_scored]: the tokens whose logprobs are asked for
    scored: tuple[tuple[int, int, int], ...]  # (rid, how many of the targets, how many alternatives), in order
    drawn: tuple[Request | DraftPosition, ...]  # who draws from each of the last rows
    unseen: Unseen | None = None

    def drawing(self, logits: Tensor) -> Tensor:
        """The rows of a step's logits that draw."""
        return logits[len(self.targets) :] if self.scored else logits  # most steps score nothing: no call into torch

    def see(self) -> None:
        """Put in what the step before drew, on the device and behind it. Where that is nothing, -1, the request has
        ended, and any token will do."""
        if self.unseen is not None:
            rows, which, drawn = self.unseen
            self.ids[rows] = drawn[which].clamp(min=0)


def assemble(
    plan: Plan,
    page: int,
    device: torch.device,
    deterministic: bool = False,
    before: tuple[Sequence[Request | DraftPosition], Tensor] | None = None,
) -> Batch:
    """Lay the works' rows one behind the other. Copies to a GPU are asynchronous.

    before: of a plan that was made ahead, who draws in the step before it, and what."""
    ids, targets = array("i"), array("i")
    rows: list[int] = []
    score_rows: list[int] = []
    scored: list[tuple[int, int, int]] = []
    drawn: list[Request | DraftPosition] = []
    unseen: list[tuple[int, int]] = []  # row, rid
    q_lens, kv_lens, pages = [], [], []
    parents: list[list[int] | None] = []  # of the rows of a draft that branches
    is_ahead = plan.is_ahead
    for request, lease, done, n_new, draws, score_at, n_scored, draft, above in plan.works:
        start = len(ids)
        if is_ahead and done == request.n_total:
            unseen.append((start, request.rid))
            ids.append(0)
        elif n_new == 1:
            ids.append(request.ids[done])
        else:
            ids.extend(request.ids[done : done + n_new])
        if draws:
            rows.append(len(ids) - 1)
            drawn.append(request)
        if draft:
            rows.extend(range(len(ids), len(ids) + len(draft)))
            drawn += rows_of(draft, above, request)
            ids.extend(draft)
        q_lens.append(n_new + len(draft))
        kv_lens.append(done + n_new + len(draft))
        pages.append(lease.pages)
        parents.append([*range(-1, n_new - 1), *(n_new + i if i >= 0 else n_new - 1 for i in above)] if above else None)
        if n_scored:
            first = start + score_at - 1 - done  # a token's logprob stands in the row before it
            score_rows.extend(range(first, first + n_scored))
            targets.extend(request.ids[score_at : score_at + n_scored])
            scored.append((request.rid, n_scored, request.sampling.top_logprobs))

    wanted = None if scored else [work.draws + len(work.draft) for work in plan.works]
    trees = parents if any(parents) else None
    shape = ragged(q_lens, kv_lens, pages, page, device, trees, deterministic, wanted)
    assert shape.position is not None
    return Batch(
        to_device(np.array(ids, np.int64), device),
        shape.position.long(),
        shape,
        to_device(np.array(score_rows + rows, np.int64), device),
        to_device(np.array(targets, np.int64), device),
        tuple(scored),
        tuple(drawn),
        _unseen(unseen, before, device),
    )


def _unseen(
    tokens: list[tuple[int, int]], before: tuple[Sequence[Request | DraftPosition], Tensor] | None, device: torch.device
) -> Unseen | None:
    """tokens: row and rid of each. before: as in `assemble`."""
    if not tokens:
        return None
    assert before is not None, "who has drawn them?"
    drawing, drawn = before
    at = {request.rid: i for i, request in enumerate(drawing)}  # no step with drafts is followed: a row each
    table = to_device(np.array([[row for row, _ in tokens], [at[rid] for _, rid in tokens]], np.int64), device)
    return Unseen(table[0], table[1], drawn)
