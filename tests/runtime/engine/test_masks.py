"""Constraint masks of draft rows: only reachable rows get one."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from banyan.kernels.ops import mask_logits
from banyan.runtime.constraint.guide import set_bits
from banyan.runtime.engine.guides import Guides
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import accept_path, draft_rows
from banyan.runtime.protocol.wire import Sampling

N_VOCAB = 64


class Even:
    """A guide that allows even tokens and records the paths for which it is queried."""

    can_stop = must_stop = False
    error = ""

    def __init__(self) -> None:
        self.path: list[int] = []
        self.queried: list[tuple[int, ...]] = []

    def fill(self, out: np.ndarray) -> None:
        self.queried.append(tuple(self.path))
        out[:] = 0
        set_bits(out, range(0, N_VOCAB, 2))

    def accept_masked(self, tokens: Sequence[int]) -> int:
        for n, token in enumerate(tokens):
            self.queried.append(tuple(self.path))
            if token % 2:
                return n
            self.accept((token,))
        return len(tokens)

    def accept(self, tokens: Sequence[int]) -> int:
        self.path += tokens
        return len(tokens)

    def rollback(self, n: int) -> None:
        assert 0 <= n <= len(self.path)
        del self.path[len(self.path) - n :]


DRAFT, PARENTS = [2, 4, 6, 8, 10], [-1, 0, 1, 0, -1]  # 2 (4 (6), 8), 10
ALL = [(), (2,), (2, 4), (2, 4, 6), (2, 8), (10,)]


@pytest.mark.parametrize(
    ("best", "queried", "expected"),
    [
        ([2, 4, 6, 12, 1, 1], ALL[:4], [2, 4, 6, 12]),
        ([2, 8, 1, 1, 14, 1], [(), (2,), (2, 8)], [2, 8, 14]),
        ([10, 1, 1, 1, 1, 16], [(), (10,)], [10, 16]),
        ([20, 1, 1, 1, 1, 1], [()], [20]),
        ([2, 1, 6, 12, 1, 1], [(), (2,), (2,), *ALL[2:5], (2, 8)], None),  # the draw at (2,) depends on its mask
    ],
)
def test_only_reachable_rows_query_the_guide(
    fake: ModuleType, best: list[int], queried: list[Any], expected: list[int] | None
) -> None:
    guides = Guides(N_VOCAB, torch.device("cpu"))
    guide = Even()
    request = Request(fake.run(0, [1, 2, 3], Sampling(temperature=0.0)), 100, guide)  # type: ignore[arg-type]
    rows = [request, *draft_rows(DRAFT, PARENTS, request)]
    logits = torch.zeros(len(rows), N_VOCAB)
    logits[torch.arange(len(rows)), torch.tensor(best)] = 1.0
    masks = guides.masks(rows, logits)
    assert guide.path == [], "the guide is rolled back"
    assert list(dict.fromkeys(guide.queried)) == list(dict.fromkeys(queried))
    if masks is not None:
        mask_logits(logits, *masks)
    drawn = logits.argmax(-1).tolist()
    _, accepted = accept_path(DRAFT, PARENTS, drawn)
    assert all(token % 2 == 0 for token in accepted)
    assert expected is None or accepted == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_rows_are_masked_if_the_draw_is_unknown(fake: ModuleType, temperature: float) -> None:
    guides, guide = Guides(N_VOCAB, torch.device("cpu")), Even()
    request = Request(fake.run(0, [1, 2, 3], Sampling(temperature=temperature)), 100, guide)  # type: ignore[arg-type]
    rows = [request, *draft_rows(DRAFT, PARENTS, request)]
    masks = guides.masks(rows, torch.zeros(len(rows), N_VOCAB) if temperature else None)
    assert masks is not None
    assert guide.queried == ALL
    assert sorted(masks.which.tolist()) == list(range(len(rows)))
