"""Outputs that the pocket model samples under random schemas, each validated by the jsonschema package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).parents[3] / "benchmarks" / "constraint_work.py"


@pytest.fixture(scope="module")
def work(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(FILE)


@pytest.fixture(scope="module")
def bench(work: ModuleType) -> Any:
    return work.Bench()


def check(counts: Counter[str]) -> None:
    """All outputs are valid, except for a few that max_tokens truncates."""
    assert counts.keys() <= {"valid", "length"}, counts
    assert counts["length"] < 0.3 * counts.total()


def test_sampled_outputs_are_valid(work: ModuleType, bench: Any) -> None:
    check(work.sampled(bench, range(150), 2))


def test_judge_rejects_invalid_outputs(work: ModuleType) -> None:
    assert work.judge({"type": "integer"}, "1") == "valid"
    assert work.judge({"type": "integer"}, "1.5") != "valid"
    assert work.judge({"type": "string", "format": "date"}, '"2026-13-01"') != "valid"
    assert "not JSON" in work.judge({"type": "object"}, '{"a": ')


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_sampled_outputs_are_valid(work: ModuleType, bench: Any) -> None:
    for first in range(1000, 3500, 500):
        check(work.sampled(bench, range(first, first + 500), 4))
