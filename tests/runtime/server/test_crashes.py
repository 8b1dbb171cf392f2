"""Bugs of the server that a program meets: they cost the program, and neither the engine nor anybody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Fork, Gen, Read
from banyan.runtime.server.engine_link.recovery import MAX_BLAMED, MAX_DEATHS, MAX_KILLS, MAX_LOST, Death

Sampler = Callable[..., wire.Sampling]


class Bug(Exception):
    pass


def neighbour(b: Any, greedy: Sampler) -> None:
    b.submit(Append(0, ("b",)), Gen(0, 0, greedy()), program=1, last=True, client=b"other")


def fails_alone(b: Any) -> None:
    """Program 0 failed as a whole, program 1 ended well, and nothing is left."""
    b.run()
    assert b.failed(None).code == "program"
    assert "Bug('here')" in b.failed(None).message
    assert b.text(0, program=1) == "fine"
    assert (len(b.programs), len(b.requests), b.programs.check(b.requests)) == (0, 0, "")


def raises(*_: Any, **__: Any) -> Any:
    raise Bug("here")


WHERE: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "a token is spelled": lambda b, m: m.setattr(first(b).text, "feed", raises),
    "a request ends": lambda b, m: m.setattr(first(b).text, "finish", raises),
    "a gen ends": lambda b, m: m.setattr(first(b), "done", raises),
    "a piece is told": lambda b, m: m.setattr(first(b), "listener", raises),
}


def first(b: Any) -> Any:
    return b.requests._living[0]


@pytest.mark.parametrize("where", WHERE)
def test_a_bug_in_the_step_of_a_program_costs_it_alone(
    bench: Any, greedy: Sampler, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench({"a": "bad", "b": "fine"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(), stream=True), Fork(0, (1,)), Append(1, ("a",)), Gen(1, 1, greedy()))
    neighbour(b, greedy)
    WHERE[where](b, monkeypatch)
    fails_alone(b)


def test_a_bug_where_a_request_fails_costs_its_program_alone(
    bench: Any, greedy: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench({"b": "fine"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    neighbour(b, greedy)
    monkeypatch.setattr(first(b), "done", raises)
    b.requests.fail(wire.Failed(program=0, seq=0, code="error", message="the engine's"))
    fails_alone(b)


@pytest.mark.parametrize("n", [1, 3])
def test_a_run_that_cannot_be_sent_costs_its_program_alone(bench: Any, greedy: Sampler, n: int) -> None:
    b = bench({"a": "bad", "b": "fine"})
    send = b.requests._send

    def picky(order: wire.EngineCommand) -> None:
        if isinstance(order, wire.Run) and order.rid == n - 1:
            raises()
        send(order)

    b.requests._send = picky
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(n=n)), Read(0, 1))
    neighbour(b, greedy)
    fails_alone(b)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_bug_where_a_gen_begins_costs_its_program_alone(
    bench: Any, greedy: Sampler, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench({"b": "fine"})
    b.held = [] if is_late else None
    with monkeypatch.context() as m:
        m.setattr(b.requests, "start", raises)
        b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
        for call in b.held or ():
            call()
    b.held = None
    neighbour(b, greedy)
    fails_alone(b)


def test_a_bug_in_an_op_costs_its_program_alone(bench: Any, greedy: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench({"b": "fine"})
    with monkeypatch.context() as m:
        m.setattr(b.programs.generator, "read", raises)
        b.submit(Append(0, ("a",)), Read(0, 0))
    neighbour(b, greedy)
    fails_alone(b)


def test_what_cannot_be_said_to_a_client_takes_no_number(bench: Any, greedy: Sampler) -> None:
    b = bench({"b": "fine"})
    say = b.programs.delivery._send

    def picky(client: bytes, message: wire.ServerMessage) -> None:
        if isinstance(message, wire.Value) and message.program == 0:
            raises()
        say(client, message)

    b.programs.delivery._send = picky
    b.submit(Append(0, ("b",)), Gen(0, 0, greedy()), Read(0, 1))
    neighbour(b, greedy)
    fails_alone(b)
    assert b.failed(None).seq == 0


# ---- engines that die under a program ------------------------------------------------------------------------------


def dies(b: Any, rids: frozenset[int], is_blameless: bool = False) -> None:
    b.engine.running.clear()
    b.engine.reports.clear()
    b.engine.finished.clear()
    b.requests.replay(Death("of a test", is_blameless, rids))


def deaths(b: Any, rids: Callable[[], frozenset[int]], n_steps: int = 0, **death: Any) -> int:
    """Engines until nothing runs any more; each lives for so many steps."""
    for n in range(100):
        if not len(b.requests):
            return n
        b.run(n_steps=n_steps)
        dies(b, rids(), **death)
    raise AssertionError("it is run again for ever")


def test_engines_that_die_with_nothing_in_hand_have_those_tried_that_they_were_given(
    bench: Any, greedy: Sampler
) -> None:
    b = bench({"a": "bad", "b": "fine"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    neighbour(b, greedy)
    dies(b, frozenset())
    assert list(b.engine.running) == [0], "one at a time"
    dies(b, frozenset())
    assert b.failed(0).code == "quarantined"
    b.run()
    assert b.text(0, program=1) == "fine"


def test_engines_that_die_before_they_are_ready_blame_nobody(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "fine"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    for _ in range(3 * MAX_KILLS):
        b.engine.running.clear()
        b.requests.replay(Death("of a test", was_ready=False))
    b.run()
    assert b.text(0) == "fine"


@pytest.mark.parametrize("is_blameless", [False, True])
def test_no_request_is_run_again_for_ever(bench: Any, greedy: Sampler, is_blameless: bool) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    assert deaths(b, lambda: frozenset({99}), is_blameless=is_blameless) == MAX_KILLS
    assert b.failed(0).code == "quarantined"


def test_not_even_one_that_gets_a_token_from_each_engine(bench: Any, greedy: Sampler) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(max_tokens=500)))
    assert deaths(b, lambda: frozenset(b.engine.running), n_steps=3) == MAX_BLAMED
    assert f"{MAX_BLAMED} engines died" in b.failed(0).message


def test_a_program_of_many_bad_requests_is_given_up_as_a_whole(bench: Any, greedy: Sampler) -> None:
    b = bench({"b": "fine"})
    children = tuple(range(1, 21))
    gens = [op for k in children for op in (Append(k, (f"a{k}",)), Gen(k, k, greedy()))]
    b.submit(Fork(0, children), *gens)
    neighbour(b, greedy)
    for _ in range(100):
        bad = frozenset(rid for rid in b.engine.running if rid < len(children))
        if not bad:
            break
        dies(b, bad)
        b.run(n_steps=0)
    assert b.failed(None).code == "quarantined"
    assert len(b.messages(wire.Failed)) < MAX_DEATHS * MAX_LOST + 2
    b.run()
    assert b.text(0, program=1) == "fine"


# ---- times ---------------------------------------------------------------------------------------------------------


def test_a_time_that_is_none_is_refused_and_timers_go_on(bench: Any, greedy: Sampler) -> None:
    b = bench()
    nan, late = float("nan"), wire.ProgramLimits(timeout=1.0, left=1.0)
    b.programs.submit(b"me", wire.Submit(0, 0, (), limits=wire.ProgramLimits(timeout=nan)))
    b.programs.submit(b"me", wire.Submit(1, 0, (), limits=wire.ProgramLimits(timeout=1.0, left=nan)))
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(), timeout=nan), program=2)
    b.programs.submit(b"me", wire.Submit(3, 0, (Append(0, ("a",)), Gen(0, 0, greedy())), limits=late))
    assert "timeout is nan" in b.failed(None, 0).message
    assert "timeout is nan" in b.failed(None, 1).message
    assert "timeout is nan" in b.failed(0, 2).message
    b.now = 2.0
    b.timers.run()
    assert b.failed(None, 3).code == "deadline_exceeded"


def test_a_timer_that_raises_does_not_keep_others_from_running(bench: Any) -> None:
    b = bench()
    done: list[int] = []
    b.timers.call(0.0, raises)
    b.timers.call(0.0, lambda: done.append(1))
    b.timers.run()
    assert done == [1]
