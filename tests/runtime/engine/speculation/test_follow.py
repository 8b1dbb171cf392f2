"""The device op that accepts drafts agrees with the engine's own implementation."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch

from banyan.kernels import ops
from banyan.runtime.engine.speculation.draft import accept_path, slot_moves


def test_device_op_accepts_the_same_path_as_the_engine() -> None:
    rng = random.Random(0)
    lengths = set()
    for _ in range(200):
        n = rng.randint(1, 12)
        parents = [rng.choice([i - 1, rng.randrange(-1, i)]) for i in range(n)]
        draft = [parents[:i].count(parent) for i, parent in enumerate(parents)]  # siblings have different tokens
        drawn = [rng.choice([0, 0, 0, 1, 5]) for _ in range(n + 1)]
        path, accepted = accept_path(draft, parents, drawn)
        slots = random.Random(n).sample(range(99), n + 1)  # slots of the last token, then of the draft
        request: Any = SimpleNamespace(n_total=1, slot=slots.__getitem__)
        rows = ops.accept(
            torch.tensor(drawn),
            torch.tensor([9, *draft]),
            torch.tensor([-1, *(parent + 1 for parent in parents)], dtype=torch.int32),
            torch.tensor([0, n + 1], dtype=torch.int32),
            torch.tensor(slots),
            n + 1,
        )
        results = [[x for x in row[0].tolist() if x >= 0] for row in rows]
        assert results[0] == accepted
        if copies := slot_moves(request, parents, path):
            assert results[1:] == list(copies[0])
        else:
            assert results[1] == results[2]
        lengths.add(len(path))
    assert {0, 1, 2, 3} <= lengths
