from __future__ import annotations

import re
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from banyan.runtime.protocol import decoders, wire

ROOT = Path(__file__).parents[3]
MESSAGES = sorted(
    (value for value in vars(wire).values() if isinstance(value, type) and issubclass(value, wire.Wire)),
    key=lambda cls: cls.__name__,
)
DIRECTIONS = {
    "client": (wire.ClientMessage, decoders.decode_client),
    "server": (wire.ServerMessage, wire.decode_server),
    "command": (wire.EngineCommand, decoders.decode_command),
    "report": (wire.EngineReport, decoders.decode_report),
}


def example(kind: Any) -> Any:
    """A non-default value of a field's type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return args[-1]
    if origin in (typing.Union, types.UnionType):
        return example(next(a for a in args if a is not type(None)))
    if origin is tuple:
        return (example(args[0]),) if args[-1] is ... else tuple(map(example, args))
    if origin is dict:
        return {example(args[0]): example(args[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return make(kind)
    return {int: 3, str: "é🙂", bytes: b"\x01\x00\xff", float: 0.25, bool: True, msgspec.Raw: msgspec.Raw(b"\x01")}[
        kind
    ]


def make(cls: type[Any]) -> Any:
    hints = typing.get_type_hints(cls)
    return cls(**{field: example(hints[field]) for field in cls.__struct_fields__})


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_message_round_trips(direction: str) -> None:
    union, decode = DIRECTIONS[direction]
    for cls in typing.get_args(union):
        message = make(cls)
        assert decode(wire.encode(message)) == message
        required = {
            f.name: example(typing.get_type_hints(cls)[f.name]) for f in msgspec.structs.fields(cls) if f.required
        }
        assert decode(wire.encode(cls(**required))) == cls(**required)


def test_every_op_and_part_round_trips() -> None:
    ops = tuple(make(op) for op in typing.get_args(wire.Op))
    parts = ("text", *(make(part) for part in typing.get_args(wire.Part) if part is not str))
    message = wire.Submit(program=1, seq=2, ops=(*ops, wire.Append(0, parts)), last=True, name="p")
    assert decoders.decode_client(wire.encode(message)) == message


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_message_of_another_direction_is_refused(direction: str) -> None:
    union, decode = DIRECTIONS[direction]
    own = typing.get_args(union)
    for other, _ in DIRECTIONS.values():
        for cls in typing.get_args(other):
            if cls not in own:
                with pytest.raises(msgspec.ValidationError):
                    decode(wire.encode(make(cls)))


def test_tags_and_version_are_fixed() -> None:
    assert sorted(cls.__struct_config__.tag for cls in MESSAGES if cls is not wire.Wire) == [
        "abort", "acknowledge", "answer", "append", "arg", "ask", "begin", "cachehint", "called",
        "callpiece", "cancel", "chatmarkers", "check", "checkresult", "constraintspec", "define", "define", "delta",
        "dismiss", "drop", "end", "endengine", "endpull", "engineended", "enginepong", "enginestarted", "evictfirst",
        "export", "exported", "failed", "finish", "fork", "gen", "hello", "hold", "hosthello", "ids", "image",
        "imagepixels", "imagerows", "join", "kvformat", "listen", "mark", "notice", "otherwork", "ping", "pixelarray",
        "pong", "programended", "programlimits", "pull", "pulled", "raw", "read", "ready", "reasoning", "ref",
        "release", "results", "run", "sample", "sampling", "scores", "select", "setvocabulary", "startengine",
        "step", "submit", "submit", "times", "tokenlimit", "tokenlogprob", "tokens", "tokenusage", "tools",
        "toplogprobs", "treeevent", "treeevents", "undefine", "use", "value", "wantimages", "welcome", "wiretoolcall",
    ]  # fmt: skip
    assert wire.VERSION == 3


# The first fields of version 3's messages, in order. New fields are appended with a default.
FIRST_FIELDS = {
    "Submit": ("program", "seq", "ops", "last", "name"),
    "Gen": ("state", "ref", "sampling", "stream", "name", "line"),
    "Run": ("rid", "ids", "sampling", "stop_ids", "seed", "sample", "n_done", "score_from", "namespace", "order"),
    "Step": ("rids", "counts", "ids", "logprobs", "finished"),
    "Finish": ("rid", "reason", "stop_id", "n_prompt", "n_cached", "scores"),
    "Value": ("program", "seq", "ref", "samples", "usage", "scores"),
    "Failed": ("program", "seq", "code", "message", "ref", "prompt_tail"),
    "Welcome": ("version", "model", "max_context", "chat"),
}


@pytest.mark.parametrize("name", FIRST_FIELDS)
def test_fields_are_only_appended_with_a_default(name: str) -> None:
    cls = getattr(wire, name)
    fields = msgspec.structs.fields(cls)
    n = len(FIRST_FIELDS[name])
    assert tuple(f.name for f in fields[:n]) == FIRST_FIELDS[name]
    assert not any(f.required for f in fields[n:])


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_unknown_fields_are_ignored(cls: type[Any]) -> None:
    data = msgspec.msgpack.decode(wire.encode(make(cls))) | {"future field": [1, {"x": 2}]}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(data), type=cls) == make(cls)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_messages_are_frozen(cls: type[Any]) -> None:
    message = make(cls)
    for field in cls.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(message, field, None)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x80", b"junk", wire.encode(wire.Ping())[:-1], b"\xc1" * 1000])
def test_invalid_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoders.decode_client(data)


def test_wrong_field_type_is_refused_with_its_path() -> None:
    data = msgspec.msgpack.encode(
        {"t": "submit", "program": 0, "seq": 0, "ops": [{"t": "gen", "state": "x", "ref": 1}]}
    )
    with pytest.raises(msgspec.ValidationError, match=r"\$\.ops\[0\]\.state"):
        decoders.decode_client(data)


def test_defaults_are_not_sent() -> None:
    assert len(wire.encode(wire.Gen(0, 0))) < 25


def test_repository_does_not_use_pickle() -> None:
    regex = re.compile(
        r"^\s*(?:import|from)\s+(?:pickle|cloudpickle|dill|marshal|shelve)\b|\bpickle\.(?:loads?|dumps?)|"
        r"send_pyobj|recv_pyobj",
        re.MULTILINE,
    )
    folders = ("frontend", "runtime", "radix_cache", "kernels", "examples", "benchmarks")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 20
    assert [str(file) for file in files if regex.search(file.read_text(encoding="utf-8"))] == []
