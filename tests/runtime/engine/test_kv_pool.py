"""KV pool copies, which apply to all layers at once."""

from __future__ import annotations

from types import ModuleType

import torch

from banyan.runtime.engine.kv_pool import KVPool


def test_copies_change_only_their_slots_in_all_layers(fake: ModuleType) -> None:
    spec = fake.FakeModel().spec
    store = KVPool(spec, 4, 2, "cpu")
    for i, (k, v) in enumerate(store.kv):
        k.copy_(torch.arange(20.0).view(5, 2, 1, 2) + 100 * i)
        v.copy_(-k)
    store.copy([(0, 3, 1)])
    store.copy_slots([([3, 5], [2, 3]), ([1], [0]), ([], [])])
    before = torch.arange(20.0).view(10, 2)
    expected = before.clone()
    expected[6], expected[2], expected[3], expected[0] = before[0], before[3], before[5], before[1]
    for i, (k, v) in enumerate(store.kv):
        assert torch.equal(k.view(10, 2), expected + 100 * i)
        assert torch.equal(v.view(10, 2), -(expected + 100 * i))
    assert store.spare == range(8, 10), "the spare page follows the pool"
    store.copy([])
    store.copy_slots([])
