"""A lost or repeated message fails its program with an error that names it, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from banyan.runtime.client.client import Client
from banyan.runtime.errors import BadMessage
from banyan.runtime.protocol import decoders, wire
from waits import wait_until

TEXT = wire.Append(0, ("a",))
GEN = wire.Gen(0, 0, wire.Sampling(max_tokens=4, temperature=0.0))


@pytest.fixture
def client(join: Callable[..., Client]) -> Iterator[Client]:
    joined = join()
    yield joined
    wait_until(lambda: not (joined.ask("stats")["server"]["programs"] or joined._programs), "the end of the programs")
    assert joined.ask("check") is not None


@pytest.mark.parametrize(("seq", "copies", "actual", "expected"), [(0, 0, 1, 0), (1, 0, 2, 1), (1, 2, 1, 2)])
def test_lost_or_repeated_submit_fails_the_program(
    client: Client, monkeypatch: pytest.MonkeyPatch, seq: int, copies: int, actual: int, expected: int
) -> None:
    send = client.send_now

    def tampered(data: bytes) -> None:
        message = decoders.decode_client(data)
        for _ in range(copies if isinstance(message, wire.Submit) and message.seq == seq else 1):
            send(data)

    monkeypatch.setattr(client, "send_now", tampered)
    program = client.program("p")
    program.submit([TEXT])
    program.submit([TEXT])
    program.submit([GEN], last=True)
    with pytest.raises(BadMessage, match=f"message {actual} of the program came where message {expected} was expected"):
        program.future(0).result(20)


def test_template_deleted_during_admission_wait_is_still_used(join: Callable[..., Client]) -> None:
    from banyan.runtime.protocol.op_template import ProgramTemplate

    client = join(options={"max_programs": 1}, step_ms=5)
    first, second = client.program("first"), client.program("second")
    first.submit([TEXT, wire.Gen(0, 0, wire.Sampling(max_tokens=30))], last=True)
    number = client.define(ProgramTemplate((wire.Append(0, (wire.Arg(0),)), GEN)))
    second.submit([wire.Use(0, number, ("b",))], last=True)
    client.undefine(number)
    assert second.future(0).result(30).samples[0].n_tokens == 4
    assert first.future(0).done()
