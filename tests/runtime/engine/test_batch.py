"""From a plan to a step's tensors."""

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
        self.pages = list(range(first, first + 16))


def batch(fake: ModuleType, n_scored: int = 0) -> Batch:
    """A chunk in the middle of a prompt, the end of another, a decode, and one with a draft."""
    requests = [Request(fake.run(rid, range(100), Sampling()), 200) for rid in range(4)]
    leases: list[Any] = [Lease(16 * rid) for rid in range(4)]
    works = (
        Work(requests[0], leases[0], 10, 70, False, 20, n_scored),
        Work(requests[1], leases[1], 60, 40, True),
        Work(requests[2], leases[2], 99, 1, True),
        Work(requests[3], leases[3], 99, 1, True, draft=array("i", [7, 8])),
    )
    return assemble(Plan(works), 16, torch.device("cpu"))


def test_rows_that_draw_are_all_that_a_last_layer_computes(fake: ModuleType) -> None:
    made = batch(fake)
    tail = made.ragged.tail
    assert made.rows.tolist() == [109, 110, 111, 112, 113]
    assert tail is not None
    assert (tail.q_lens, tail.kv_lens) == ((1, 1, 3), (100, 100, 102))
    assert tail.position is not None
    assert tail.position.tolist() == made.positions[made.rows].tolist()
    assert [request.rid for request in made.sampled_for] == [1, 2, 3, 3, 3]


def test_where_tokens_are_scored_all_rows_are_computed(fake: ModuleType) -> None:
    made = batch(fake, 3)
    assert made.ragged.tail is None
    assert made.rows.tolist() == [9, 10, 11, 109, 110, 111, 112, 113]
