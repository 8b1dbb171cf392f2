"""Priorities and deadlines of gens, runs and batches, as sent to the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.protocol import wire


class LimitsMock(bn.Mock):
    """Records the limits of its programs."""

    def __init__(self) -> None:
        super().__init__("x")
        self.limits: list[wire.ProgramLimits] = []

    def program(self, name: str = "") -> Any:
        program = super().program(name)
        program.limit = self.limits.append
        return program


@bn.function
def single_gen(s: bn.State, **options: Any) -> None:
    s += "prompt" + bn.gen("a", **options)


def test_gen_priority_and_deadline_are_sent_with_the_gen() -> None:
    mock = LimitsMock()
    single_gen.run(backend=mock)
    single_gen.bind(priority=3, deadline=2.5).run(backend=mock)
    ops = [call.op for call in mock.calls]
    assert [(op.priority, op.deadline) for op in ops if isinstance(op, wire.Gen)] == [(None, 0.0), (3, 2.5)]
    assert not mock.limits


def test_run_priority_and_deadline_are_sent_with_the_program() -> None:
    mock = LimitsMock()
    single_gen.run(backend=mock, priority=-4)
    single_gen.run(backend=mock, opts=bn.Options(deadline=60))
    with_priority, with_deadline = mock.limits
    assert (with_priority.priority, with_priority.deadline) == (-4, 0.0)
    assert (with_priority.timeout, with_priority.budgets) == (0.0, ())
    assert with_deadline.priority == 0
    assert 59 < with_deadline.deadline <= 60
    assert not with_deadline.timeout, "a late program is not ended"


def test_batch_deadline_applies_to_all_its_runs() -> None:
    mock = LimitsMock()
    single_gen.run_batch([{}] * 4, backend=mock, deadline=100, priority=2)
    assert {limits.priority for limits in mock.limits} == {2}
    assert all(99 < limits.deadline <= 100 for limits in mock.limits)
    mock.limits.clear()
    single_gen.run_batch([{}], backend=mock, deadline=100, opts=bn.Options(deadline=5))
    assert 4 < mock.limits[0].deadline <= 5, "the earlier deadline wins"

    async def many() -> None:
        await single_gen.run_batch_async([{}, {}], backend=mock, deadline=7)

    mock.limits.clear()
    asyncio.run(many())
    assert all(6 < limits.deadline <= 7 for limits in mock.limits)
    assert len(mock.limits) == 2


def test_called_programs_inherit_priority_and_deadline_on_the_same_backend() -> None:
    mock, other = LimitsMock(), LimitsMock()

    @bn.function
    def calls(s: bn.State) -> None:
        single_gen.run()
        single_gen.run(priority=1, opts=bn.Options(deadline=5))
        single_gen.run_batch([{}])
        single_gen.run(backend=other)

    calls.run_batch([{}], backend=mock, priority=-10, deadline=60)
    assert [limits.priority for limits in mock.limits] == [-10, -10, 1, -10]
    assert [limits.deadline > 5 for limits in mock.limits] == [True, True, False, True]
    assert all(limits.deadline <= 60 for limits in mock.limits)
    assert other.limits == [], "another server has a queue of its own"


def test_openai_backend_has_no_priority_or_deadline() -> None:
    pytest.importorskip("openai")
    api = bn.OpenAI("m", base_url="http://localhost:9/v1", api_key="none")
    for options in ({"priority": 1}, {"deadline": 9.0}):
        with pytest.raises(bn.Unsupported, match=next(iter(options))):
            single_gen.run(backend=api, opts=bn.Options(**options))  # type: ignore[arg-type]
        with pytest.raises(bn.Unsupported, match=next(iter(options))):
            single_gen.bind(**options).run(backend=api)["a"]


def test_one_template_serves_all_priorities() -> None:
    mock = LimitsMock()

    @bn.function
    def ask(s: bn.State, what: str) -> None:
        s += what + bn.gen("a", priority=1)

    compiled = bn.compile(ask)
    for priority in (0, 5, 9):
        compiled.run("q", backend=mock, priority=priority or None)
    assert [limits.priority for limits in mock.limits] == [5, 9]
    assert compiled.explain().startswith("ask has 1 template")
    assert all(isinstance(call.op, wire.Gen) and call.op.priority == 1 for call in mock.calls)
