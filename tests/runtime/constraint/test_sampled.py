"""Outputs that the pocket model samples under random schemas, each validated by the jsonschema package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.constraint.vocabulary import Vocabulary

FILE = Path(__file__).parents[3] / "benchmarks" / "constraint_work.py"
RANDOM = FILE.with_name("constraint_random.py")


@pytest.fixture(scope="module")
def work(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(FILE)


@pytest.fixture(scope="module")
def vocabulary(bench: Any) -> Vocabulary:
    return Vocabulary(bench.tokenizer.vocabulary(), len(bench.tokenizer.spelling))


@pytest.fixture(scope="module")
def bench(work: ModuleType) -> Any:
    return work.Bench()


def check(counts: Counter[str]) -> None:
    """All outputs are valid, except for a few that max_tokens truncates."""
    assert counts.keys() <= {"valid", "length"}, counts
    assert counts["length"] < 0.3 * counts.total()


def test_sampled_outputs_are_valid(work: ModuleType, bench: Any) -> None:
    check(work.sampled(bench, range(15), 1))


def check_random(work: ModuleType, vocabulary: Any, first: int, n: int) -> None:
    """No random schema lets an invalid value pass; nearly all are handled, and nearly all valid values pass."""
    found = work.judged((work.any_schema(Random(i)) for i in range(first, first + n)), vocabulary, 4)
    assert not {"INVALID", "INVALID ACCEPTED"} & found.keys(), found
    assert sum(n for key, n in found.items() if "refused:" in key) < 0.05 * n
    assert found["enforced"] > 0.5 * n
    assert found["valid but refused"] < 0.1 * found["accepted"]


def test_random_schemas_of_all_keywords(module_at: Callable[[Path], ModuleType], vocabulary: Any) -> None:
    check_random(module_at(RANDOM), vocabulary, 0, 10)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_thousands_of_random_schemas_of_all_keywords(module_at: Callable[[Path], ModuleType], vocabulary: Any) -> None:
    check_random(module_at(RANDOM), vocabulary, 0, 4000)


def test_judge_rejects_invalid_outputs(work: ModuleType) -> None:
    assert work.judge({"type": "integer"}, "1") == "valid"
    assert work.judge({"type": "integer"}, "1.5") != "valid"
    assert work.judge({"type": "string", "format": "date"}, '"2026-13-01"') != "valid"
    assert "not JSON" in work.judge({"type": "object"}, '{"a": ')


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_sampled_outputs_are_valid(work: ModuleType, bench: Any) -> None:
    for first in range(0, 2500, 500):
        check(work.sampled(bench, range(first, first + 500), 4))
