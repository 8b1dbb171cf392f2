"""Priorities and deadlines: what a gen, a run and a batch tell the server. It is for the server to keep them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.protocol import wire


class Told(bn.Mock):
    """Keeps the limits that its programs were begun with."""

    def __init__(self) -> None:
        super().__init__("x")
        self.limits: list[wire.ProgramLimits] = []

    def program(self, name: str = "") -> Any:
        made = super().program(name)
        made.limit = self.limits.append
        return made


@bn.function
def one(s: bn.State, **options: Any) -> None:
    s += "prompt" + bn.gen("a", **options)


def test_those_of_a_gen_are_of_that_gen() -> None:
    mock = Told()
    one.run(backend=mock)
    one.bind(priority=3, deadline=2.5).run(backend=mock)
    ops = [call.op for call in mock.calls]
    assert [(op.priority, op.deadline) for op in ops if isinstance(op, wire.Gen)] == [(None, 0.0), (3, 2.5)]
    assert not mock.limits


def test_those_of_a_run_are_of_its_program() -> None:
    mock = Told()
    one.run(backend=mock, priority=-4)
    one.run(backend=mock, opts=bn.Options(deadline=60))
    (low, soon) = mock.limits
    assert (low.priority, low.deadline, low.timeout, low.budget) == (-4, 0.0, 0.0, 0)
    assert soon.priority == 0
    assert 59 < soon.deadline <= 60
    assert not soon.timeout, "what is late goes on"


def test_the_deadline_of_a_batch_is_the_same_for_all_its_runs() -> None:
    mock = Told()
    one.run_batch([{}] * 4, backend=mock, deadline=100, priority=2)
    assert {limits.priority for limits in mock.limits} == {2}
    assert all(99 < limits.deadline <= 100 for limits in mock.limits)
    mock.limits.clear()
    one.run_batch([{}], backend=mock, deadline=100, opts=bn.Options(deadline=5))
    assert 4 < mock.limits[0].deadline <= 5, "the earlier one holds"

    async def many() -> None:
        await one.run_batch_async([{}, {}], backend=mock, deadline=7)

    mock.limits.clear()
    asyncio.run(many())
    assert all(6 < limits.deadline <= 7 for limits in mock.limits)
    assert len(mock.limits) == 2


@pytest.mark.parametrize("options", [{"priority": 101}, {"priority": -101}, {"priority": 1.5}, {"deadline": 0.0}])
def test_what_cannot_be(mock: bn.Mock, options: dict[str, Any]) -> None:
    for ask in (lambda: bn.gen("a", **options), lambda: one.run(opts=bn.Options(**options), **options)):
        with pytest.raises(bn.BadProgram, match="bad option"):
            ask()


def test_an_api_has_no_order_of_ours() -> None:
    pytest.importorskip("openai")
    api = bn.OpenAI("m", base_url="http://localhost:9/v1", api_key="none")
    for options in ({"priority": 1}, {"deadline": 9.0}):
        with pytest.raises(bn.Unsupported, match=next(iter(options))):
            one.run(backend=api, opts=bn.Options(**options))  # type: ignore[arg-type]
        with pytest.raises(bn.Unsupported, match=next(iter(options))):
            one.bind(**options).run(backend=api)["a"]


def test_a_template_serves_runs_of_any_urgency() -> None:
    mock = Told()

    @bn.function
    def ask(s: bn.State, what: str) -> None:
        s += what + bn.gen("a", priority=1)

    fast = bn.compile(ask)
    for priority in (0, 5, 9):
        fast.run("q", backend=mock, priority=priority or None)
    assert [limits.priority for limits in mock.limits] == [5, 9]
    assert fast.explain().startswith("ask has 1 template")
    assert all(isinstance(call.op, wire.Gen) and call.op.priority == 1 for call in mock.calls)
