"""KV pool copies, which apply to all layers at once."""

from __future__ import annotations

from types import ModuleType

import msgspec
import pytest
import torch

from banyan.kernels.kv_layout import parts
from banyan.radix_cache.windows import WindowPages
from banyan.runtime.config import KVDtype
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


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_nobody_writes_to_the_page_that_fills_gaps(fake: ModuleType, kv_dtype: KVDtype) -> None:
    """Padding rows of CUDA graphs write to another page, which no page table names."""
    spec = msgspec.structs.replace(fake.FakeModel().spec, n_layers=2, windows=(0, 5))
    store = KVPool(spec, 4, 2, "cpu", n_window_pages=8, kv_dtype=kv_dtype)
    null = WindowPages(8, 2, 5, 1).null
    pools = [part for pool in store.kv[1] for part in parts(pool)]
    assert null not in {slot // 2 for slot in store.window_spare}
    for part in pools:
        part.flatten(0, 1)[list(store.window_spare)] = 1
        assert not part[null].any()
        assert part[null + 1].all(), "the spare slots are inside the pool"
