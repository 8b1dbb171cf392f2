"""One law for drafts: the engine's own walk down them, and the op that does it on a device, with its copies."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch

from banyan.kernels import ops
from banyan.runtime.engine.speculation.draft import accept_path, slot_moves


def test_the_engine_and_the_device_follow_drafts_alike() -> None:
    chance = random.Random(0)
    lengths = set()
    for _ in range(200):
        n = chance.randint(1, 12)
        parents = [chance.choice([i - 1, chance.randrange(-1, i)]) for i in range(n)]
        draft = [parents[:i].count(parent) for i, parent in enumerate(parents)]  # siblings' tokens differ
        drawn = [chance.choice([0, 0, 0, 1, 5]) for _ in range(n + 1)]
        path, said = accept_path(draft, parents, drawn)
        slots = random.Random(n).sample(range(99), n + 1)  # of the text's last token, then of the draft
        request: Any = SimpleNamespace(n_total=1, slot=slots.__getitem__)
        got = ops.accept(
            torch.tensor(drawn),
            torch.tensor([9, *draft]),
            torch.tensor([-1, *(parent + 1 for parent in parents)], dtype=torch.int32),
            torch.tensor([0, n + 1], dtype=torch.int32),
            torch.tensor(slots),
            n + 1,
        )
        told = [[x for x in row[0].tolist() if x >= 0] for row in got]
        assert told[0] == said
        if copies := slot_moves(request, parents, path):
            assert told[1:] == list(copies[0])
        else:
            assert told[1] == told[2]
        lengths.add(len(path))
    assert {0, 1, 2, 3} <= lengths
