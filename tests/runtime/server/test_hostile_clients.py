"""Clients that try to keep the server's loop busy: no piece of work is long, and other clients go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import msgspec
import pytest

import wire_fuzz
from banyan.runtime import config, launch
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_OPS, MESSAGE_LIMITS
from banyan.runtime.protocol.wire import (
    Append,
    BeginTurn,
    CacheHint,
    Define,
    Drop,
    EndTurn,
    Fork,
    Gen,
    Join,
    Mark,
    Read,
    Ref,
    Select,
    Submit,
    Tools,
    Use,
    WireToolCall,
)
from forms import in_short
from raw_peer import Peer
from waits import wait_until

LONGEST = 0.025
"""The most seconds of CPU time that the server's loop may take for one piece of work. Most pieces take less than 0.005;
the rest is for a slow machine, and for copies of very long prompts."""

CPU_CLOCK = """
import time
from banyan.runtime.server.telemetry import loop_times
loop_times.CLOCK = time.thread_time
"""


@pytest.fixture(scope="module")
def server(
    write_boot: Callable[[str], tuple[str, ...]], tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[launch.ServerProcess]:
    path = tmp_path_factory.mktemp("model")
    tiny.make_tokenizer(path)
    (path / "fake.json").write_text("{}")
    (path / "chat_template.jinja").write_text(wire_fuzz.TEMPLATE)
    process = launch.start(config.make(model=str(path)), timeout=30.0, command=write_boot(CPU_CLOCK))
    yield process
    process.close()


@pytest.fixture
def join_raw(server: launch.ServerProcess, peer_of: Callable[..., Peer]) -> Callable[[], Peer]:
    return partial(peer_of, server)


def program(ops: Iterable[wire.Op], last: bool = True, number: int = 0) -> list[bytes]:
    """The messages of a program, each at most half as long as max_message."""
    left, messages = list(ops), list[bytes]()
    while left:
        n = min(MAX_OPS, len(left))
        while sum(len(wire.encode(op)) for op in left[:n]) > 1 << 19:
            n //= 2
        messages.append(wire.encode(Submit(number, len(messages), tuple(left[:n]), last and n == len(left))))
        left = left[n:]
    return messages


def sampling(**options: Any) -> wire.Sampling:
    return wire.Sampling(**{"max_tokens": 2, "temperature": 0.0} | options)


def fan(n: int) -> list[wire.Op]:
    return [Fork(0, tuple(range(1, n + 1))), *(Append(k, ("a",)) for k in range(1, n + 1))]


def tool(k: int) -> str:
    """The spec of a tool with many parameters."""
    parameters = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(100)}}
    return json.dumps({"type": "function", "function": {"name": f"f{k}", "parameters": parameters}})


def blocked() -> list[bytes]:
    """Ops that wait, a dropped state that one of them needs, and then many short messages."""
    waiting = [Append(1, (Ref(10**6),)), *[Append(1, ("a",))] * 20_000, Append(1, (Ref(1),))]
    first = program([Fork(0, (1, 2)), *waiting, Gen(2, 1, sampling(max_tokens=400)), Drop(2)], last=False)
    return [*first, *(wire.encode(Submit(0, len(first) + k, (Append(0, ("a",)),))) for k in range(100))]


def deep(n: int) -> bytes:
    """A Submit with an unknown field of n empty arrays."""
    head = msgspec.msgpack.encode({"t": "submit", "program": 0, "seq": 0, "ops": []})
    return bytes([head[0] + 1]) + head[1:] + b"\xa2zz\xdd" + n.to_bytes(4, "big") + b"\x90" * n


HOSTILE: dict[str, Callable[[], list[bytes]]] = {
    "joins": lambda: program([Fork(0, (1,)), Append(1, ("abc",)), *[Join(0, (1,))] * 10_000]),
    "doubling": lambda: program([*fan(1), *[Join(0, (1,)), Join(1, (0,))] * 60]),
    "many ops": lambda: [m for p in range(4) for m in program([Append(0, ("a",))] * 20_000, number=p)],
    "forks": lambda: program(fan(4096)),
    "forks of a long text": lambda: program([*[Append(0, ("a",))] * 5000, *fan(1000)]),
    "adoptions": lambda: program(
        [*[Append(0, ("a",))] * 5000, *(op for k in range(1, 40) for op in (Fork(0, (k,)), Join(0, (k,), adopt=True)))]
    ),
    "samples": lambda: program([Append(0, ("a",)), Gen(0, 0, sampling(n=2000))]),
    "choices": lambda: program([Append(0, ("a",)), Select(0, 0, tuple(f"choice {k}" for k in range(1000)))]),
    "short choices": lambda: program([Append(0, ("word " * 80,)), Select(0, 0, ("a", "b") * 512, temperature=1.0)]),
    "blocked": blocked,
    "deadlocks": lambda: program([*fan(2000), *(Append(k, (Ref(10_000 + k),)) for k in range(1, 2000))]),
    "adoptions of a long text": lambda: program(
        [
            *[Append(0, ("a",) * 4096)] * 100,
            *(op for k in range(1, 3) for op in (Fork(0, (k,)), Join(0, (k,), adopt=True))),
        ]
    ),
    "short parts": lambda: program(
        [
            Append(0, tuple("ab cd "[k % 6] for k in range(1000))),
            Select(0, 0, ("a", "b", "c")),
            *(Append(0, tuple("ab cd "[k % 6] for k in range(4096))) for _ in range(20)),
        ]
    ),
    "hints": lambda: program([*[Append(0, ("a",) * 4096)] * 40, *[CacheHint(0, steps=1.0)] * 100]),
    "calls": lambda: program(
        [
            *[Append(0, (BeginTurn("assistant"), EndTurn((WireToolCall("000000000", "f", '{"a": 1}'),) * 1024)))] * 5,
            Append(0, (BeginTurn("user"),)),
            Gen(0, 0, sampling()),
        ]
    ),
    "checks": lambda: [
        *(wire.encode(Submit(k, 0, (Append(0, ("a",)),))) for k in range(2000)),
        *(wire.encode(wire.Ask(3, "check")) for _ in range(100)),
        *(wire.encode(wire.Cancel(k, 1)) for k in range(2000)),
    ],
    "long reads": lambda: program([*[Append(0, ("a" * 500_000,))] * 40, Read(0, 0)]),
    "tools": lambda: program(
        [
            Append(0, (BeginTurn("user"), "a", EndTurn(), BeginTurn("assistant"))),
            Gen(0, 0, sampling(), tools=Tools(tuple(map(tool, range(20))))),
        ]
    ),
    "parts": lambda: program([Append(0, ("",) * 4096)] * 20),
    "marks": lambda: program([*(Mark(0, k) for k in range(10_000)), *fan(100)]),
    "running gens": lambda: [
        *program([*fan(1000), *(Gen(k, k, sampling(max_tokens=400)) for k in range(1, 1001))], last=False),
        wire.encode(wire.Cancel(0, 9)),
    ],
    "template": lambda: [
        wire.encode(Define(5, (Append(0, ("a",)),) * 10_000)),
        wire.encode(Submit(0, 0, (Use(0, 5), Use(0, 5)), last=True)),
    ],
    "programs": lambda: [wire.encode(Submit(k, 0, (Append(0, ("a",)),))) for k in range(5000)],
    "gaps": lambda: [wire.encode(Submit(k, 1, (Append(0, ("a" * 10_000,)),))) for k in range(2000)],
    "stops": lambda: program([Append(0, ("a",)), Gen(0, 0, sampling(stop=tuple(map(str, range(50_000)))))]),
    "biases": lambda: program([Gen(0, 0, sampling(logit_bias=dict.fromkeys(range(20_000), 1.0)))]),
    "a long name": lambda: [wire.encode(Submit(0, 0, (), name="a" * 500_000))],
    "a long client": lambda: [wire.encode(wire.Hello(wire.VERSION, "a\n" * 250_000))],
    "an unknown field": lambda: [deep(500_000)],
}
SHORT = (
    "forks",
    "samples",
    "choices",
    "blocked",
    "parts",
    "stops",
    "a long name",
    "an unknown field",
)
"""Cases that take less than 0.4 s of CPU time and differ in the op, in where they wait and in the kind of message."""
ENDLESS = ("blocked", "programs", "an unknown field")
"""Cases whose programs do not end before their client."""


@pytest.mark.parametrize("case", in_short(SHORT, HOSTILE))
def test_hostile_client_does_not_hold_the_loop(join_raw: Callable[[], Peer], case: str) -> None:
    hostile, other = join_raw(), join_raw()
    other.send(wire.encode(Submit(0, 0, (Append(0, ("a",)), Gen(0, 0, sampling(max_tokens=150))), last=True)))
    hostile.send(*HOSTILE[case]())
    assert isinstance(other.receive(), wire.Value)
    hostile.send(wire.encode(wire.Ask(2, "info")))  # answered behind all that came before
    while not (isinstance(message := hostile.receive(), wire.Answer) and message.id == 2):
        if isinstance(message, wire.Failed) and message.program == -1:
            break
    stats = wait_until(
        lambda: stats if not (stats := other.stats())["programs"] or case in ENDLESS else {}, "the end of the programs"
    )
    longest = stats["longest"]
    assert {kind: seconds for kind, seconds in longest.items() if seconds > LONGEST} == {}


def test_nothing_is_left_of_hostile_clients(join_raw: Callable[[], Peer]) -> None:
    last = join_raw()
    end = time.monotonic() + 30
    while (stats := last.stats())["clients"] > 1 or stats["programs"] or stats["requests"]:
        assert time.monotonic() < end, stats
    assert {kind: seconds for kind, seconds in stats["longest"].items() if seconds > LONGEST} == {}


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (Gen(0, 0, sampling(stop=("a",) * 65), name="x", line="f:3"), r"gen 'x' f:3.*length <= 64.*sampling.stop"),
        (Gen(0, 0, sampling(stop=("a" * 2000,))), r"length <= 1024"),
        (Gen(0, 0, sampling(max_tokens=1 << 40)), r"<= 2147483647.*max_tokens"),
        (Gen(0, 0, name="a" * 300), r"length <= 256.*name"),
        (Append(0, (wire.BeginTurn("a" * 65),)), r"append.*length <= 64.*role"),
        (Fork(-1, (1,)), r"fork.*>= 0.*state"),
    ],
)  # fmt: skip
def test_invalid_op_fails_only_its_program(join_raw: Callable[[], Peer], op: wire.Op, error: str) -> None:
    peer = join_raw()
    peer.send(*program([Append(0, ("a",)), op]), *program([Append(0, ("a",)), Gen(0, 0, sampling())], number=1))
    failed = peer.receive()
    assert isinstance(failed, wire.Failed)
    assert (failed.program, failed.ref, failed.code) == (0, None, "bad_message")
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(failed.message)
    assert isinstance(value := peer.receive(), wire.Value)
    assert value.program == 1


def test_message_limits_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from banyan.cli import main

    with pytest.raises(SystemExit):
        main.main(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "limits of clients: --" in shown
    assert [str(limit) for limit in MESSAGE_LIMITS if str(limit) not in shown] == []
