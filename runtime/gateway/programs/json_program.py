"""A program given in JSON: turns its requests into messages, and tracks which of its values have not arrived."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_NAME, MAX_OPS

NUMBER = 0
"""The number of every program, because each has a connection of its own."""


class ProgramRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request. The fields are those of wire.Submit; name and limits are used in the first request
    only."""

    ops: Annotated[tuple[wire.Op, ...], Meta(max_length=MAX_OPS)]
    last: bool = True
    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    limits: wire.ProgramLimits | None = None


class JSONProgram:
    """Turns requests into messages. max_message: the most bytes of a message to the server."""

    def __init__(self, max_message: int) -> None:
        self._max_message = max_message
        self._n_sent = 0
        self._missing: set[int] = set()  # refs
        self._is_last = self._has_failed = False

    @property
    def is_over(self) -> bool:
        """Whether all values of the program have arrived or failed, and no more ops will come."""
        return self._has_failed or (self._is_last and not self._missing)

    def message(self, body: ProgramRequest) -> bytes:
        """The Submit for a request. HTTPError: the program takes no more ops, or these ops are invalid."""
        if self._is_last and not (body.ops and all(isinstance(op, wire.Results) for op in body.ops)):
            text = "an earlier request said `last`, or left it at its default; now the program takes only results"
            raise HTTPError(400, text, param="ops")
        if any(isinstance(op, wire.Use) for op in body.ops):
            raise HTTPError(400, "the op `use` needs a template, which only Banyan's own client defines", param="ops")
        limits = None if self._n_sent else body.limits
        data = wire.encode(wire.Submit(NUMBER, self._n_sent, body.ops, body.last, body.name, limits))
        if len(data) > self._max_message:
            text = f"the ops take {len(data)} bytes; at most {self._max_message} are allowed. Use several requests"
            raise HTTPError(413, text, param="ops")
        self._n_sent += 1
        self._is_last = self._is_last or body.last
        self._missing.update(op.ref for op in body.ops if isinstance(op, wire.Gen | wire.Select | wire.Read))
        return data

    def note(self, message: wire.ServerMessage) -> bool:
        """Handle a message from the server. Returns whether the message is about the program."""
        match message:
            case wire.Value(ref=ref) | wire.Failed(ref=int(ref)):
                self._missing.discard(ref)
            case wire.Failed():
                self._has_failed = True
            case wire.Delta() | wire.Called():
                pass
            case _:
                return False
        return True
