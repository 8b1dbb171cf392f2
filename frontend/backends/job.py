"""What a backend that only generates is asked: one gen or select with its prompt, and how it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from msgspec import NODEFAULT
from msgspec.structs import fields, replace

from banyan.runtime.errors import BanyanError, BudgetExceeded, ProgramError
from banyan.runtime.protocol import wire
from banyan.runtime.reasoning import Thoughts

if TYPE_CHECKING:
    from banyan.backends.local import Program
    from banyan.backends.states import State
    from banyan.execution.clock import Alarm

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


Piece: TypeAlias = "str | wire.Raw | wire.Image | wire.BeginTurn | wire.EndTurn | Made | wire.Called | Answers"


class Outcome(NamedTuple):
    """What a backend has to say to a job. first: when its first token came, where that is known. calls: tools that are
    to be called; the text of the first sample is what the model said with them."""

    samples: tuple[wire.Sample, ...]
    usage: wire.TokenUsage = wire.TokenUsage()
    scores: wire.Scores | None = None
    first: float = 0.0
    calls: tuple[wire.WireToolCall, ...] = ()


class Job:
    """One gen or select, to be answered by one call of `give` or `fail`. After `is_stopped` nobody listens any more.

    round: for a gen with tools, how often it has called some.
    """

    __slots__ = (
        *("_program", "_state", "_stop", "_tail", "_thoughts", "alarm", "called", "is_stopped", "op", "outcome"),
        *("pieces", "ready", "round", "spent"),
    )

    def __init__(self, program: Program, state: State, op: wire.Gen | wire.Select, before: Job | None = None) -> None:
        """before: the round before this one."""
        self._program, self._state, self.op = program, state, op
        self.round: int = 0 if before is None else before.round + 1
        self.spent: wire.TokenUsage = wire.TokenUsage() if before is None else before.spent
        """By the rounds before this one."""
        self.called: wire.Called | None = None
        self.outcome: Outcome | None = None
        """What was shown to the client, which has still to take it."""
        self._tail: tuple[Piece, ...] = () if before is None else before._tail
        self._thoughts = self._apart()
        self.alarm: Alarm | None = None
        """When its time is up."""
        self.pieces: Sequence[Piece] = (*state.pieces, *self._tail)
        """The prompt."""
        self.ready: float = time.monotonic() if before is None else before.ready
        self.is_stopped = False
        self._stop: Callable[[], object] | None = None

    @property
    def program(self) -> str:
        return self._program.name

    @property
    def owner(self) -> Program:
        """The program that it is of."""
        return self._program

    def ahead(self) -> list[str | wire.Gen]:
        """What stands behind it in its turn, as far as that was sent and is known by now."""
        return self._program.ahead_of(self._state)

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
        text = self._state.text(self._program.chat)
        return text + render(self._tail, self._program.chat, self._state.role) if self._tail else text

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
        if self._thoughts is not None:
            text = self._thoughts.feed(text)
            self.pass_on(self._thoughts.thought(), is_thought=True)
        self.pass_on(text)

    def pass_on(self, text: str, is_thought: bool = False) -> None:
        """More of it, told apart already."""
        if text:
            delta = wire.Delta(self._program.number, 0, self.op.ref, text, is_thought=is_thought, round=self.round)
            self._program.deliver(delta)

    def give(self, outcome: Outcome, is_apart: bool = False) -> None:
        """Answer it. is_apart: what the samples think is told apart already."""
        if self._thoughts is not None and not is_apart:
            outcome = outcome._replace(samples=tuple(map(self._told_apart, outcome.samples)))
        self._program.finish(self, self._state, outcome)

    def show(self, outcome: Outcome, spent: wire.TokenUsage) -> wire.Called | None:
        """How an output of a gen with retries is shown to the client; None: it is the last, and counts anyway."""
        assert isinstance(self.op, wire.Gen)
        self.spent, self.outcome = spent, outcome._replace(usage=spent)
        if self.round >= self.op.retries:
            return None
        text, reason = outcome.samples[0].text, outcome.samples[0].finish_reason
        self.called = wire.Called(self._program.number, 0, self.op.ref, self.round, (), text, outcome.usage, reason)
        return self.called

    def again(self, said: str) -> Job:
        """The next try, which is told what was wrong with this one."""
        assert self.outcome is not None
        made = Made(self.outcome.samples[0].text)
        if self.role == "assistant":
            turns: tuple[Piece, ...] = (
                wire.EndTurn(),
                wire.BeginTurn("user"),
                said,
                wire.EndTurn(),
                wire.BeginTurn("assistant"),
            )
            self._tail += (made, *turns)
        else:
            self._tail += (made, f"\n\n{said}\n\n")
        return Job(self._program, self._state, self.op, before=self)

    def _apart(self) -> Thoughts | None:
        marks = self.op.reasoning if isinstance(self.op, wire.Gen) else None
        return None if marks is None else Thoughts(marks, is_open=self.text.rstrip().endswith(marks.start))

    def _told_apart(self, sample: wire.Sample) -> wire.Sample:
        thoughts = self._apart()
        assert thoughts is not None
        said = thoughts.feed(sample.text) + thoughts.finish()
        return replace(sample, text=said, reasoning=thoughts.reasoning)

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


class Backend(Protocol):
    """What a program needs of its backend."""

    @property
    def welcome(self) -> wire.Welcome: ...

    def start(self, job: Job) -> None:
        """Answer `job`, now or later. What it raises is the answer too."""


NAMES = {"logprobs": "return_logprob", "top_logprobs": "top_logprobs_num", "logprob_start": "logprob_start_len"}
"""Fields of Sampling that users know by another name."""


ALL = frozenset({
    *(NAMES.get(name, name) for name in wire.Sampling.__struct_fields__ if name != "constraint"),
    *("regex", "json_schema", "grammar", "choices", "tools", "priority", "deadline", "stream"),
    *("select", "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"),
    *("image", "raw", "roles"),
})  # fmt: skip
"""What `asked_for` may give."""


def asked_for(job: Job) -> Iterator[str]:
    """What a gen or select wants of its backend beyond a text, by the names that users write: options that are not as
    they are by default, and what its prompt holds beside text and turns."""
    if isinstance(job.op, wire.Select):
        yield from ("select", job.op.method)
    else:
        for field in fields(wire.Sampling):
            value = getattr(job.op.sampling, field.name)
            default = field.default if field.default_factory is NODEFAULT else field.default_factory()
            if value != default and field.name != "constraint":
                yield NAMES.get(field.name, field.name)
        if (constraint := job.op.sampling.constraint) is not None:
            yield constraint.kind
        yield from (name for name in ("tools", "priority", "deadline", "stream") if getattr(job.op, name))
    kinds: dict[type, str] = {wire.Image: "image", wire.Raw: "raw", wire.BeginTurn: "roles"}
    yield from dict.fromkeys(kinds[type(piece)] for piece in job.pieces if type(piece) in kinds)


def open_role(pieces: Sequence[Piece], at: int) -> str | None:
    """The role of the turn that piece `at` stands in."""
    for piece in reversed(pieces[:at]):
        if isinstance(piece, wire.BeginTurn):
            return piece.role
        if isinstance(piece, Answers):
            return "assistant"
        if isinstance(piece, wire.EndTurn):
            return None
    return None


def render(pieces: Iterable[Piece], chat: wire.ChatMarkers | None, role: str | None = None) -> str:
    """The pieces as text, with markers around their turns. role: of the turn that is open where they begin."""
    texts: list[str] = []
    for piece in pieces:
        match piece:
            case str():
                texts.append(piece)
            case wire.BeginTurn():
                role = piece.role
                texts.append(chat.roles[role][0] if chat else "")
            case wire.EndTurn():
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


def again(error: BanyanError, why: str = "") -> BanyanError:
    """A fresh error of the same content: one that is raised twice would mix its tracebacks."""
    fresh = copy(error)
    fresh.message = why + error.message
    fresh.args = (fresh.message, *error.args[1:])
    fresh.__cause__ = error.__cause__
    return fresh


def within(op: wire.Gen | wire.Select, outcome: Outcome | BanyanError) -> Outcome | BanyanError:
    """The outcome, if the gen's budget is enough for it."""
    if isinstance(op, wire.Gen) and isinstance(outcome, Outcome) and 0 < op.budget < outcome.usage.generated:
        return BudgetExceeded.of("gen", op.budget)
    return outcome


def n_alike(one: str, other: str) -> int:
    """Characters at their heads that are the same."""
    return next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
                min(len(one), len(other)))  # fmt: skip
