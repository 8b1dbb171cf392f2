"""A lost or repeated message fails its program with an error that names it, and nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from banyan.runtime.client.client import Client
from banyan.runtime.errors import BadMessage, RuntimeLost
from banyan.runtime.protocol import decoders, wire

TEXT = wire.Append(0, ("a",))
GEN = wire.Gen(0, 0, wire.Sampling(max_tokens=4, temperature=0.0))


@pytest.fixture
def client(join: Callable[..., Client]) -> Iterator[Client]:
    joined = join()
    yield joined
    deadline = time.monotonic() + 20
    while joined.ask("stats")["server"]["programs"] or joined._programs:
        assert time.monotonic() < deadline, "programs are left"
        time.sleep(0.02)
    assert joined.ask("check") is not None


def tamper(client: Client, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[Any], seq: int, copies: int) -> None:
    """Calls the client's method `name` `copies` times for message `seq` of type `kind`."""
    original = getattr(client, name)

    def repeated(message: Any) -> None:
        decoded = decoders.decode_client(message) if isinstance(message, bytes) else message
        for _ in range(copies if isinstance(decoded, kind) and decoded.seq == seq else 1):
            original(message)

    monkeypatch.setattr(client, name, repeated)


@pytest.mark.parametrize(("seq", "copies", "actual", "expected"), [(0, 0, 1, 0), (1, 0, 2, 1), (1, 2, 1, 2)])
def test_lost_or_repeated_submit_fails_the_program(
    client: Client, monkeypatch: pytest.MonkeyPatch, seq: int, copies: int, actual: int, expected: int
) -> None:
    tamper(client, monkeypatch, "send_now", wire.Submit, seq, copies)
    program = client.program("p")
    program.submit([TEXT])
    program.submit([TEXT])
    program.submit([GEN], last=True)
    with pytest.raises(BadMessage, match=f"message {actual} of the program came where message {expected} was expected"):
        program.future(0).result(20)


@pytest.mark.parametrize(("seq", "copies", "actual", "expected"), [(0, 0, 1, 0), (0, 2, 0, 1)])
def test_lost_or_repeated_value_fails_the_program(
    client: Client, monkeypatch: pytest.MonkeyPatch, seq: int, copies: int, actual: int, expected: int
) -> None:
    tamper(client, monkeypatch, "_handle", wire.Value, seq, copies)
    program = client.program("p")
    program.submit([TEXT, GEN, wire.Read(0, 1), wire.Gen(0, 2, wire.Sampling(max_tokens=4))])
    with pytest.raises(RuntimeLost, match=f"got message {actual} instead of {expected} from the server"):
        program.future(2).result(20)


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
