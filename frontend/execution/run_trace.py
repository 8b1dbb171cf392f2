"""What a run leaves behind for those who look at it later: what was sent and when, and what its body did meanwhile.

Written on the way, read by usage.py, timeline.py and show.py. Times are seconds of `time.monotonic`, the clock of
`wire.Times`: on one machine all processes share it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate


class TimeSpan(NamedTuple):
    """Something that took time on the user's side. state: where it happened, as the server numbers it; -1: in none."""

    kind: Literal["wait", "tool"]
    name: str
    start: float
    end: float
    state: int = -1
    line: str = ""
    error: str = ""


class Sent(NamedTuple):
    """One message of a program. why: what happened then, that it was sent."""

    at: float
    ops: Sequence[wire.Op]
    why: str = ""


class RunTrace:
    """Of one run."""

    __slots__ = ("began", "ended", "sent", "spans", "templates")

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.ended = 0.0
        """When the body returned or raised; 0.0 before."""
        self.sent: list[Sent] = []
        self.spans: list[TimeSpan] = []
        self.templates: dict[int, ProgramTemplate] = {}
        """Those that were used, by their numbers on the backend."""

    def send(self, ops: Sequence[wire.Op], why: str) -> None:
        self.sent.append(Sent(time.monotonic(), ops, why))

    def ops(self) -> Iterator[wire.Op]:
        """All that was sent so far, in order."""
        for message in tuple(self.sent):
            yield from self.expanded(message.ops)

    def expanded(self, ops: Iterable[wire.Op]) -> Iterator[wire.Op]:
        """`ops`, with what a template stands for in its place."""
        for op in ops:
            if isinstance(op, wire.Use):
                yield from self.templates[op.template].expand(op)
            else:
                yield op

    @contextmanager
    def span(self, kind: Literal["wait", "tool"], name: str, state: int = -1, line: str = "") -> Iterator[None]:
        """Note how long the block takes, and what it raises."""
        start, error = time.monotonic(), ""
        try:
            yield
        except BaseException as e:
            error = type(e).__name__
            raise
        finally:
            self.spans.append(TimeSpan(kind, name, start, time.monotonic(), state, line, error))
