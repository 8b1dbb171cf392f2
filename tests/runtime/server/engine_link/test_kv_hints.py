"""KV hints for the engine: Hold for resting states, EvictFirst for dropped ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from banyan.radix_cache.digests import n_common
from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import (
    Append,
    BeginTurn,
    CacheHint,
    Drop,
    EndTurn,
    EvictFirst,
    Fork,
    Gen,
    Hold,
    Join,
    Release,
)
from banyan.runtime.server.engine_link import kv_hints
from banyan.runtime.server.engine_link.kv_hints import KVHintSender
from banyan.runtime.server.text.prompt import pack, unpack

SHORT = wire.Sampling(max_tokens=2, temperature=0.0)


@pytest.fixture
def clocked(bench: Callable[..., Any]) -> Any:
    """A bench with its own clock."""
    b = bench()
    b.requests.kv_hints.clock = lambda: b.now
    return b


def commands(b: Any, kind: type) -> list[Any]:
    return [command for command in b.engine.steered if isinstance(command, kind)]


def active_holds(b: Any) -> list[int]:
    """The numbers of the holds that have not been released."""
    ended = {command.hold for command in commands(b, Release)}
    return [command.hold for command in commands(b, Hold) if command.hold not in ended]


def test_resting_state_is_held_until_its_next_run(clocked: Any) -> None:
    clocked.submit(Append(0, ("one two three",)), Gen(0, 0, SHORT))
    clocked.run()
    (hold,) = commands(clocked, Hold)
    assert unpack(hold.ids)[: len(clocked.ids(0))] == clocked.ids(0)
    assert len(hold.ids) // 4 == len(clocked.ids(0)) + 2, "prompt and output"
    assert hold.steps > 0
    clocked.now = 0.5
    clocked.submit(Append(0, (" four",)), Gen(0, 1, SHORT))
    assert active_holds(clocked) == [hold.hold], "held until the request has run"
    clocked.run()
    (next_hold,) = active_holds(clocked)
    assert next_hold != hold.hold, "the rest after the second gen"
    clocked.programs.cancel(b"me", wire.Cancel(0, 9))
    assert active_holds(clocked) == []


def test_state_that_continues_at_once_is_not_held(clocked: Any) -> None:
    ops = [op for ref in range(5) for op in (Append(0, (" more",)), Gen(0, ref, SHORT))]
    clocked.submit(*ops)
    clocked.run()
    assert len(commands(clocked, Hold)) == 1, "only the rest after the last gen"


def test_hold_lasts_as_long_as_earlier_rests(clocked: Any) -> None:
    for ref in range(8):
        clocked.submit(Append(0, (" more",)), Gen(0, ref, SHORT))
        clocked.run()
        clocked.now += 4.0
    last = commands(clocked, Hold)[-1]
    assert last.steps * clocked.requests.kv_hints._steps[0] == pytest.approx(4.0, rel=0.1)


def test_states_that_do_not_return_are_not_held(clocked: Any) -> None:
    clocked.submit(Append(0, ("a",)), Gen(0, 0, SHORT))
    clocked.run()
    assert len(active_holds(clocked)) == 1
    clocked.now += 1000.0
    clocked.submit(Append(0, ("b",)), Gen(0, 0, SHORT), program=1)
    clocked.run()
    assert 1 not in active_holds(clocked), "the return is long overdue"
    for number in range(2, 6):
        clocked.submit(Append(0, ("c",)), Gen(0, 0, SHORT), program=number)
        clocked.run()
        clocked.now += 1000.0
    n = len(commands(clocked, Hold))
    clocked.submit(Append(0, ("d",)), Gen(0, 0, SHORT), program=9)
    clocked.run()
    assert len(commands(clocked, Hold)) == n, "programs of this name end after this gen"


def test_rests_of_tool_calls_are_measured_per_tool(clocked: Any) -> None:
    keeper = clocked.requests.kv_hints
    for number in range(6):  # programs of this name never continue ...
        clocked.submit(Append(0, ("x",)), Gen(0, 0, SHORT), program=number)
        clocked.run()
        clocked.now += 100.0
    keeper.begin(77, "test")
    run = wire.Run(0, pack([1, 2, 3]), SHORT, order=(77, 0, 1, 0))
    for seconds in (3.0, 3.0, 3.0, 3.0):
        keeper.started(run)
        keeper.ended(run, bytearray(pack([4])))
        keeper.calls(77, 0, ("look",))
        n = len(commands(clocked, Hold))
        deque(keeper.settle(), 0)
        assert len(commands(clocked, Hold)) == n + 1, "... except after a tool call"
        clocked.now += seconds
    assert commands(clocked, Hold)[-1].steps * keeper._steps[0] == pytest.approx(3.0)


def test_long_chain_of_dropped_states_is_evicted_in_pieces(clocked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_hints, "LINKS", 2)
    ops: list[Any] = [Append(0, ("a",))]
    for k in range(5):
        ops += [Gen(k, k, SHORT), Fork(k, (k + 1,)), Append(k + 1, ("b",))]
    clocked.submit(*ops, Gen(5, 5, wire.Sampling(max_tokens=50)))
    clocked.run(40)
    clocked.submit(*map(Drop, range(1, 6)))
    assert len(commands(clocked, EvictFirst)) == 2
    clocked.submit(Append(0, ("c",)), Gen(0, 9, SHORT))
    clocked.run()
    assert len(commands(clocked, EvictFirst)) == 5


def test_dropped_branches_are_evicted_up_to_the_fork(clocked: Any) -> None:
    clocked.submit(
        Append(0, ("all have this in common",)),
        Gen(0, 0, SHORT),
        Fork(0, (1, 2, 3)),
        *(op for k in (1, 2, 3) for op in (Append(k, (f" and {k}",)), Gen(k, k, wire.Sampling(max_tokens=50)))),
    )
    clocked.run(8)
    assert len(clocked.engine.running) == 3
    clocked.submit(Drop(1), Drop(3))
    evicted = {command.ids: command.n_shared for command in commands(clocked, EvictFirst)}
    assert len(evicted) == 2
    n_known = len(clocked.ids(0)) + 2
    for run in clocked.engine.runs[1:]:
        ids = next((ids for ids in evicted if ids.startswith(run.ids)), None)
        assert (ids is not None) == (run.order[1] != 2)
        if ids is not None:
            assert len(ids) > len(run.ids), "prompt and output"
            assert n_common(ids, 0, clocked.engine.runs[2].ids) >= evicted[ids] >= n_known


def test_shared_prefix_is_found_without_a_run_of_the_parent(clocked: Any) -> None:
    clocked.submit(
        Append(0, ("all have this in common",)),
        Fork(0, (1, 2)),
        *(op for k in (1, 2) for op in (Append(k, (f" and {k}",)), Gen(k, k, SHORT))),
    )
    clocked.run()
    a, b = (run.ids for run in clocked.engine.runs)
    clocked.submit(Drop(1))
    (command,) = commands(clocked, EvictFirst)
    assert command.n_shared == n_common(a, 0, b) > 3


def test_dropped_branch_without_a_run_evicts_nothing(clocked: Any) -> None:
    clocked.submit(Append(0, ("a b c",)), Gen(0, 0, SHORT), Fork(0, (1, 2)), Append(1, ("x",)), Drop(1), Drop(2))
    clocked.run()
    clocked.submit(Drop(1))
    assert commands(clocked, EvictFirst) == []


def test_dropped_parent_is_evicted_after_its_branches(clocked: Any) -> None:
    clocked.submit(
        Append(0, ("a b c",)), Fork(0, (1,)), Append(1, (" d",)), Gen(1, 0, SHORT), Fork(1, (2, 3)),
        Append(2, (" e",)), Gen(2, 1, SHORT), Append(3, (" f",)), Gen(3, 2, SHORT),
    )  # fmt: skip
    clocked.run()
    clocked.submit(Drop(1))
    assert commands(clocked, EvictFirst) == [], "its branches still exist"
    clocked.submit(Drop(2))
    assert len(commands(clocked, EvictFirst)) == 1
    clocked.submit(Drop(3))
    assert len(commands(clocked, EvictFirst)) == 3
    assert len({command.ids for command in commands(clocked, EvictFirst)}) == 3


def test_adopted_branch_is_not_evicted(clocked: Any) -> None:
    clocked.submit(Append(0, ("a b c",)), Fork(0, (1, 2)), Append(1, (" d",)), Gen(1, 0, SHORT), Gen(2, 1, SHORT))
    clocked.run()
    clocked.submit(Join(0, (1,), adopt=True), Drop(1), Drop(2))
    assert len(commands(clocked, EvictFirst)) == 1
    assert not commands(clocked, EvictFirst)[0].ids.startswith(clocked.engine.runs[0].ids)


def test_cache_hints_become_holds(clocked: Any) -> None:
    clocked.submit(
        Append(0, ("a long text",)),
        CacheHint(0, pin=60.0),
        CacheHint(0, steps=20.0, prefetch=True),
        CacheHint(0, prefetch=True),
    )
    pin, steps_hint, prefetch = commands(clocked, Hold)
    assert (pin.seconds, pin.steps, pin.prefetch) == (60.0, -1.0, False)
    assert (steps_hint.seconds, steps_hint.steps, steps_hint.prefetch) == (0.0, 20.0, True)
    assert (prefetch.seconds, prefetch.steps, prefetch.prefetch) == (0.0, -1.0, True)
    clocked.submit(Gen(0, 0, SHORT))
    assert unpack(pin.ids) == clocked.ids(0) == unpack(steps_hint.ids)
    assert active_holds(clocked) == [pin.hold, steps_hint.hold], "held until the request has run"
    clocked.run()
    assert pin.hold in active_holds(clocked)
    assert steps_hint.hold not in active_holds(clocked), "released by the run"
    clocked.programs.cancel(b"me", wire.Cancel(0, 9))
    assert active_holds(clocked) == [pin.hold], "a pin outlives its program"


def test_pin_ends_with_zero_or_with_its_state(clocked: Any) -> None:
    clocked.submit(Append(0, ("a",)), CacheHint(0, pin=60.0), CacheHint(0, pin=30.0))
    assert len(active_holds(clocked)) == 1, "the second pin replaces the first"
    clocked.submit(CacheHint(0, pin=0.0))
    assert active_holds(clocked) == []
    clocked.submit(Fork(0, (1,)), Append(1, ("b",)), CacheHint(1, pin=60.0))
    assert len(active_holds(clocked)) == 1
    clocked.submit(Drop(1))
    assert active_holds(clocked) == []


def test_hint_waits_for_encoding_and_is_skipped_for_a_dropped_state(clocked: Any) -> None:
    clocked.held = []
    clocked.submit(Append(0, ("a",)), CacheHint(0, pin=60.0), Fork(0, (1,)), CacheHint(1, pin=60.0), Drop(1))
    assert commands(clocked, Hold) == []
    for encode in clocked.held:
        encode()
    assert len(active_holds(clocked)) == 1


@pytest.mark.parametrize("hint", [{"pin": -1.0}, {"pin": float("inf")}, {"steps": float("nan")}, {"steps": -0.5}])
def test_invalid_hint_is_refused(clocked: Any, hint: dict[str, float]) -> None:
    clocked.submit(Append(0, ("a",)), CacheHint(0, **hint), Gen(0, 0, SHORT))
    assert clocked.failed(0).code == BadProgram.code
    assert next(iter(hint)) in clocked.failed(0).message
    assert commands(clocked, Hold) == []


def test_hint_without_an_encodable_prompt_is_ignored(bench: Callable[..., Any]) -> None:
    b = bench(template=None)
    b.submit(Append(0, (BeginTurn("user"), "hi", EndTurn())), CacheHint(0, pin=9.0))
    assert b.messages(wire.Failed) == []


def test_ended_programs_are_forgotten(clocked: Any) -> None:
    for number in range(20):
        clocked.submit(Append(0, ("a",)), Fork(0, (1, 2)), Gen(1, 0, SHORT), Gen(2, 1, SHORT), program=number)
        clocked.run(3)
        clocked.programs.cancel(b"me", wire.Cancel(number, 9))
    keeper = clocked.requests.kv_hints
    assert [*keeper._programs, *keeper._names, *keeper._newly_resting, *keeper._overdue] == []
    assert active_holds(clocked) == []


def test_events_of_unknown_programs_are_ignored() -> None:
    keeper = KVHintSender(clock=lambda: 0.0)
    keeper.calls(5, 0, ("x",))
    keeper.drop(5, 0)
    keeper.adopted(5, 0, 1)
    deque(keeper.end(5), 0)
    deque(keeper.settle(), 0)


def test_memory_of_ended_rests_is_bounded(clocked: Any) -> None:
    keeper = clocked.requests.kv_hints
    run = wire.Run(0, pack([1]), SHORT, order=(1, 0, 0, 0))
    for _ in range(5000):
        keeper.started(run)
        keeper.ended(run, bytearray())
        deque(keeper.settle(), 0)
        clocked.now += 0.01
    assert len(keeper._overdue) <= 1100


def test_programs_that_the_engine_refuses_are_forgotten(clocked: Any) -> None:
    """The engine makes no step, after which resting states would be looked at."""
    hints = clocked.requests.kv_hints
    clocked.submit(Append(0, ("one " * 600,)), Gen(0, 0, SHORT), last=True)
    clocked.run()
    assert clocked.failed(0).code == "prompt_too_long"
    assert not hints._newly_resting
    assert not hints._programs
