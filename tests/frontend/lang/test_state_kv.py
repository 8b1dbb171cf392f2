"""`State.kv`: the cache hints a program sends, and when."""

from __future__ import annotations

from typing import Any

import pytest

import banyan as bn
from banyan.runtime.protocol import wire


def cache_hints(mock: Any) -> list[wire.CacheHint]:
    return [op for ops in mock.submits for op in ops if isinstance(op, wire.CacheHint)]


def run(body: Any) -> Any:
    mock = bn.Mock("yes")
    state = bn.function(body).run(backend=mock)
    assert state["x"] == "yes"
    return mock


def test_each_call_sends_one_hint_for_its_state() -> None:
    def body(s: bn.State) -> None:
        s += "a"
        s.kv.pin(60)
        (branch,) = s.fork(1)
        branch.kv.expect(20)
        s.kv.prefetch()
        s.kv.pin(0)
        s += bn.gen("x")

    mock = run(body)
    branch = next(op.children[0] for ops in mock.submits for op in ops if isinstance(op, wire.Fork))
    assert cache_hints(mock) == [
        wire.CacheHint(0, pin=60),
        wire.CacheHint(branch, steps=20),
        wire.CacheHint(0, prefetch=True),
        wire.CacheHint(0, pin=0),
    ]


def test_pin_waits_for_the_next_message_and_expect_is_sent_immediately() -> None:
    def body(s: bn.State) -> None:
        s += "a"
        s.kv.pin(60)
        s += bn.gen("x")

    assert len(run(body).submits) == 1

    def with_expect(s: bn.State) -> None:
        s += "a"
        s.kv.expect(5)
        s += bn.gen("x")

    assert [len(ops) for ops in run(with_expect).submits] == [2, 1]


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["pin", "expect"])
def test_invalid_hint_is_refused(name: str, value: float) -> None:
    def body(s: bn.State) -> None:
        with pytest.raises(bn.BadProgram, match=f"kv.{name}"):
            getattr(s.kv, name)(value)
        s += bn.gen("x")

    assert cache_hints(run(body)) == []


def test_dropped_branch_has_no_kv() -> None:
    def body(s: bn.State) -> None:
        branch = s.fork(1)[0]
        branch.drop()
        with pytest.raises(bn.BadProgram, match="was dropped"):
            _ = branch.kv
        s += bn.gen("x")

    run(body)


def test_compiled_program_may_pin() -> None:
    @bn.function
    def program(s: bn.State, word: str) -> None:
        s += word
        s.kv.pin(60)
        s += bn.gen("x")

    compiled = bn.compile(program)
    states = compiled.run_batch([{"word": "a"}, {"word": "b"}], backend=bn.Mock("yes"))
    assert [state["x"] for state in states] == ["yes", "yes"]
