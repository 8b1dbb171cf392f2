"""Gens that wait for their constraint: what goes to the engine, and when."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from banyan.runtime.errors import ConstraintUnsupported
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, ConstraintSpec, Fork, Gen

ASKED = ConstraintSpec("json_schema", '{"title": "n", "type": "integer"}')
GIVEN = ConstraintSpec("json_schema", '{"type": "integer"}')
HELD = wire.Sampling(max_tokens=3, temperature=0.0, constraint=ASKED)


def test_the_engine_hears_of_a_gen_when_its_constraint_is_good(bench: Any) -> None:
    b = bench()
    b.checks = []
    b.submit(Append(0, ("a",)), Gen(0, 0, HELD), Append(0, ("b",)))
    b.submit(Append(0, ("a",)), Gen(0, 0, wire.Sampling(max_tokens=2)), program=1)
    b.run()
    assert len(b.engine.runs) == 1, "the other program did not wait"
    ((spec, owner, then),) = b.checks
    assert spec == ASKED
    assert owner == b.engine.runs[0].client
    then(GIVEN)
    assert b.engine.runs[-1].sampling == msgspec.structs.replace(HELD, constraint=GIVEN)
    b.run()
    assert b.value(0).samples[0].finish_reason == "length"


def test_samples_share_one_check(bench: Any) -> None:
    b = bench()
    b.checks = []
    b.submit(Append(0, ("a",)), Gen(0, 0, msgspec.structs.replace(HELD, n=3)))
    ((_, _, then),) = b.checks
    then(GIVEN)
    assert [run.sampling.constraint for run in b.engine.runs] == [GIVEN] * 3


def test_a_refusal_fails_the_gen_with_its_code_and_words(bench: Any) -> None:
    b = bench()
    b.checks = []
    b.submit(Append(0, ("hello",)), Gen(0, 0, HELD), Fork(0, (1,)), Gen(1, 1, wire.Sampling(max_tokens=1)))
    b.checks[0][-1](ConstraintUnsupported("not this"))
    failed = b.failed(0)
    assert (failed.code, failed.message) == ("constraint_unsupported", "not this")
    assert b.failed(1).code == "constraint_unsupported", "what stands behind it fails for the same reason"
    assert b.engine.runs == []


def test_a_verdict_that_comes_too_late_starts_nothing(bench: Any) -> None:
    b = bench()
    b.checks = []
    b.submit(Append(0, ("a",)), Gen(0, 0, HELD))
    b.programs.cancel(b"me", wire.Cancel(program=0, seq=1))
    b.checks[0][-1](GIVEN)
    assert b.engine.runs == []


@pytest.mark.parametrize("limit", ["", "x"])
def test_eos_cannot_be_ignored_where_it_ends_a_value(bench: Any, limit: str) -> None:
    b = bench()
    sampling = msgspec.structs.replace(HELD, ignore_eos=True, stop=(limit,) if limit else ())
    b.submit(Append(0, ("a",)), Gen(0, 0, sampling))
    assert b.failed(0).code == "bad_program"
    assert "ignore_eos cannot be combined with a constraint" in b.failed(0).message
