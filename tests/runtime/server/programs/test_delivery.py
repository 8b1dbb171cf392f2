"""Message numbers: a gap or a repeated message fails the program, with both numbers."""

from __future__ import annotations

from typing import Any

from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Gen, Read

ME = b"me"


def submit(seq: int, *ops: wire.Op, program: int = 0, last: bool = False) -> wire.Submit:
    return wire.Submit(program, seq, ops, last, "test")


def test_gap_in_message_numbers_fails_the_program(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    b.send(submit(0, Append(0, ("a",)), Gen(0, 0, greedy())))
    b.send(submit(2, Read(0, 1)))
    assert b.failed(None).code == "bad_message"
    assert "message 2 of the program came where message 1 was expected" in b.failed(None).message
    assert b.engine.aborted == [0]
    assert len(b.programs) == 0


def test_repeated_message_fails_the_program(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    for _ in range(2):
        b.send(submit(0, Append(0, ("a",)), Gen(0, 0, greedy())))
    assert "message 0 of the program came where message 1 was expected" in b.failed(None).message
    assert (len(b.engine.runs), len(b.programs)) == (1, 0)


def test_missing_first_message_fails_the_program(bench: Any) -> None:
    b = bench()
    b.send(submit(1, Read(0, 0), program=5))
    (failed,) = [m for _, m in b.sent]
    assert (failed.program, failed.ref, failed.code) == (5, None, "bad_message")
    assert len(b.programs) == 0


def test_message_for_an_ended_program_is_ignored(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()), last=True)
    b.run()
    b.send(submit(1, Gen(0, 1, greedy())))
    b.programs.cancel(ME, wire.Cancel(0, 2))
    b.run()
    assert len(b.engine.runs) == 1
    assert len(b.messages(wire.Value)) == 1


def test_messages_are_numbered_per_program(bench: Any) -> None:
    b = bench()
    for ref, number in enumerate((1, 2, 1)):
        b.submit(Append(0, ("a",)), Read(0, ref), program=number)
    assert [(message.program, message.seq) for _, message in b.sent] == [(1, 0), (2, 0), (1, 1)]
