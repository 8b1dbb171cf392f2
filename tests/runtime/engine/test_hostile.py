"""Hostile constraints that pass the checker do not delay other requests in the batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.protocol.wire import ConstraintSpec, Sampling
from forms import short_form

TESTS = Path(__file__).parents[2]
NEIGHBOUR = Sampling(temperature=0.0, max_tokens=40, ignore_eos=True)
BATCH = 8


@pytest.fixture(scope="module")
def hostile(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """The module with the hostile inputs and the checker driver."""
    return module_at(TESTS / "runtime" / "server" / "constraints" / "test_constraint_checker.py")


@pytest.fixture(scope="module")
def bench(module_at: Callable[[Path], ModuleType], tiny_model: Callable[..., Path]) -> Any:
    return module_at(TESTS.parent / "benchmarks" / "constraint_work.py").Bench(str(tiny_model("llama")))


@pytest.fixture(scope="module")
def desk(hostile: ModuleType, bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hostile.patient_driver(bench.tokenizer, tmp_path_factory.mktemp("d") / "s")


def delay(bench: Any, constraints: list[ConstraintSpec]) -> int:
    """Steps in which a request batched with these constraints got no token. They are compiled before it begins."""
    for constraint in constraints:
        bench.finish([bench.begin("hello", Sampling(max_tokens=1, constraint=constraint))])
    for constraint in constraints:
        bench.begin("hello there", Sampling(temperature=1.5, max_tokens=100, constraint=constraint))
    rid = bench.begin("the quick brown fox", NEIGHBOUR)
    output = bench.finish([rid])[rid]
    assert (output.reason, len(output.ids)) == ("length", NEIGHBOUR.max_tokens)
    return output.steps[-1] - NEIGHBOUR.max_tokens


def check(bench: Any, desk: Any, specs: list[ConstraintSpec]) -> int:
    """Run the specs that the checker accepts, and return their number."""
    accepted = [verdict for verdict in desk.ask(*specs) if isinstance(verdict, ConstraintSpec)]
    for first in range(0, len(accepted), BATCH):
        batch = accepted[first : first + BATCH]
        assert delay(bench, batch) <= 1, batch
    bench.engine.scheduler.check()
    return len(accepted)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_hostile_constraints_delay_no_other_request(bench: Any, desk: Any, hostile: ModuleType) -> None:
    assert check(bench, desk, [spec for spec, code in hostile.HOSTILE.values() if not code]) > 20


def mutants(hostile: ModuleType, seeds: range) -> list[ConstraintSpec]:
    return [hostile.mutate(random.Random(seed)) for seed in seeds]


@pytest.mark.parametrize(
    ("first", "least"), short_form([(25, 1), (0, 4)], lambda first, _: first), ids=["25 of them", "50 of them"]
)
@pytest.mark.timeout(400)
def test_fuzzed_constraints_delay_no_other_request(
    bench: Any, desk: Any, hostile: ModuleType, first: int, least: int
) -> None:
    assert check(bench, desk, mutants(hostile, range(first, 50))) > least


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_thousand_fuzzed_constraints_delay_no_other_request(bench: Any, desk: Any, hostile: ModuleType) -> None:
    chunks = [mutants(hostile, range(first, first + 50)) for first in range(1000, 2000, 50)]
    assert sum(check(bench, desk, chunk) for chunk in chunks) > 20, "enough of them are accepted"
