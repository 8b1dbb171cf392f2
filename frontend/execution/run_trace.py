"""The trace of a run, for the views: what the run sent, and when it waited. Times are seconds of time.monotonic()."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Literal, NamedTuple

from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate
from banyan.tools.toolbox import ToolCall


class TimeSpan(NamedTuple):
    """Time that the client spent waiting for a value or running a tool. name: the name of the variable or tool. state:
    the number of the branch; -1: none. error: what the wait or the tool raised, or ""."""

    kind: Literal["wait", "tool"]
    name: str
    start: float
    end: float
    state: int = -1
    line: str = ""
    error: str = ""


class Round(NamedTuple):
    """One model turn that called tools: its full text and the executed calls."""

    text: str
    calls: tuple[ToolCall, ...]

    def results(self, chat: wire.ChatMarkers) -> str:
        """The text that the server appends between this turn and the next: markers and the results of the calls."""
        begin, end = chat.roles.get("assistant", ("", ""))
        before, after = chat.roles.get("tool", ("", ""))
        return end + "".join(f"{before}{call.result}{after}" for call in self.calls) + begin


class Sent(NamedTuple):
    """One message of a program. at: when it was sent, in seconds of time.monotonic(). why: what caused the flush."""

    at: float
    ops: Sequence[wire.Op]
    why: str = ""


class RunTrace:
    """What one run sent, its time spans, and its rounds of tool calls."""

    __slots__ = ("began", "ended", "rounds", "sent", "spans", "templates")

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.ended = 0.0
        """When the body returned or raised; 0.0 before that."""
        self.rounds: dict[int, list[Round]] = {}
        """For each gen with tools, by the number of its value: the rounds that have ended."""
        self.sent: list[Sent] = []
        self.spans: list[TimeSpan] = []
        self.templates: dict[int, ProgramTemplate] = {}
        """The templates that the run used, by their numbers on the backend."""

    def ops(self) -> Iterator[wire.Op]:
        """All ops sent so far, in order."""
        return chain.from_iterable(self.expanded(message.ops) for message in tuple(self.sent))

    def expanded(self, ops: Iterable[wire.Op]) -> Iterator[wire.Op]:
        """`ops` with each use of a template replaced by the template's ops."""
        for op in ops:
            yield from self.templates[op.template].expand(op) if isinstance(op, wire.Use) else (op,)

    @contextmanager
    def span(self, kind: Literal["wait", "tool"], name: str, state: int = -1, line: str = "") -> Iterator[None]:
        """A context manager that records its block as a TimeSpan: the duration, the error that the block raised, and
        the arguments. state: the number of the branch; -1: none. line: the line of user code that waits."""
        start, error = time.monotonic(), ""
        try:
            yield
        except BaseException as e:
            error = type(e).__name__
            raise
        finally:
            self.spans.append(TimeSpan(kind, name, start, time.monotonic(), state, line, error))
