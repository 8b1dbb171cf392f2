"""Values at the borders of every field of every client message: none kills the engine or changes the output of another
client's program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

import wire_fuzz
from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.protocol.wire import (
    Append,
    Arg,
    CacheHint,
    Fork,
    Gen,
    Join,
    Mark,
    Read,
    Ref,
    Results,
    Sampling,
    Select,
    Use,
)
from forms import in_short

SAMPLING = Sampling(max_tokens=3, min_tokens=1, top_k=5, logit_bias={7: 1.0}, stop_token_ids=(9,), seed=1)
SCORED = Sampling(max_tokens=3, temperature=0.0, logprobs=True, top_logprobs=2, logprob_start=0)
CONSTRAINED = Sampling(max_tokens=3, constraint=wire.ConstraintSpec("regex", "[a-f]+"))
SPEC = '{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}'
LIMITS = wire.ProgramLimits(budgets=(wire.TokenLimit(1000, 1, "batch"),), priority=1)
TEMPLATE_OPS = (
    Append(0, (wire.Raw("a"), Arg(0))),
    Gen(0, 0, SAMPLING),
    Fork(0, (1,)),
    Append(1, ("b", Ref(0))),
    Mark(1, 0),
    Gen(1, 1, SAMPLING),
    Select(1, 2, ("x", "y"), temperature=1.0, seed=1),
    Read(1, 3, mark=0),
    Join(0, (1,)),
    CacheHint(0, pin=0.0),
    wire.Drop(1),
)
PLAIN_OPS = (
    Append(0, ("a",)),
    Gen(0, 0, SCORED, reasoning=wire.Reasoning(), retries=1, budget=100, priority=1),
    Results(0, 0, 0, ("no",)),
)
CALL = wire.WireToolCall("000000000", "f")
TOOL_OPS = (
    Append(0, (wire.BeginTurn("user"), "a", wire.EndTurn(), wire.BeginTurn("assistant"), wire.EndTurn((CALL,)))),
    Append(0, (wire.BeginTurn("tool", CALL), "b", wire.EndTurn(), wire.BeginTurn("assistant"))),
    Gen(0, 0, Sampling(max_tokens=3), tools=wire.Tools((SPEC,), 1)),
)
OPS_WITHOUT_ARGS = tuple(Append(op.state, ("a",)) if op is TEMPLATE_OPS[0] else op for op in TEMPLATE_OPS)

MESSAGES: dict[str, tuple[wire.ClientMessage, ...]] = {
    "hello": (wire.Hello(wire.VERSION),),
    "plain": (wire.Submit(0, 0, PLAIN_OPS, last=True, limits=LIMITS),),
    "image": (wire.Submit(0, 0, (Append(0, (wire.Image(b"data", "image/png"),)),), last=True),),
    "ids": (wire.Submit(0, 0, (Append(0, (wire.TokenIds(bytes((65, 0, 0, 0))),)), *PLAIN_OPS[1:]), last=True),),
    "constraint": (wire.Submit(0, 0, (Append(0, ("a",)), Gen(0, 0, CONSTRAINED)), last=True),),
    "ping": (wire.Ping(),),
    "tools": (wire.Submit(0, 0, TOOL_OPS, last=True),),
    "ops": (wire.Submit(0, 0, OPS_WITHOUT_ARGS, last=True),),
    "use": (
        wire.Define(1, TEMPLATE_OPS),
        wire.Submit(0, 0, (Use(0, 1, ("x",), child=1, ref=1, mark=1),), last=True),
        wire.Submit(1, 0, (Use(0, 1, ("x",), seeds=()),), last=True),
        wire.Undefine(1),
    ),
    "seeds": (
        wire.Define(1, (Append(0, ("a",)), Gen(0, 0, Sampling(max_tokens=3)))),
        wire.Submit(0, 0, (Use(0, 1, seeds=(5,)),), last=True),
    ),
    "cancel": (wire.Submit(0, 0, PLAIN_OPS[:2]), wire.Cancel(0, 1)),
    "ask": (wire.Ask(1, "tree", limit=2), wire.Ask(2, "events", since=0)),
    "acknowledge": (wire.Submit(0, 0, PLAIN_OPS[:2]), wire.Acknowledge(0)),
}
"""Valid sequences of messages that together have every struct."""

PLACES = {kind: (name, path) for name, messages in MESSAGES.items() for path, kind in wire_fuzz.structs(messages)}
"""For each struct: the sequence that has it, and where."""


def test_every_struct_of_client_messages_is_covered() -> None:
    assert set(PLACES) == wire_fuzz.kinds(msgspec.inspect.type_info(wire.ClientMessage))


@pytest.fixture(scope="module")
def server(tiny_model: Callable[..., Path]) -> Iterator[launch.ServerProcess]:
    options = config.make(model=str(tiny_model("llama")), threads=1, kv_memory="16MB", device="cpu", max_width=64)
    started = launch.start(options, timeout=100)
    yield started
    started.close()


@pytest.fixture
def connection(server: launch.ServerProcess) -> Iterator[client.Client]:
    with contextlib.closing(client.connect(server.socket, timeout=60)) as c:
        yield c


@pytest.fixture
def expected_text(connection: client.Client) -> str:
    return text(start_neighbour(connection))


def start_neighbour(c: client.Client) -> client.Program:
    program = c.program("neighbour")
    sampling = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
    program.submit([Append(0, ("the quick brown",)), Gen(0, 0, sampling)], last=True)
    return program


def text(program: client.Program) -> str:
    value: wire.Value = program.future(0).result(60)
    return value.samples[0].text


def receive_answers(socket: Any) -> list[wire.ServerMessage]:
    """The messages up to the answer of query 99 or the refusal of the peer."""
    replies: list[wire.ServerMessage] = []
    while socket.poll(60_000):
        replies.append(wire.decode_server(socket.recv()))
        match replies[-1]:
            case wire.Answer(id=99, ok=is_ok, body=body):
                assert is_ok or b"is not an operator" in body, body
                return replies
            case wire.Failed(program=-1):
                return replies
    raise AssertionError(f"no answer came, only {replies}")


def send(server: launch.ServerProcess, messages: tuple[wire.ClientMessage, ...]) -> list[wire.ServerMessage]:
    """Sends the messages as a new client, and a query that the engine answers; returns the replies."""
    context: Any = zmq.Context()
    try:
        socket, _ = ipc.connect(context, server.socket)
        hello = () if isinstance(messages[0], wire.Hello) else (wire.Hello(wire.VERSION),)
        for message in (*hello, *messages, wire.Ask(99, "check")):
            socket.send(wire_fuzz.encode(message))
        return receive_answers(socket)
    finally:
        context.destroy(linger=0)


PARTS = 6


def part_of(kind: type[Any], part: int) -> list[tuple[str, Any]]:
    """Every sixth border of each field: others than of the field before, so that a part has all borders."""
    fields = groupby(wire_fuzz.places(kind), key=lambda place: place[0])
    first = part + list(PLACES).index(kind)
    return [place for k, (_, places) in enumerate(fields) for place in list(places)[(first + k) % PARTS :: PARTS]]


@pytest.mark.parametrize("kind", [kind for kind in PLACES if wire_fuzz.places(kind)])
@pytest.mark.parametrize("part", in_short([0], range(PARTS)))
def test_values_at_borders_do_not_affect_other_clients(
    server: launch.ServerProcess, connection: client.Client, expected_text: str, part: int, kind: type[Any]
) -> None:
    name, path = PLACES[kind]
    neighbour = start_neighbour(connection)
    for field, border in part_of(kind, part):
        for message in send(server, wire_fuzz.put(MESSAGES[name], (*path, field), border)):
            assert not (isinstance(message, wire.Failed) and "the server failed" in message.message), message
        if neighbour.future(0).done():
            assert text(neighbour) == expected_text
            neighbour = start_neighbour(connection)
    assert text(neighbour) == expected_text
    assert_server_is_intact(connection)


def assert_server_is_intact(connection: client.Client) -> None:
    """The first engine still runs, and the server's accounts balance."""
    assert connection.ask("stats")["server"]["engine_starts"] == 1
    assert connection.ask("check") == {}


@pytest.mark.parametrize("field", ["child", "ref", "mark"])
def test_template_numbers_beyond_int64_fail_the_program(
    server: launch.ServerProcess, connection: client.Client, field: str
) -> None:
    ops = (Fork(0, (1, 2)), Mark(0, 0), Mark(0, 1), Read(0, 0), Read(0, 1), Append(2, ("a",)), Gen(2, 2, SAMPLING))
    use = msgspec.structs.replace(Use(0, 1), **{field: 2**63 - 1})
    replies = send(server, (wire.Define(1, ops), wire.Submit(7, 0, (use,), last=True)))
    failed = [message for message in replies if isinstance(message, wire.Failed)]
    assert [(one.program, one.ref, one.code) for one in failed] == [(7, None, "bad_program")]
    assert "template 1" in failed[0].message
    assert_server_is_intact(connection)


@pytest.mark.parametrize(
    ("gen", "error"),
    [
        (Gen(0, 0, Sampling(stop_token_ids=(2**31,))), "<= 2147483647.*stop_token_ids"),
        (Gen(0, 0, Sampling(stop_token_ids=(-1,))), "stop_token_ids has -1"),
        (Gen(0, 0, Sampling(stop_token_ids=(2**31 - 1,))), "stop_token_ids has 2147483647; .*the model's vocabulary"),
        (Gen(0, 0, Sampling(), reasoning=wire.Reasoning("", "")), "reasoning"),
        (Gen(0, 0, Sampling(), reasoning=wire.Reasoning("", "b")), "reasoning"),
        (Gen(0, 0, Sampling(), reasoning=wire.Reasoning("a", "")), "reasoning"),
    ],
)
@pytest.mark.parametrize("n", in_short([400], [1, 400]), ids=["on the loop", "on a thread"])
def test_invalid_gen_fails_and_its_client_continues(connection: client.Client, gen: Gen, error: str, n: int) -> None:
    program = connection.program("asks")
    text = wire.Raw("<|endoftext|>" * n)  # many characters, and few tokens
    program.submit([Append(0, (text,)), gen, Fork(0, (1,)), Read(0, 1)], last=True)
    with pytest.raises(client.BanyanError, match=error):
        program.future(0).result(60)
    other = connection.program("other")
    other.submit([Append(0, ("a",)), Gen(0, 0, Sampling(max_tokens=2, temperature=0.0))], last=True)
    assert other.future(0).result(60)
    assert_server_is_intact(connection)
