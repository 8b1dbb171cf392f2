"""An exception in the server fails the program that caused it, and neither the engine nor any other program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from banyan.runtime.errors import BanyanError
from banyan.runtime.executor.executor import Executor
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Fork, Gen, Read
from banyan.runtime.server.engine_link.recovery import MAX_BLAMED, MAX_DEATHS, MAX_KILLS, MAX_LOST, Death

Sampler = Callable[..., wire.Sampling]


class Bug(Exception):
    pass


def submit_neighbour(b: Any, greedy: Sampler) -> None:
    b.submit(Append(0, ("b",)), Gen(0, 0, greedy()), program=1, last=True, client=b"other")


def assert_only_program_0_fails(b: Any) -> None:
    """Program 0 fails as a whole, program 1 succeeds, and nothing is left."""
    b.run()
    assert b.failed(None).code == "program"
    assert "Bug('here')" in b.failed(None).message
    assert b.text(0, program=1) == "fine"
    assert (len(b.programs), len(b.requests), b.programs.check()) == (0, 0, "")


def raise_bug(*_: Any, **__: Any) -> Any:
    raise Bug("here")


FAULTS: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "token decoded": lambda b, m: m.setattr(first_request(b).text, "feed", raise_bug),
    "request ended": lambda b, m: m.setattr(first_request(b).text, "finish", raise_bug),
    "gen ended": lambda b, m: m.setattr(first_request(b), "done", raise_bug),
    "delta sent": lambda b, m: m.setattr(first_request(b), "listener", raise_bug),
}


def first_request(b: Any) -> Any:
    return b.requests._living[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_exception_in_a_step_fails_only_its_program(
    bench: Any, greedy: Sampler, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench({"a": "bad", "b": "fine"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(), stream=True), Fork(0, (1,)), Append(1, ("a",)), Gen(1, 1, greedy()))
    submit_neighbour(b, greedy)
    FAULTS[fault](b, monkeypatch)
    assert_only_program_0_fails(b)


def test_exception_on_a_failed_request_fails_only_its_program(
    bench: Any, greedy: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench({"b": "fine"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    submit_neighbour(b, greedy)
    monkeypatch.setattr(first_request(b), "done", raise_bug)
    b.requests.fail(0, BanyanError("the engine's"))
    assert_only_program_0_fails(b)


@pytest.mark.parametrize("n", [1, 3])
def test_exception_on_sending_a_run_fails_only_its_program(bench: Any, greedy: Sampler, n: int) -> None:
    b = bench({"a": "bad", "b": "fine"})
    send = b.replica.send

    def send_or_raise(command: wire.EngineCommand) -> None:
        if isinstance(command, wire.Run) and command.rid == n - 1:
            raise_bug()
        send(command)

    b.replica.send = send_or_raise
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(n=n)), Read(0, 1))
    submit_neighbour(b, greedy)
    assert_only_program_0_fails(b)


@pytest.mark.parametrize("is_late", [False, True])
def test_exception_at_the_start_of_a_gen_fails_only_its_program(
    bench: Any, greedy: Sampler, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench({"b": "fine"})
    b.held = [] if is_late else None
    with monkeypatch.context() as m:
        m.setattr(b.requests, "start", raise_bug)
        b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
        for call in b.held or ():
            call()
    b.held = None
    submit_neighbour(b, greedy)
    assert_only_program_0_fails(b)


def test_exception_in_an_op_fails_only_its_program(
    bench: Any, greedy: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench({"b": "fine"})
    with monkeypatch.context() as m:
        m.setattr(b.programs.generator, "read", raise_bug)
        b.submit(Append(0, ("a",)), Read(0, 0))
    submit_neighbour(b, greedy)
    assert_only_program_0_fails(b)


@pytest.mark.parametrize("op", [Gen(0, 0, wire.Sampling(max_tokens=2)), Read(0, 0)])
def test_exception_after_work_on_a_thread_fails_only_its_program(
    bench: Any, greedy: Sampler, op: wire.Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench({"b": "fine"})
    b.held = []
    b.submit(Append(0, ("a",)), op)
    if isinstance(op, Gen):
        b.held.pop()()  # encodes the prompt
        b.run()
    with monkeypatch.context() as m:
        m.setattr(Executor, "_resolve", raise_bug)
        (call,) = b.held
        call()
    b.held = None
    submit_neighbour(b, greedy)
    assert_only_program_0_fails(b)


def test_unsent_message_does_not_use_a_sequence_number(bench: Any, greedy: Sampler) -> None:
    b = bench({"b": "fine"})
    send = b.programs._send

    def send_or_raise(client: bytes, message: wire.ServerMessage) -> None:
        if isinstance(message, wire.Value) and message.program == 0:
            raise_bug()
        send(client, message)

    b.programs._send = send_or_raise
    b.submit(Append(0, ("b",)), Gen(0, 0, greedy()), Read(0, 1))
    submit_neighbour(b, greedy)
    assert_only_program_0_fails(b)
    assert b.failed(None).seq == 0


# ---- engines that die under a program ------------------------------------------------------------------------------


def kill_engine(b: Any, rids: frozenset[int], is_blameless: bool = False) -> None:
    b.replace_engine(Death("in a test", is_blameless, rids))


def kill_until_idle(b: Any, rids: Callable[[], frozenset[int]], n_steps: int = 0, **death: Any) -> int:
    """Kill engines, each after n_steps, until no request is left; return how many were killed."""
    for n in range(100):
        if not len(b.requests):
            return n
        b.run(n_steps=n_steps)
        kill_engine(b, rids(), **death)
    raise AssertionError("the request is retried forever")


def test_death_without_noted_requests_suspects_all_requests(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "bad", "b": "fine"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    submit_neighbour(b, greedy)
    kill_engine(b, frozenset())
    assert list(b.engine.running) == [0], "requests are retried one at a time"
    kill_engine(b, frozenset())
    assert b.failed(0).code == "quarantined"
    b.run()
    assert b.text(0, program=1) == "fine"


def test_death_before_ready_blames_no_request(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "fine"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    for _ in range(3 * MAX_KILLS):
        b.engine.running.clear()
        b.requests.replay(b.replica, Death("in a test", was_ready=False))
    b.run()
    assert b.text(0) == "fine"


@pytest.mark.parametrize("is_blameless", [False, True])
def test_retries_of_a_request_are_limited(bench: Any, greedy: Sampler, is_blameless: bool) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    assert kill_until_idle(b, lambda: frozenset({99}), is_blameless=is_blameless) == MAX_KILLS
    assert b.failed(0).code == "quarantined"


def test_retries_of_a_request_with_progress_are_limited(bench: Any, greedy: Sampler) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(max_tokens=500)))
    assert kill_until_idle(b, lambda: frozenset(b.engine.running), n_steps=3) == MAX_BLAMED
    assert f"{MAX_BLAMED} engines died" in b.failed(0).message


def test_program_with_many_bad_requests_fails_as_a_whole(bench: Any, greedy: Sampler) -> None:
    b = bench({"b": "fine"})
    children = tuple(range(1, 21))
    gens = [op for k in children for op in (Append(k, (f"a{k}",)), Gen(k, k, greedy()))]
    b.submit(Fork(0, children), *gens)
    submit_neighbour(b, greedy)
    for _ in range(100):
        bad = frozenset(rid for rid in b.engine.running if rid < len(children))
        if not bad:
            break
        kill_engine(b, bad)
        b.run(n_steps=0)
    assert b.failed(None).code == "quarantined"
    assert len(b.messages(wire.Failed)) < MAX_DEATHS * MAX_LOST + 2
    b.run()
    assert b.text(0, program=1) == "fine"


# ---- timers --------------------------------------------------------------------------------------------------------


def test_nan_timeout_is_refused_and_timers_still_run(bench: Any, greedy: Sampler) -> None:
    b = bench()
    nan, late = float("nan"), wire.ProgramLimits(timeout=1.0, left=1.0)
    b.send(wire.Submit(0, 0, (), limits=wire.ProgramLimits(timeout=nan)))
    b.send(wire.Submit(1, 0, (), limits=wire.ProgramLimits(timeout=1.0, left=nan)))
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(), timeout=nan), program=2)
    b.send(wire.Submit(3, 0, (Append(0, ("a",)), Gen(0, 0, greedy())), limits=late))
    assert "timeout is nan" in b.failed(None, 0).message
    assert "timeout is nan" in b.failed(None, 1).message
    assert "timeout is nan" in b.failed(0, 2).message
    b.now = 2.0
    b.timers.run()
    assert b.failed(None, 3).code == "deadline_exceeded"
