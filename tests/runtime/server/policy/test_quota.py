"""Limits per client: exceeding one raises with its number and does not affect other clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from banyan.runtime.config import Config
from banyan.runtime.errors import Overloaded
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Arg, Define, Fork, Gen, Read, Ref, Select, Use
from banyan.runtime.server.policy import quota
from banyan.runtime.server.policy.quota import Quota
from banyan.runtime.server.text.prompt import pack

Make = Callable[..., Any]


@pytest.fixture
def limited(bench: Make) -> Make:
    """`limited(max_width=3)`: a bench with these limits."""

    def make(**limits: int) -> Any:
        b = bench()
        b.programs._quota = Quota(Config(**limits))
        return b

    return make


def test_number_of_programs_is_limited_per_client(limited: Make, greedy: Make) -> None:
    b = limited(max_programs=3)
    for program in range(3):
        b.submit(Append(0, ("a",)), program=program)
    b.submit(Append(0, ("a",)), program=3)
    failed = b.failed(None, 3)
    assert failed.code == "overloaded"
    assert "has 3 programs at once" in failed.message
    assert "drop the states of finished runs" in failed.message
    b.submit(Append(0, ("a",)), program=4, client=b"you")
    assert not b.messages(wire.Failed, 4), "the limit is per client"
    b.programs.cancel(b"me", wire.Cancel(0, 1))
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(max_tokens=3)), program=5)
    b.run()
    assert b.value(0, 5)


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (Fork(0, (1, 2, 3, 4)), "a fork makes 4 branches; at most 3 are allowed"),
        (Gen(0, 0, wire.Sampling(n=4)), "a gen has 4 samples; at most 3 are allowed"),
        (Select(0, 0, ("a", "b", "c", "d")), "a select has 4 choices; at most 3 are allowed"),
    ],
)
def test_number_of_branches_samples_and_choices_is_limited(limited: Make, op: wire.Op, error: str) -> None:
    b = limited(max_width=3)
    b.submit(Append(0, ("a",)), op)
    failed = b.failed(None)
    assert (failed.code, error in failed.message) == ("bad_program", True)
    assert "max_width" in failed.message
    b.send(Define(0, (Append(0, ("a",)), Fork(0, (1, 2, 3)))))
    b.submit(Use(0, 0), program=1)
    assert not b.messages(wire.Failed, 1)


def doubling(n: int) -> list[wire.Op]:
    """Ops that append a text to itself n times."""
    ops: list[wire.Op] = [Append(0, ("x" * 100,))]
    for ref in range(n):
        ops += [Read(0, ref), Append(0, (Ref(ref),))]
    return ops


def test_text_that_doubles_itself_reaches_the_program_limit(limited: Make) -> None:
    b = limited(max_program=1 << 20)
    b.submit(*doubling(60))
    failed = [message for message in b.messages(wire.Failed) if "takes more than 1.0 MiB" in message.message]
    assert failed
    assert failed[0].code == "bad_program"
    b.submit(Append(0, ("a",)), Read(0, 0), program=1, last=True)
    assert b.text(0, 1) == "a"


def test_text_of_token_ids_counts_towards_the_program_limit(limited: Make) -> None:
    b = limited(max_program=15_000)
    spelling = b.programs.generator.tokenizer.spelling
    longest = max(range(len(spelling)), key=lambda i: len(spelling[i]))
    part = wire.TokenIds(pack([longest] * (9000 // len(spelling[longest]))))
    b.submit(Append(0, (part,)))
    b.submit(Append(0, (part, part)), Gen(0, 0), program=1)
    assert not b.messages(wire.Failed)
    assert "takes more than" in b.failed(0, 1).message


def test_programs_of_a_client_share_its_memory_limit(limited: Make) -> None:
    b = limited(max_client=100_000)
    for program in range(3):
        b.submit(Append(0, ("x" * 40_000,)), program=program)
    assert b.failed(None, 2).code == "overloaded"
    assert "3 programs of this client take more than" in b.failed(None, 2).message
    b.submit(Append(0, ("x" * 40_000,)), program=9, client=b"you")
    assert not b.messages(wire.Failed, 9)


def test_states_and_pieces_count_towards_the_program_limit(limited: Make) -> None:
    b = limited(max_program=1 << 20)
    b.submit(Fork(0, tuple(range(1, 600))))
    assert "takes more than" in b.failed(None).message
    b = limited(max_program=1 << 20)
    b.submit(*[Append(0, ("x",)) for _ in range(1500)], Fork(0, tuple(range(1, 200))), Read(0, 0))
    assert "takes more than" in b.failed(0).message


def test_ops_of_templates_count_towards_the_program_limit(limited: Make) -> None:
    b = limited(max_program=30_000)
    b.send(Define(0, (Append(0, (Arg(0),)),) * 60))
    b.submit(Use(0, 0, ("a",)))
    assert not b.messages(wire.Failed)
    b.submit(Use(0, 0, ("a",)), Use(0, 0, ("a",)), program=1)
    assert "takes more than" in b.failed(None, 1).message


def test_templates_are_limited_in_bytes_and_number(limited: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    b = limited(max_client=100_000)
    b.send(Define(0, (Append(0, ("x" * 60_000,)),)))
    with pytest.raises(Overloaded, match=r"1 templates, and 0\.1 MiB"):
        b.send(Define(1, (Append(0, ("x" * 60_000,)),)))
    b.send(Define(0, (Append(0, ("x" * 70_000,)),)))
    b.programs.undefine(b"me", wire.Undefine(0))
    assert not b.programs._quota._clients
    monkeypatch.setattr(quota, "MAX_TEMPLATES", 2)
    for number in range(2):
        b.send(Define(number, ()))
    with pytest.raises(Overloaded, match="at most 2 templates"):
        b.send(Define(2, ()))


@pytest.mark.parametrize("end", ["last", "cancel", "forget"])
def test_ended_program_frees_its_quota(limited: Make, end: str) -> None:
    b = limited()
    b.submit(*doubling(3), Fork(0, (1, 2)), Append(1, ("a",)), last=end == "last")
    if end == "cancel":
        b.programs.cancel(b"me", wire.Cancel(0, 1))
    if end == "forget":
        b.leave()
    assert not b.programs._quota._clients
    assert not b.programs._quota._program_bytes


def test_only_open_programs_hold_quota(limited: Make) -> None:
    b = limited()
    b.submit(Append(0, ("x" * 1000,)))
    held = b.programs._quota._clients[b"me"].n_bytes
    assert held > 1000
    for program in range(1, 50):
        b.submit(*doubling(5), program=program, last=True)
    assert b.programs._quota._clients[b"me"].n_bytes == held
