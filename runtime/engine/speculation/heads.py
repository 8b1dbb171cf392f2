"""Drafters that read the large model's last hidden states: EAGLE and Medusa heads. See model/heads.py.

The large model stores a hidden state beside each slot's KV, so heads work on shared pages too."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device
from banyan.kernels.ops import Ragged
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import Drafter, Proposal
from banyan.runtime.engine.speculation.model import ModelDrafter, is_computed
from banyan.runtime.engine.speculation.step_cost import Cost
from banyan.runtime.model import heads


class EagleDrafter(ModelDrafter):
    """Runs an EAGLE head. It differs from a small model in its input: the token, and the hidden state of the token
    before it. Within a draft, the head uses the states that it predicted itself. So accepted draft tokens are computed
    again from the true states."""

    name = "eagle"
    keeps_tail = False

    def __init__(self, features: Tensor, head: heads.Eagle, *arguments: Any) -> None:
        """features: the large model's hidden states, [n_slots, hidden]. For the other arguments see `ModelDrafter`."""
        super().__init__(head, *arguments)
        self._head, self._features = head, features
        self._predicted = torch.zeros_like(features)

    def can_draft(self, request: Request) -> bool:
        return is_computed(request)  # its hidden states are stored

    def _compute(self, ids: Tensor, shape: Ragged, last: Tensor, pages: Sequence[Sequence[int]],
                 n_texts: Sequence[int]) -> Tensor:  # fmt: skip
        page = self._page
        before = array("q")  # the slot of the token before each row
        is_true = array("b")  # whether the slot has the large model's hidden state
        for q, kv, own, n in zip(shape.q_lens, shape.kv_lens, pages, n_texts, strict=True):
            for at in range(kv - q - 1, kv - 1):
                before.append(own[at // page] * page + at % page if at >= 0 else 0)
                is_true.append(0 <= at < n - 1)
        slots = to_device(np.array(before), self._device)
        mask = to_device(np.array(is_true, bool), self._device)
        features = torch.where(mask[:, None], self._features[slots], self._predicted[slots])
        assert shape.position is not None
        logits, out = self._head.forward(ids, shape.position.long(), shape, self._kv, last, features)
        self._predicted[shape.slots[last]] = out
        return logits


class MedusaDrafter(Drafter):
    """Runs Medusa heads. Proposes the chain of their best tokens (kind 0), and chains in which one of the first two
    tokens is the second best (kind 1)."""

    name, n_kinds = "medusa", 2

    def __init__(self, head: heads.Medusa, features: Tensor, stopwatch: Callable[[], float]) -> None:
        self._head, self._features, self._stopwatch = head, features, stopwatch
        self._proposals: dict[int, list[Proposal]] = {}
        self.cost: Cost = Cost(2.0, 0.25, 0.0)

    def warm_up(self, n_rows: int) -> None:
        for _ in range(3):
            start = self._stopwatch()
            self._head(self._features[:1])
            self.cost.note(1, 0, self._stopwatch() - start)

    def can_draft(self, request: Request) -> bool:
        return is_computed(request)  # its hidden states are stored

    @torch.inference_mode()
    def prepare(self, asks: Sequence[tuple[Request, int]]) -> None:
        """Run all heads once for all requests, whatever the limits are."""
        start = self._stopwatch()
        slots = torch.tensor([request.slot(request.n_total - 2) for request, _ in asks], device=self._features.device)
        best = self._head(self._features[slots]).topk(2).indices.permute(1, 0, 2).tolist()  # [n, n_heads, 2]
        for (request, n), own in zip(asks, best, strict=True):
            chain = [first for first, _ in own[:n]]
            beside = [Proposal(array("i", (*chain[:k], own[k][1])), 1) for k in range(min(2, len(chain)))]
            self._proposals[request.rid] = [Proposal(array("i", chain)), *beside]
        self.cost.note(len(asks), 0, self._stopwatch() - start)

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        return self._proposals.pop(request.rid, ())

    def end(self, request: Request) -> None:
        self._proposals.pop(request.rid, None)
