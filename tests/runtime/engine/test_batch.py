"""Assembly of a plan into a step's tensors."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import torch

from banyan.runtime.engine.batch import Batch, assemble
from banyan.runtime.engine.scheduling.request import Plan, Request, Work
from banyan.runtime.protocol.wire import Sampling


class Lease:
    def __init__(self, first: int) -> None:
        self.state, self.window = -1, None
        self.pages = list(range(first, first + 16))


def make_batch(fake: ModuleType, n_scored: int = 0) -> Batch:
    """A middle prompt chunk, a last prompt chunk, a decode, and a decode with a draft."""
    requests = [Request(fake.run(rid, range(100), Sampling()), 200) for rid in range(4)]
    leases: list[Any] = [Lease(16 * rid) for rid in range(4)]
    works = (
        Work(requests[0], leases[0], 10, 70, False, 20, n_scored),
        Work(requests[1], leases[1], 60, 40, True),
        Work(requests[2], leases[2], 99, 1, True),
        Work(requests[3], leases[3], 99, 1, True, draft=array("i", [7, 8])),
    )
    return assemble(Plan(works), 16, torch.device("cpu"))


def test_last_layer_computes_only_rows_that_draw(fake: ModuleType) -> None:
    batch = make_batch(fake)
    tail = batch.ragged.tail
    assert batch.rows.tolist() == [109, 110, 111, 112, 113]
    assert tail is not None
    assert (tail.q_lens, tail.kv_lens) == ((1, 1, 3), (100, 100, 102))
    assert tail.position is not None
    assert tail.position.tolist() == batch.positions[batch.rows].tolist()
    assert [request.rid for request in batch.sampled_for] == [1, 2, 3, 3, 3]


def test_scored_batch_computes_all_rows(fake: ModuleType) -> None:
    batch = make_batch(fake, 3)
    assert batch.ragged.tail is None
    assert batch.rows.tolist() == [9, 10, 11, 109, 110, 111, 112, 113]
