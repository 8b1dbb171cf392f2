"""The client, priority and deadline of a program in each of its engine requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_PRIORITY
from banyan.runtime.protocol.wire import Append, Fork, Gen

Sampler = Callable[..., wire.Sampling]


def submit(b: Any, number: int, client: bytes = b"me", **limits: Any) -> None:
    ops = (Append(0, ("a",)), Gen(0, 0, wire.Sampling(max_tokens=2, n=2)), Fork(0, (1,)), Gen(1, 1))
    b.send(wire.Submit(number, 0, ops, last=True, limits=wire.ProgramLimits(**limits)), client)


def test_runs_have_their_programs_priority_and_deadline(bench: Any) -> None:
    b = bench()
    b.now = 100.0
    submit(b, 0, priority=3, deadline=5.0)
    b.now = 102.0
    submit(b, 1)
    b.run()
    runs = sorted((run.order[0], run.priority, run.deadline) for run in b.engine.runs)
    assert runs == [(0, 3, 105.0)] * 3 + [(1, 0, 0.0)] * 3


def test_gen_may_override_priority_and_deadline(bench: Any) -> None:
    b = bench()
    b.now = 100.0
    b.requests.clock = lambda: b.now
    short = wire.Sampling(max_tokens=2)
    ops = [Append(0, ("a",)), Gen(0, 0, short), Gen(0, 1, short, priority=0), Gen(0, 2, short, deadline=1.5)]
    b.send(wire.Submit(0, 0, tuple(ops), last=True, limits=wire.ProgramLimits(priority=3, deadline=5.0)))
    b.run()
    assert [(run.priority, run.deadline) for run in b.engine.runs] == [(3, 105.0), (0, 105.0), (3, 101.5)]
    b.submit(Append(0, ("a",)), Gen(0, 0, short, priority=MAX_PRIORITY + 1), program=1, last=True)
    assert "priority is 101" in b.failed(0, program=1).message


def test_clients_are_numbered_and_forgotten(bench: Any) -> None:
    b = bench()
    for client in (b"me", b"you", b"me"):
        submit(b, len(b.engine.runs), client=client)
    b.run()
    assert [run.client for run in b.engine.runs[:6]] == [0, 0, 1, 1, 0, 0]
    b.leave()
    submit(b, 77, client=b"me")
    assert b.engine.runs[-1].client == 2, "a returning client has a new number"
    b.leave()
    b.leave(b"you")
    assert not b.programs._clients
    assert not b.programs._programs


def test_program_ended_is_sent_once(bench: Any) -> None:
    b = bench()
    commands: list[Any] = []
    send, b.replica.send = b.replica.send, commands.append
    b.submit(Append(0, ("a",)), last=True)
    assert not commands, "the engine has no request of this program"
    b.replica.send = lambda command: (commands.append(command), send(command))
    submit(b, 1)
    b.run()
    ended = [command for command in commands if isinstance(command, wire.ProgramEnded)]
    assert ended == [wire.ProgramEnded(client=0, program=1)]
    assert isinstance([one for one in commands if not isinstance(one, wire.Hold | wire.Release)][-1], wire.ProgramEnded)
    assert b.requests.routes.find(1) is None


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"priority": MAX_PRIORITY + 1}, "priority is 101"),
        ({"priority": -MAX_PRIORITY - 1}, "priority is -101"),
        ({"deadline": -1.0}, "deadline is -1.0"),
        ({"deadline": float("nan")}, "deadline is nan"),
        ({"deadline": float("inf")}, "deadline is inf"),
    ],
)
def test_invalid_priority_or_deadline_fails_the_program(bench: Any, limits: Any, error: str) -> None:
    b = bench()
    submit(b, 0, **limits)
    assert b.failed(None).code == "bad_program"
    assert error in b.failed(None).message
    assert not b.engine.runs
    assert not b.programs._programs
