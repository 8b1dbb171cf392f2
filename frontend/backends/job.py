"""What a backend that only generates is asked: one gen or select with its prompt, and how it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from banyan.runtime import wire
from banyan.runtime.errors import BanyanError, ProgramError

if TYPE_CHECKING:
    from banyan.backends.local import Program, State
    from banyan.clock import Alarm

CHATML = wire.ChatMarkers(
    roles={name: (f"<|im_start|>{name}\n", "<|im_end|>\n") for name in ("system", "user", "assistant", "tool")},
    stop=("<|im_end|>",),
)
"""Markers around turns, where the model's own are not known."""


class Made(NamedTuple):
    """What a gen or select put into a state."""

    text: str


class Answers(NamedTuple):
    """Turns of tools behind a Called, each (id of the call, what it gave); then a turn of the assistant begins."""

    texts: tuple[tuple[str, str], ...]


Piece: TypeAlias = "str | wire.Raw | wire.Image | wire.Begin | wire.End | Made | wire.Called | Answers"


class Outcome(NamedTuple):
    """What a backend has to say to a job. first: when its first token came, where that is known. calls: tools that are
    to be called; the text of the first sample is what the model said with them."""

    samples: tuple[wire.Sample, ...]
    usage: wire.Usage = wire.Usage()
    scores: wire.Scores | None = None
    first: float = 0.0
    calls: tuple[wire.ToolCall, ...] = ()


class Job:
    """One gen or select, to be answered by one call of `give` or `fail`. After `is_stopped` nobody listens any more.

    round: for a gen with tools, how often it has called some.
    """

    __slots__ = (
        *("_program", "_state", "_stop", "alarm", "called", "is_stopped", "op", "pieces", "ready", "round", "spent"),
    )

    def __init__(self, program: Program, state: State, op: wire.Gen | wire.Select, before: Job | None = None) -> None:
        """before: the round before this one."""
        self._program, self._state, self.op = program, state, op
        self.round = 0 if before is None else before.round + 1
        self.spent = wire.Usage() if before is None else before.spent
        """By the rounds before this one."""
        self.called: wire.Called | None = None
        self.alarm: Alarm | None = None
        """When its time is up."""
        self.pieces: Sequence[Piece] = tuple(state.pieces)
        """The prompt."""
        self.ready = time.monotonic() if before is None else before.ready
        self.is_stopped = False
        self._stop: Callable[[], object] | None = None

    @property
    def program(self) -> str:
        return self._program.name

    @property
    def state(self) -> int:
        return self._state.number

    @property
    def role(self) -> str | None:
        """Of the turn that is open here."""
        return self._state.role

    @property
    def text(self) -> str:
        """The prompt as text, with the markers of the backend around its turns."""
        return self._state.text(self._program.chat)

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Call `stop`, from any thread, when the answer is not wanted any more: at once, if that is so already."""
        self._stop = stop
        if self.is_stopped:
            stop()

    def stop(self) -> None:
        self.is_stopped = True
        if self._stop is not None:
            self._stop()

    def deliver(self, text: str) -> None:
        """More text of a gen that streams."""
        self._program.deliver(self.op.ref, text)

    def give(self, outcome: Outcome) -> None:
        self._program.finish(self, self._state, outcome)

    def fail(self, error: BaseException) -> None:
        """A BanyanError goes to who reads the value; any other is the cause of a ProgramError that does."""
        if not isinstance(error, BanyanError):
            reason = ProgramError(f"the backend failed: {type(error).__name__}: {error}")
            reason.__cause__ = error
            error = reason
        self._program.finish(self, self._state, self.placed(error))

    def placed(self, error: BanyanError) -> BanyanError:
        """`error`, which now says where it happened."""
        if isinstance(error, ProgramError):
            error.program, error.gen = error.program or self.program, error.gen or self.op.name
            error.line, error.prompt_tail = error.line or self.op.line, error.prompt_tail or self.text[-80:]
        return error


def open_role(pieces: Sequence[Piece], at: int) -> str | None:
    """The role of the turn that piece `at` stands in."""
    for piece in reversed(pieces[:at]):
        if isinstance(piece, wire.Begin):
            return piece.role
        if isinstance(piece, Answers):
            return "assistant"
        if isinstance(piece, wire.End):
            return None
    return None


def render(pieces: Iterable[Piece], chat: wire.ChatMarkers | None, role: str | None = None) -> str:
    """The pieces as text, with markers around their turns. role: of the turn that is open where they begin."""
    texts: list[str] = []
    for piece in pieces:
        match piece:
            case str():
                texts.append(piece)
            case wire.Begin():
                role = piece.role
                texts.append(chat.roles[role][0] if chat else "")
            case wire.End():
                texts.append(chat.roles[role][1] if chat and role else "")
                role = None
            case wire.Called(text=text):
                texts += [text, chat.roles["assistant"][1] if chat else ""]
            case Answers(texts=answers):
                before, after = chat.roles.get("tool", ("", "")) if chat else ("", "")
                texts += [f"{before}{text}{after}" for _, text in answers]
                role = "assistant"
                texts.append(chat.roles[role][0] if chat else "")
            case wire.Raw(text=text) | Made(text=text):
                texts.append(text)
    return "".join(texts)
