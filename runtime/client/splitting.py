"""Cuts the ops of a program into messages that the server accepts, of at most `max_message` bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from banyan.runtime.errors import BadMessage
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_OPS, MAX_PARTS
from banyan.runtime.protocol.op_template import ProgramTemplate

HEADER, FIELDS = 4096, 64
"""HEADER: maximum number of bytes of a Submit besides its ops. FIELDS: maximum number of bytes of an Append besides its
parts."""


def fits(data: bytes, ops: Sequence[wire.Op], max_message: int) -> bool:
    """Whether the server accepts `data`, the message that contains all of `ops`."""
    if len(data) <= MAX_PARTS:
        return True
    is_short = len(data) <= max_message and len(ops) <= MAX_OPS
    return is_short and all(len(op.parts) <= MAX_PARTS for op in ops if isinstance(op, wire.Append))


def messages(
    ops: Iterable[wire.Op], templates: Mapping[int, ProgramTemplate], max_message: int
) -> Iterator[tuple[wire.Op, ...]]:
    """Split `ops` into groups, each for one message. A long text becomes several texts. A Use with long arguments is
    replaced by the ops for which it stands; the server makes the same tokens from them. Raises BadMessage if an op that
    cannot be split is too long."""
    most = max_message - HEADER
    group: list[wire.Op] = []
    n_bytes = 0
    for op in _short_ops(ops, templates, most):
        n = len(wire.encode(op))
        if n > most:
            raise BadMessage(f"{_name(op)} has {n} bytes; the server accepts at most {most} at once; {_advice(op)}")
        if group and (n_bytes + n > most or len(group) == MAX_OPS):
            yield tuple(group)
            group, n_bytes = [], 0
        group.append(op)
        n_bytes += n
    yield tuple(group)


def _short_ops(ops: Iterable[wire.Op], templates: Mapping[int, ProgramTemplate], most: int) -> Iterator[wire.Op]:
    for op in ops:
        match op:
            case wire.Append():
                yield from short_appends(op, most - FIELDS)
            case wire.Use(args=args) if sum(map(len, args)) > most // 4:  # a character has at most 4 bytes
                yield from _short_ops(templates[op.template].expand(op), templates, most)
            case _:
                yield op


def short_appends(op: wire.Append, most: int = 1 << 62) -> Iterator[wire.Append]:
    """Split `op` into appends with at most MAX_PARTS parts and `most` bytes each. A part that cannot be cut may be
    longer."""
    parts: list[wire.Part] = []
    n_bytes = 0
    for part in _short_parts(op.parts, most // 8):
        n = len(wire.encode(part))
        if parts and (n_bytes + n > most or len(parts) == MAX_PARTS):
            yield replace(op, parts=tuple(parts))
            parts, n_bytes = [], 0
        parts.append(part)
        n_bytes += n
    yield replace(op, parts=tuple(parts))


def _short_parts(parts: Iterable[wire.Part], most: int) -> Iterator[wire.Part]:
    """The parts, in order. A text of more than `most` characters is cut into several parts."""
    for part in parts:
        match part:
            case str() if len(part) > most:
                yield from (part[at : at + most] for at in range(0, len(part), most))
            case wire.Raw(text=text) if len(text) > most:
                yield from (wire.Raw(text[at : at + most]) for at in range(0, len(text), most))
            case _:
                yield part


def _name(op: wire.Op) -> str:
    kind = type(op).__name__.lower()
    if isinstance(op, wire.Gen | wire.Select):
        return f"the {kind} {op.name!r} at {op.line}" if op.line else f"the {kind} {op.name!r}"
    return {"append": "an image", "results": "the results of the tools"}.get(kind, f"a {kind}")


def _advice(op: wire.Op) -> str:
    what = {
        wire.Gen: "give it shorter tools or a smaller schema",
        wire.Select: "give it fewer or shorter choices",
        wire.Results: "let the tools return less",
    }.get(type(op), "send less")
    return f"{what}, or start the server with a larger max_message"
