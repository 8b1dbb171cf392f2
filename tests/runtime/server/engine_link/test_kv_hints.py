"""What the engine is told of the future of states: holds while they rest, and burials of those that lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
from banyan.runtime.server.engine_link.kv_hints import KVHintSender, n_common
from banyan.runtime.server.text.prompt import pack, unpack

SHORT = wire.Sampling(max_tokens=2, temperature=0.0)


@pytest.fixture
def kept(bench: Callable[..., Any]) -> Any:
    """A bench with a clock of its own."""
    b = bench()
    b.requests.kv_hints.clock = lambda: b.now
    return b


def steered(b: Any, kind: type) -> list[Any]:
    return [order for order in b.engine.steered if isinstance(order, kind)]


def held(b: Any) -> list[int]:
    """The numbers of what the engine holds."""
    ended = {order.hold for order in steered(b, Release)}
    return [order.hold for order in steered(b, Hold) if order.hold not in ended]


def test_a_state_that_rests_is_held_until_it_has_run_again(kept: Any) -> None:
    kept.submit(Append(0, ("one two three",)), Gen(0, 0, SHORT))
    kept.run()
    (hold,) = steered(kept, Hold)
    assert unpack(hold.ids)[: len(kept.ids(0))] == kept.ids(0)
    assert len(hold.ids) // 4 == len(kept.ids(0)) + 2, "and what was said"
    assert hold.steps > 0
    kept.now = 0.5
    kept.submit(Append(0, (" four",)), Gen(0, 1, SHORT))
    assert held(kept) == [hold.hold], "its request may have to wait for its turn"
    kept.run()
    (again,) = held(kept)
    assert again != hold.hold, "the rest behind that"
    kept.programs.cancel(b"me", wire.Cancel(0, 9))
    assert held(kept) == []


def test_nothing_is_said_of_a_state_that_goes_straight_on(kept: Any) -> None:
    ops = [op for ref in range(5) for op in (Append(0, (" more",)), Gen(0, ref, SHORT))]
    kept.submit(*ops)
    kept.run()
    assert len(steered(kept, Hold)) == 1, "the rest behind the last"


def test_the_wait_is_as_long_as_those_before_it(kept: Any) -> None:
    for ref in range(8):
        kept.submit(Append(0, (" more",)), Gen(0, ref, SHORT))
        kept.run()
        kept.now += 4.0
    last = steered(kept, Hold)[-1]
    assert last.steps * kept.requests.kv_hints._step_seconds == pytest.approx(4.0, rel=0.1)


def test_who_does_not_come_back_is_not_waited_for(kept: Any) -> None:
    kept.submit(Append(0, ("a",)), Gen(0, 0, SHORT))
    kept.run()
    assert len(held(kept)) == 1
    kept.now += 1000.0
    kept.submit(Append(0, ("b",)), Gen(0, 0, SHORT), program=1)
    kept.run()
    assert 1 not in held(kept), "it is long overdue"
    for number in range(2, 6):
        kept.submit(Append(0, ("c",)), Gen(0, 0, SHORT), program=number)
        kept.run()
        kept.now += 1000.0
    n = len(steered(kept, Hold))
    kept.submit(Append(0, ("d",)), Gen(0, 0, SHORT), program=9)
    kept.run()
    assert len(steered(kept, Hold)) == n, "programs of this name end there"


def test_a_tool_s_wait_is_its_own(kept: Any) -> None:
    keeper = kept.requests.kv_hints
    for number in range(6):  # programs of this name never go on ...
        kept.submit(Append(0, ("x",)), Gen(0, 0, SHORT), program=number)
        kept.run()
        kept.now += 100.0
    keeper.begin(77, "test")
    run = wire.Run(0, pack([1, 2, 3]), SHORT, order=(77, 0, 1, 0))
    for seconds in (3.0, 3.0, 3.0, 3.0):
        keeper.started(run)
        keeper.ended(run, bytearray(pack([4])))
        keeper.calls(77, 0, ("look",))
        n = len(steered(kept, Hold))
        keeper.settle()
        assert len(steered(kept, Hold)) == n + 1, "... but one that waits for a tool does"
        kept.now += seconds
    assert steered(kept, Hold)[-1].steps * keeper._step_seconds == pytest.approx(3.0)


def test_losers_are_buried_up_to_the_fork(kept: Any) -> None:
    kept.submit(
        Append(0, ("all have this in common",)),
        Gen(0, 0, SHORT),
        Fork(0, (1, 2, 3)),
        *(op for k in (1, 2, 3) for op in (Append(k, (f" and {k}",)), Gen(k, k, wire.Sampling(max_tokens=50)))),
    )
    kept.run(8)
    assert len(kept.engine.running) == 3
    kept.submit(Drop(1), Drop(3))
    buried = {order.ids: order.n_shared for order in steered(kept, EvictFirst)}
    assert len(buried) == 2
    n_known = len(kept.ids(0)) + 2
    for run in kept.engine.runs[1:]:
        ids = next((ids for ids in buried if ids.startswith(run.ids)), None)
        assert (ids is not None) == (run.order[1] != 2)
        if ids is not None:
            assert len(ids) > len(run.ids), "with what it had said"
            assert n_common(ids, kept.engine.runs[2].ids) >= buried[ids] >= n_known


def test_what_branches_share_is_seen_where_the_parent_has_not_run(kept: Any) -> None:
    kept.submit(
        Append(0, ("all have this in common",)),
        Fork(0, (1, 2)),
        *(op for k in (1, 2) for op in (Append(k, (f" and {k}",)), Gen(k, k, SHORT))),
    )
    kept.run()
    a, b = (run.ids for run in kept.engine.runs)
    kept.submit(Drop(1))
    (order,) = steered(kept, EvictFirst)
    assert order.n_shared == n_common(a, b) > 3


def test_a_branch_that_never_ran_buries_nothing(kept: Any) -> None:
    kept.submit(Append(0, ("a b c",)), Gen(0, 0, SHORT), Fork(0, (1, 2)), Append(1, ("x",)), Drop(1), Drop(2))
    kept.run()
    kept.submit(Drop(1))
    assert steered(kept, EvictFirst) == []


def test_one_that_is_dropped_before_its_branches_is_buried_after_them(kept: Any) -> None:
    kept.submit(
        Append(0, ("a b c",)), Fork(0, (1,)), Append(1, (" d",)), Gen(1, 0, SHORT), Fork(1, (2, 3)),
        Append(2, (" e",)), Gen(2, 1, SHORT), Append(3, (" f",)), Gen(3, 2, SHORT),
    )  # fmt: skip
    kept.run()
    kept.submit(Drop(1))
    assert steered(kept, EvictFirst) == [], "its branches live"
    kept.submit(Drop(2))
    assert len(steered(kept, EvictFirst)) == 1
    kept.submit(Drop(3))
    assert len(steered(kept, EvictFirst)) == 3
    assert len({order.ids for order in steered(kept, EvictFirst)}) == 3


def test_one_that_was_adopted_is_not_buried(kept: Any) -> None:
    kept.submit(Append(0, ("a b c",)), Fork(0, (1, 2)), Append(1, (" d",)), Gen(1, 0, SHORT), Gen(2, 1, SHORT))
    kept.run()
    kept.submit(Join(0, (1,), adopt=True), Drop(1), Drop(2))
    assert len(steered(kept, EvictFirst)) == 1
    assert not steered(kept, EvictFirst)[0].ids.startswith(kept.engine.runs[0].ids)


def test_wishes_of_a_program(kept: Any) -> None:
    kept.submit(
        Append(0, ("a long text",)),
        CacheHint(0, pin=60.0),
        CacheHint(0, steps=20.0, prefetch=True),
        CacheHint(0, prefetch=True),
    )
    pin, expected, prefetch = steered(kept, Hold)
    assert (pin.seconds, pin.steps, pin.prefetch) == (60.0, -1.0, False)
    assert (expected.seconds, expected.steps, expected.prefetch) == (0.0, 20.0, True)
    assert (prefetch.seconds, prefetch.steps, prefetch.prefetch) == (0.0, -1.0, True)
    kept.submit(Gen(0, 0, SHORT))
    assert unpack(pin.ids) == kept.ids(0) == unpack(expected.ids)
    assert held(kept) == [pin.hold, expected.hold], "its request may have to wait for its turn"
    kept.run()
    assert pin.hold in held(kept)
    assert expected.hold not in held(kept), "it has run: what was expected has come"
    kept.programs.cancel(b"me", wire.Cancel(0, 9))
    assert held(kept) == [pin.hold], "a pin lives longer than its program"


def test_a_pin_ends_with_zero_and_with_its_state(kept: Any) -> None:
    kept.submit(Append(0, ("a",)), CacheHint(0, pin=60.0), CacheHint(0, pin=30.0))
    assert len(held(kept)) == 1, "the second takes the place of the first"
    kept.submit(CacheHint(0, pin=0.0))
    assert held(kept) == []
    kept.submit(Fork(0, (1,)), Append(1, ("b",)), CacheHint(1, pin=60.0))
    assert len(held(kept)) == 1
    kept.submit(Drop(1))
    assert held(kept) == []


def test_a_wish_waits_for_its_turn_and_not_for_a_state_that_went(kept: Any) -> None:
    kept.held = []
    kept.submit(Append(0, ("a",)), CacheHint(0, pin=60.0), Fork(0, (1,)), CacheHint(1, pin=60.0), Drop(1))
    assert steered(kept, Hold) == []
    for then in kept.held:
        then()
    assert len(held(kept)) == 1


@pytest.mark.parametrize("wish", [{"pin": -1.0}, {"pin": float("inf")}, {"steps": float("nan")}, {"steps": -0.5}])
def test_a_wish_that_makes_no_sense_is_refused(kept: Any, wish: dict[str, float]) -> None:
    kept.submit(Append(0, ("a",)), CacheHint(0, **wish), Gen(0, 0, SHORT))
    assert kept.failed(0).code == BadProgram.code
    assert next(iter(wish)) in kept.failed(0).message
    assert steered(kept, Hold) == []


def test_a_conversation_that_the_template_refuses_as_yet_is_no_error(kept: Any, bench: Callable[..., Any]) -> None:
    b = bench(template=None)
    b.submit(Append(0, (BeginTurn("user"), "hi", EndTurn())), CacheHint(0, pin=9.0))
    assert b.messages(wire.Failed) == []


def test_it_forgets_programs_that_are_over(kept: Any) -> None:
    for number in range(20):
        kept.submit(Append(0, ("a",)), Fork(0, (1, 2)), Gen(1, 0, SHORT), Gen(2, 1, SHORT), program=number)
        kept.run(3)
        kept.programs.cancel(b"me", wire.Cancel(number, 9))
    kept.now += 1e6
    kept.requests.kv_hints.settle()
    keeper = kept.requests.kv_hints
    assert [*keeper._programs, *keeper._names, *keeper._newly_resting, *keeper._overdue] == []
    assert held(kept) == []


def test_n_common() -> None:
    for n in (0, 1, 2, 3, 7, 64, 100):
        for at in range(n + 1):
            a, b = [1] * n, [1] * n
            if at < n:
                b[at] = 2
            assert n_common(pack(a), pack([*b, 9])) == at


def test_what_is_not_known_of_is_no_error() -> None:
    keeper = KVHintSender(clock=lambda: 0.0)
    keeper.calls(5, 0, ("x",))
    keeper.drop(5, 0)
    keeper.adopted(5, 0, 1)
    keeper.end(5)
    keeper.settle()


def test_rests_that_are_over_take_no_memory(kept: Any) -> None:
    keeper = kept.requests.kv_hints
    run = wire.Run(0, pack([1]), SHORT, order=(1, 0, 0, 0))
    for _ in range(5000):
        keeper.started(run)
        keeper.ended(run, bytearray())
        keeper.settle()
        kept.now += 0.01
    assert len(keeper._overdue) <= 1100
