"""Many programs at once: how many threads they take, and how much memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "concurrency.py"


@pytest.fixture(scope="module")
def concurrency(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(FILE)


def test_threads_are_those_of_the_pool_and_four_more(concurrency: ModuleType) -> None:
    assert concurrency.apart("threads") <= concurrency.N_THREADS + 4


def test_an_async_program_takes_less_than_20_kilobytes(concurrency: ModuleType) -> None:
    assert concurrency.apart("memory", 1000)["KB"] < 20


@pytest.mark.long
@pytest.mark.timeout(600)
def test_so_do_ten_thousand(concurrency: ModuleType) -> None:
    assert concurrency.apart("memory", 10_000)["KB"] < 20
