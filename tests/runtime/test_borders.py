"""Numbers at the borders of int32, int64 and uint64 in every integer field of every message of a client: no engine dies
of one, and the programs of other clients end as they always do."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

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

BORDERS = (0, 1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)

SAMPLING = Sampling(max_tokens=3, min_tokens=1, top_k=5, logit_bias={7: 1.0}, stop_token_ids=(9,), seed=1)
SCORED = Sampling(max_tokens=3, temperature=0.0, logprobs=True, top_logprobs=2, logprob_start=0)
SPEC = '{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}'
LIMITS = wire.ProgramLimits(budget=1000, batch=1, batch_budget=1000, priority=1)
TEMPLATE = (
    Append(0, ("a", Arg(0))),
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
PLAIN = (Append(0, ("a",)), Gen(0, 0, SCORED, retries=1, budget=100, priority=1), Results(0, 0, 0, ("no",)))
TALKS = (
    Append(0, (wire.BeginTurn("user"), "a", wire.EndTurn(), wire.BeginTurn("assistant"))),
    Gen(0, 0, Sampling(max_tokens=3), tools=wire.Tools((SPEC,), 1)),
)
WITHOUT_ARGS = tuple(Append(op.state, ("a",)) if op is TEMPLATE[0] else op for op in TEMPLATE)

TALES: dict[str, tuple[wire.ClientMessage, ...]] = {
    "hello": (wire.Hello(wire.VERSION),),
    "plain": (wire.Submit(0, 0, PLAIN, last=True, limits=LIMITS),),
    "tools": (wire.Submit(0, 0, TALKS, last=True),),
    "ops": (wire.Submit(0, 0, WITHOUT_ARGS, last=True),),
    "use": (
        wire.Define(1, TEMPLATE),
        wire.Submit(0, 0, (Use(0, 1, ("x",), child=1, ref=1, mark=1),), last=True),
        wire.Submit(1, 0, (Use(0, 1, ("x",), seeds=()),), last=True),
        wire.Undefine(1),
    ),
    "seeds": (
        wire.Define(1, (Append(0, ("a",)), Gen(0, 0, Sampling(max_tokens=3)))),
        wire.Submit(0, 0, (Use(0, 1, seeds=(5,)),), last=True),
    ),
    "cancel": (wire.Submit(0, 0, PLAIN[:2]), wire.Cancel(0, 1)),
    "ask": (wire.Ask(1, "tree", limit=2), wire.Ask(2, "events", since=0)),
    "acknowledge": (wire.Submit(0, 0, PLAIN[:2]), wire.Acknowledge(0)),
}
"""Messages that make sense, with every integer field among them."""

Path_ = tuple[str | int, ...]


def numbers(value: Any, path: Path_ = (), owner: str = "") -> Iterator[tuple[Path_, str]]:
    """Where integers stand in it, and in which field of which message."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from numbers(getattr(value, name), (*path, name), f"{type(value).__name__}.{name}")
    elif isinstance(value, tuple):
        for i, one in enumerate(value):
            yield from numbers(one, (*path, i), owner)
    elif isinstance(value, dict):
        yield from ((((*path, key)), owner) for key in value if isinstance(key, int))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path, owner


def put(value: Any, path: Path_, number: int) -> Any:
    """`value` with another number at `path`."""
    if not path:
        return number
    at, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {number: value[at]}
    if isinstance(value, tuple):
        assert isinstance(at, int)
        return (*value[:at], put(value[at], rest, number), *value[at + 1 :])
    return msgspec.structs.replace(value, **{str(at): put(getattr(value, str(at)), rest, number)})


PLACES = {(name, owner): path for name, tale in TALES.items() for path, owner in numbers(tale)}
"""Of each field in each tale, the last place."""


def integer_fields(kind: Any, seen: set[Any]) -> Iterator[str]:
    """Those of a message, and of what stands in it."""
    if kind in seen:
        return
    seen.add(kind)
    for part in typing.get_args(kind):
        yield from integer_fields(part, seen)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for name, hint in typing.get_type_hints(kind).items():
            if any(one is int for one in (hint, *typing.get_args(hint))):
                yield f"{kind.__name__}.{name}"
            yield from integer_fields(hint, seen)


def test_every_integer_field_of_a_client_is_tried() -> None:
    fields = set(integer_fields(wire.ClientMessage, set()))
    assert fields == {owner for _, owner in PLACES}
    assert len(fields) > 40


@pytest.fixture(scope="module")
def server(tiny_model: Callable[..., Path]) -> Iterator[launch.ServerProcess]:
    options = config.make(model=str(tiny_model("llama")), threads=1, kv_memory="16MB", device="cpu", max_width=64)
    started = launch.start(options, timeout=100)
    yield started
    started.close()


@pytest.fixture
def good(server: launch.ServerProcess) -> Iterator[client.Client]:
    with contextlib.closing(client.connect(server.socket, timeout=60)) as c:
        yield c


@pytest.fixture
def usual(good: client.Client) -> str:
    return text(begin(good))


def begin(c: client.Client) -> client.Program:
    program = c.program("neighbour")
    sampling = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
    program.submit([Append(0, ("the quick brown",)), Gen(0, 0, sampling)], last=True)
    return program


def text(program: client.Program) -> str:
    value: wire.Value = program.future(0).result(60)
    return value.samples[0].text


def answers(socket: Any) -> list[wire.ServerMessage]:
    """What came until a question was answered, or the peer was refused."""
    said: list[wire.ServerMessage] = []
    while socket.poll(60_000):
        said.append(wire.decode_server(socket.recv()))
        match said[-1]:
            case wire.Answer(id=99) | wire.Failed(program=-1):
                return said
    raise AssertionError(f"no answer came, only {said}")


def tell(server: launch.ServerProcess, messages: tuple[wire.ClientMessage | bytes, ...]) -> list[wire.ServerMessage]:
    """Say all this as a client of its own, and ask something behind it; what it was answered."""
    context: Any = zmq.Context()
    try:
        socket, _ = ipc.connect(context, server.socket)
        hello = () if isinstance(messages[0], wire.Hello) else (wire.Hello(wire.VERSION),)
        for message in (*hello, *messages, wire.Ask(99, "info")):
            socket.send(message if isinstance(message, bytes) else wire.encode(message))
        return answers(socket)
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize(("name", "owner"), PLACES)
def test_no_number_of_a_client_costs_anybody_else_anything(
    server: launch.ServerProcess, good: client.Client, usual: str, name: str, owner: str
) -> None:
    for number in BORDERS:
        neighbour = begin(good)
        said = tell(server, put(TALES[name], PLACES[name, owner], number))
        for message in said:
            assert not (isinstance(message, wire.Failed) and "the server failed" in message.message), message
        assert text(neighbour) == usual
    check(good)


def check(good: client.Client) -> None:
    assert good.ask("stats")["server"]["engine_starts"] == 1
    """All that there was still lives, and its books balance."""
    assert good.ask("stats")["server"]["engine_starts"] == 1
    assert good.ask("check") == {}


@pytest.mark.parametrize("field", ["child", "ref", "mark"])
def test_what_a_template_makes_stays_in_range_or_its_program_fails(
    server: launch.ServerProcess, good: client.Client, field: str
) -> None:
    ops = (Fork(0, (1, 2)), Mark(0, 0), Mark(0, 1), Read(0, 0), Read(0, 1), Append(2, ("a",)), Gen(2, 2, SAMPLING))
    use = msgspec.structs.replace(Use(0, 1), **{field: 2**63 - 1})
    said = tell(server, (wire.Define(1, ops), wire.Submit(7, 0, (use,), last=True)))
    failed = [message for message in said if isinstance(message, wire.Failed)]
    assert [(one.program, one.ref, one.code) for one in failed] == [(7, None, "bad_program")]
    assert "template 1" in failed[0].message
    check(good)


@pytest.mark.parametrize(
    ("gen", "says"),
    [
        (Gen(0, 0, Sampling(stop_token_ids=(2**31,))), "stop_token_ids has 2147483648"),
        (Gen(0, 0, Sampling(stop_token_ids=(-1,))), "stop_token_ids has -1"),
        (Gen(0, 0, Sampling(stop_token_ids=(2**31 - 1,))), "stop_token_ids has 2147483647; .*the model's vocabulary"),
        (Gen(0, 0, Sampling(), reasoning=wire.Reasoning("", "")), "reasoning"),
        (Gen(0, 0, Sampling(), reasoning=wire.Reasoning("", "b")), "reasoning"),
        (Gen(0, 0, Sampling(), reasoning=wire.Reasoning("a", "")), "reasoning"),
    ],
)
@pytest.mark.parametrize("n", [1, 5000], ids=["on the loop", "on a thread"])
def test_the_gen_that_asked_is_told_and_its_client_goes_on(good: client.Client, gen: Gen, says: str, n: int) -> None:
    program = good.program("asks")
    program.submit([Append(0, ("a" * n,)), gen, Fork(0, (1,)), Read(0, 1)], last=True)
    with pytest.raises(client.BanyanError, match=says):
        program.future(0).result(60)
    other = good.program("other")
    other.submit([Append(0, ("a",)), Gen(0, 0, Sampling(max_tokens=2, temperature=0.0))], last=True)
    assert other.future(0).result(60)
    check(good)
