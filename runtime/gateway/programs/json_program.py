"""A program whose ops come as JSON: converts requests into messages to the server, and tracks which values are
missing."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from banyan.runtime.errors import Cancelled
from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_NAME, MAX_NUMBER, MAX_OPS

END = MAX_NUMBER
"""The ref of a value that the server makes if the last op makes none: it tells how that op went. Clients cannot use
this ref."""
NUMBER = 0
"""The number of every program, because each has its own connection."""


class ProgramRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON body of a request with ops. The fields are those of wire.Submit. name, limits: used in the first request
    of a program only. limits.left: 0 stands for the whole timeout."""

    ops: Annotated[tuple[wire.Op, ...], Meta(max_length=MAX_OPS - 1)]  # `message` may add one
    last: bool = True
    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    limits: wire.ProgramLimits | None = None


def decode_request(body: bytes) -> ProgramRequest:
    """HTTPError: the body is not JSON, or has a field that its object has not."""
    kind: type[ProgramRequest] = _strict(ProgramRequest)
    return decode(body, kind)


@cache
def _strict(kind: Any) -> Any:
    """The type `kind`, with structs that refuse unknown fields, at every level. (Those of wire.py ignore them, so that
    peers of different releases understand each other; but in JSON that people write, they are mistakes.)"""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        fields = []
        for f in msgspec.structs.fields(kind):
            default: Any = {"default": f.default, "default_factory": f.default_factory}
            fields.append((f.name, _strict(hints[f.name]), msgspec.field(**default)))
        tag = kind.__struct_config__.tag
        return msgspec.defstruct(kind.__name__, fields, bases=(kind,), tag=tag, frozen=True, forbid_unknown_fields=True)
    if get_origin(kind) is Annotated:
        return Annotated[_strict(kind.__origin__), *kind.__metadata__]
    if get_origin(kind) is Literal or not (args := get_args(kind)):
        return kind
    args = tuple(_strict(one) for one in args)
    return reduce(or_, args) if isinstance(kind, UnionType) else get_origin(kind)[args]


class JSONProgram:
    """One program whose ops come in JSON requests. max_message: maximum number of bytes that a message to the server
    may have."""

    def __init__(self, max_message: int) -> None:
        self._max_message = max_message
        self._n_sent = 0
        self._missing: dict[int, int] = {}  # ref -> its state
        self._called: dict[int, int] = {}  # ref of a value that waits for results -> round
        self._errors: set[str] = set()  # the messages of values that failed
        self._is_last = self._has_failed = False
        self._untold: int | None = None
        """The state of the last op, if no value tells how that op went."""

    @property
    def is_over(self) -> bool:
        """Whether the program is over: no more ops will come and no value is missing, or the whole program has
        failed."""
        return self._has_failed or (self._is_last and not self._missing)

    def message(self, body: ProgramRequest) -> bytes:
        """Encode the ops of a request as a message to the server (wire.Submit). HTTPError: the ops are invalid or too
        long, or an earlier request was the last."""
        if self._is_last and not (body.ops and all(isinstance(op, wire.Results) for op in body.ops)):
            text = "an earlier request said `last`, or left it at its default; now the program takes only results"
            raise HTTPError(400, text, param="ops")
        if any(isinstance(op, wire.Use) for op in body.ops):
            raise HTTPError(400, "the op `use` needs a template, which only Banyan's own client defines", param="ops")
        limits = None if self._n_sent else body.limits
        if limits is not None and not limits.left:
            limits = replace(limits, left=limits.timeout)
        answered: set[int] = set()
        for op in body.ops:
            if not isinstance(op, wire.Results):
                continue
            waits = op.ref not in answered and self._called.get(op.ref) == op.round
            if not waits or self._missing[op.ref] != op.state:
                text = f"nothing waits for ref {op.ref}, round {op.round} in state {op.state}"
                raise HTTPError(400, f"{text}; `results` have the ref and round of a `called`", param="ops")
            answered.add(op.ref)
        refs = {op.ref: op.state for op in body.ops if isinstance(op, wire.Gen | wire.Select | wire.Read)}
        if END in refs:
            raise HTTPError(400, f"the ref {END} is reserved; use smaller numbers", param="ops")
        ops, untold = body.ops, self._untold
        for op in ops:
            if isinstance(op, wire.Gen | wire.Select | wire.Read):
                untold = None
            elif isinstance(op, wire.Results):
                continue  # the answer to a gen that was before the last op, or is it
            elif untold is None or not isinstance(op, wire.Drop):  # a dropped state tells nothing of those before it
                untold = op.state
        if body.last and untold is not None and not self._is_last:
            ops, refs = (*ops, wire.Read(untold, END)), refs | {END: untold}
        data = wire.encode(wire.Submit(NUMBER, self._n_sent, ops, body.last, body.name, limits))
        if len(data) > self._max_message:
            text = f"the ops take {len(data)} bytes; at most {self._max_message} are allowed. Use several requests"
            raise HTTPError(413, text, param="ops")
        self._n_sent += 1
        self._is_last = self._is_last or body.last
        self._untold = untold
        self._missing |= refs
        for ref in answered:
            del self._called[ref]
        return data

    def note(self, message: wire.ServerMessage) -> bool:
        """Take note of a message from the server. Returns whether the client gets it: False for messages that are not
        about the program or its own values."""
        match message:
            case wire.Value(ref=ref) | wire.Failed(ref=int(ref)):
                self._missing.pop(ref, None)
                self._called.pop(ref, None)
                if ref == END:
                    return isinstance(message, wire.Failed) and self._is_news(message)
                if isinstance(message, wire.Failed):
                    self._errors.add(message.message)
            case wire.Failed():
                self._has_failed = True
            case wire.Called():
                self._called[message.ref] = message.round
            case wire.Delta():
                pass
            case _:
                return False
        return True

    def _is_news(self, end: wire.Failed) -> bool:
        """Whether the failure of END is one of the client's ops. Its state may have been dropped, or have failed with a
        value: then the end of the message is that of the value."""
        return end.code != Cancelled.code and not end.message.endswith(tuple(self._errors))
