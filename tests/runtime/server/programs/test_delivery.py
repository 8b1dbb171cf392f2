"""Messages that come twice, too early, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from banyan.runtime.errors import BadMessage
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.resend_window import pack, unpack
from banyan.runtime.protocol.wire import Append, Fork, Gen, Read
from banyan.runtime.server.programs import delivery
from banyan.runtime.server.programs.delivery import Delivery

ME = b"me"


def submit(seq: int, *ops: wire.Op, program: int = 0, last: bool = False) -> wire.Submit:
    return wire.Submit(program, seq, ops, last, "test")


def sync(b: Any, *three: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """What the server answers to this."""
    b.sent.clear()
    b.programs.delivery.sync(ME, wire.Sync(pack(three)))
    (answer,) = [m for _, m in b.sent if isinstance(m, wire.Sync)]
    return list(unpack(answer.programs))


def resends(b: Any) -> list[tuple[int, int]]:
    return [(m.program, m.seq) for _, m in b.sent if isinstance(m, wire.Resend)]


def test_what_comes_too_early_waits_for_what_is_missing(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    messages = [submit(0, Append(0, ("x",))), submit(1, Append(0, ("a",))), submit(2, Gen(0, 0, greedy()))]
    for message in (messages[2], messages[1]):
        b.programs.submit(ME, message)
    assert resends(b) == [(0, 0)], "asked for once"
    assert len(b.programs) == 0
    for message in messages:
        b.programs.submit(ME, message)
    b.run()
    assert b.text(0) == "b"
    assert b.prompts() == ["xa"]


def test_a_later_gap_is_asked_for_as_well(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    for seq in (0, 2, 3, 1, 2, 4):
        b.programs.submit(ME, submit(seq, Append(0, (str(seq),))))
    assert resends(b) == [(0, 1), (0, 3)]
    b.programs.submit(ME, submit(3, Append(0, ("3",))))
    b.programs.submit(ME, submit(4, Read(0, 9)))
    assert b.text(9) == "0123"


def test_duplicates_are_ignored_also_when_the_program_has_ended(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    first = submit(0, Append(0, ("a",)), Gen(0, 0, greedy()), last=True)
    for _ in range(2):
        b.programs.submit(ME, first)
    b.run()
    b.programs.submit(ME, first)
    b.run()
    assert len(b.engine.runs) == 1
    assert len(b.messages(wire.Value)) == 1


def test_a_client_that_missed_something_gets_it_again(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(), stream=True), Read(0, 1), last=True)
    b.run()
    said = [m for _, m in b.sent]
    assert [type(m).__name__ for m in said] == ["Delta", "Value", "Value"]
    assert sync(b, (0, 1, 1)) == [(0, 3, 1)], "the client learns that two are missing"
    b.programs.delivery.resend(ME, wire.Resend(0, 1))
    assert [m for _, m in b.sent][1:] == said[1:]
    assert sync(b, (0, 1, 3)) == [(0, 3, 1)]
    b.programs.delivery.resend(ME, wire.Resend(0, 2))
    failed = b.sent[-1][1]
    assert (failed.seq, failed.code) == (2, "runtime_lost"), "it said that it had them all, and they are gone"


def test_a_first_message_that_is_lost_shows_in_the_next_comparison(bench: Any, greedy: Any) -> None:
    b = bench({"a": "b"})
    assert sync(b, (5, 1, 0)) == [(5, 0, 0)]
    assert resends(b) == [(5, 0)]
    assert sync(b, (5, 1, 0)) == [(5, 0, 0)]
    assert resends(b) == [(5, 0)], "asked for again, as long as it does not come"
    b.programs.submit(ME, submit(0, Append(0, ("a",)), Gen(0, 0, greedy()), program=5))
    b.run()
    assert sync(b, (5, 1, 1)) == [(5, 1, 1)]
    assert resends(b) == []


def test_a_program_forgotten_long_since_fails_instead_of_running_again(
    bench: Any, greedy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "N_ENDED", 2)
    b = bench()
    for i in range(4):
        b.programs.submit(ME, submit(0, Append(0, ("a",)), Read(0, 0), Read(0, 1), program=i, last=True))
    assert sync(b, (0, 1, 1)) == [(0, 2, 1)]
    b.programs.delivery.resend(ME, wire.Resend(0, 1))
    assert b.failed(None).code == "runtime_lost"


def test_a_cancel_that_is_lost_is_asked_for(bench: Any, greedy: Any) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()))
    assert sync(b, (0, 2, 0)) == [(0, 0, 1)]
    assert resends(b) == [(0, 1)]
    b.programs.cancel(ME, wire.Cancel(0, 1))
    assert len(b.programs) == 0
    assert sync(b, (0, 2, 0)) == [(0, 1, 2)]


def test_a_client_that_goes_leaves_nothing(bench: Any, greedy: Any) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy()), Fork(0, (1,)))
    b.submit(Read(0, 0), program=1, last=True)
    b.programs.forget(ME)
    assert (len(b.programs), b.programs.delivery._ways, len(b.programs.delivery._ended)) == (0, {}, 0)


def test_a_sync_that_is_none(bench: Any) -> None:
    with pytest.raises(BadMessage, match="three numbers"):
        bench().programs.delivery.sync(ME, wire.Sync(b"123"))


def test_the_window_is_per_program() -> None:
    sent: list[Any] = []
    d = Delivery(lambda client, message: sent.append(message))
    for number in (1, 2):
        assert d.accept((ME, number), 0)
        d.send(ME, wire.Delta(number, d.next((ME, number)), 0, "x"))
        d.send(ME, wire.Delta(number, d.next((ME, number)), 0, "y"))
    sent.clear()
    d.resend(ME, wire.Resend(2, 1))
    assert sent == [wire.Delta(2, 1, 0, "y")]
