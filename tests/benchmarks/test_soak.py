"""Memory of the three processes over a minute of mixed programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import banyan as bn


@pytest.mark.long
@pytest.mark.timeout(300)
def test_memory_is_flat_after_the_warm_up(module_at: Callable[[Path], ModuleType]) -> None:
    soak = module_at(Path(__file__).parents[2] / "benchmarks" / "soak.py")
    with bn.Runtime(log="quiet", kv_memory=soak.KV) as runtime:
        bn.set_default_backend(runtime)
        try:
            n, sizes = soak.soak(runtime, 60.0)
        finally:
            bn.set_default_backend(None)
    assert n > len(soak.KINDS)
    growth = soak.growth(sizes)
    assert all(last <= 1.1 * first for first, last in growth.values()), growth
