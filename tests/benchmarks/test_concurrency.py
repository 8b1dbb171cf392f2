"""Threads and memory of many concurrent programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "concurrency.py"


@pytest.fixture(scope="module")
def concurrency(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(FILE)


@pytest.mark.long
def test_number_of_threads_is_at_most_the_pool_and_four(concurrency: ModuleType) -> None:
    assert concurrency.apart("threads") <= concurrency.N_THREADS + 4


@pytest.mark.long
def test_async_program_needs_less_than_20_kilobytes(concurrency: ModuleType) -> None:
    assert concurrency.apart("memory", 1000)["KB"] < 20


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_of_ten_thousand_async_programs_needs_less_than_20_kilobytes(concurrency: ModuleType) -> None:
    assert concurrency.apart("memory", 10_000)["KB"] < 20
