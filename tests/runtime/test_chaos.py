"""All faults at once, on real processes: every value equals that of a run without faults, and nothing is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def storm(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(BENCHMARKS / "chaos_storm.py")


@pytest.mark.parametrize("kind", range(6))
def test_program_kinds_list_the_refs_of_their_ops(storm: ModuleType, kind: int) -> None:
    ops, refs = storm.ops(kind, kind)
    assert tuple(op.ref for op in ops if hasattr(op, "ref")) == refs


@pytest.mark.timeout(600)
def test_texts_under_faults_equal_those_of_a_calm_run(storm: ModuleType, tiny_model: Callable[..., Path]) -> None:
    with contextlib.closing(storm.serve(tiny_model("llama"), max_running=12)) as server:
        undisturbed = storm.run(server, 48, None)
        assert len(set(undisturbed.texts)) > 40
        assert not any(text.startswith(storm.ERROR) for texts in undisturbed.texts for text in texts)
        assert (undisturbed.n_starts, undisturbed.left) == (0, {})
        faults = storm.Faults(kills=1, stops=1, vanishing=1)
        disturbed = storm.run(server, 48, faults)
        assert disturbed.texts == undisturbed.texts
        assert disturbed.n_starts >= 2
        assert disturbed.left == {}
