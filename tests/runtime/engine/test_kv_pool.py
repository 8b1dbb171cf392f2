"""The store: what is copied in all layers at once."""

from __future__ import annotations

from types import ModuleType

import torch

from banyan.runtime.engine.kv_pool import KVPool


def test_copies_reach_all_layers_and_no_other_slot(fake: ModuleType) -> None:
    spec = fake.FakeModel().spec
    store = KVPool(spec, 4, 2, "cpu")
    for i, (k, v) in enumerate(store.kv):
        k.copy_(torch.arange(20.0).view(5, 2, 1, 2) + 100 * i)
        v.copy_(-k)
    store.copy([(0, 3, 1)])
    store.copy_slots([([3, 5], [2, 3]), ([1], [0]), ([], [])])
    was = torch.arange(20.0).view(10, 2)
    want = was.clone()
    want[6], want[2], want[3], want[0] = was[0], was[3], was[5], was[1]
    for i, (k, v) in enumerate(store.kv):
        assert torch.equal(k.view(10, 2), want + 100 * i)
        assert torch.equal(v.view(10, 2), -(want + 100 * i))
    assert store.spare == range(8, 10), "a page that nobody has"
    store.copy([])
    store.copy_slots([])
