"""Jobs: a backend that only generates text gets each gen and select of a program as a Job, and answers it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from os.path import commonprefix
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from msgspec.structs import replace

from banyan.lang.sampling import RENAMED
from banyan.runtime.errors import BadProgram, BanyanError, ProgramError, Unsupported
from banyan.runtime.executor.generation import Generation
from banyan.runtime.executor.generator import N_TAIL, Attempt, Done, GenOutcome, Prompt
from banyan.runtime.executor.piece_list import PieceList
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.roles import ASSISTANT
from banyan.runtime.reasoning import ReasoningParser
from banyan.views.transcript import role_markers

CHATML = wire.ChatMarkers(
    roles={name: (f"<|im_start|>{name}\n", "<|im_end|>\n") for name in ("system", "user", "assistant", "tool")},
    stop=("<|im_end|>",),
)
"""ChatML's text around each turn, for backends that do not know the model's own chat template."""


class Output(NamedTuple):
    """A piece of a prompt: the text that a gen or select generated."""

    text: str


class CallTurn(NamedTuple):
    """A piece of a prompt: an output that calls tools, and the end of its turn."""

    text: str
    calls: tuple[wire.WireToolCall, ...]


class ToolResults(NamedTuple):
    """A piece of a prompt: the tool turns after a CallTurn, each as (id of the call, result), and the beginning of the
    assistant's next turn."""

    texts: tuple[tuple[str, str], ...]


class Place(NamedTuple):
    """A place in a prompt: the role of the turn that is open there, and whether no turn has begun before it."""

    role: str | None = None
    is_first: bool = True


Piece: TypeAlias = str | wire.Raw | wire.Image | wire.BeginTurn | wire.EndTurn | Output | CallTurn | ToolResults
_TURN_MARKS = (wire.BeginTurn, wire.EndTurn, CallTurn, ToolResults)


class LocalPrompt(Prompt):
    """A prompt as pieces, and as text with role markers around its turns."""

    def __init__(self, chat: wire.ChatMarkers | None, program: str) -> None:
        """chat: the role markers; None: the backend takes no turns. program: the program's name, for errors."""
        self._chat, self._program = chat, program
        self.pieces: PieceList[Piece] = PieceList()
        self.role: str | None = None
        self.n_inherited = 0
        self._text, self._n_rendered = "", 0  # the first pieces as text, and their number
        self._place = Place()  # after them

    def copy(self) -> Self:
        copied = type(self)(self._chat, self._program)
        copied.pieces, copied.role, copied.n_inherited = self.pieces.copy(), self.role, len(self.pieces)
        copied._text, copied._n_rendered, copied._place = self._text, self._n_rendered, self._place
        return copied

    def join(self, child: LocalPrompt, start: int, stop: int) -> None:
        for piece in child.pieces[start:stop]:
            self.pieces.append(piece)
            self.role = role_after(piece, self.role)

    def append_part(self, part: wire.Part) -> None:
        match part:
            case wire.BeginTurn(answers=wire.WireToolCall()) | wire.EndTurn(calls=[_, *_]):
                raise Unsupported("tool calls in earlier turns are supported only by Banyan's runtime")
            case wire.BeginTurn(role=role):
                if self._chat is None:
                    raise BadProgram(
                        f"this backend has no chat template, so there are no role turns (here: {role!r}); write the "
                        "prompt as plain text, or give the backend a template",
                        program=self._program,
                    )
                if role not in self._chat.roles:
                    raise BadProgram(f"the chat markers of this backend have no role {role!r}", program=self._program)
                self.role = role
            case wire.EndTurn():
                self.role = None
            case wire.TokenIds():
                raise Unsupported("token ids are supported only by Banyan's runtime")
        assert not isinstance(part, wire.Ref | wire.Arg)
        self.pieces.append(part)

    @property
    def turn_stops(self) -> tuple[str, ...]:
        """The strings with which a model ends the open turn; () outside of turns."""
        return self._chat.stop if self._chat is not None and self.role is not None else ()

    def append_output(self, outcome: GenOutcome) -> None:
        self.pieces.append(Output(outcome.text))

    def append_calls(self, outcome: GenOutcome) -> None:
        self.pieces.append(CallTurn(outcome.text, outcome.calls))
        self.role = None

    def append_results(self, calls: Sequence[wire.WireToolCall], texts: Sequence[str]) -> None:
        self.pieces.append(ToolResults(tuple(zip([call.id for call in calls], texts, strict=True))))
        self.role = ASSISTANT

    @property
    def text(self) -> str:
        if self._n_rendered < len(self.pieces):
            text, self._place = self._rendered(self._n_rendered, self._place)
            self._text += text
            self._n_rendered = len(self.pieces)
        return self._text

    def render(self, start: int) -> str:
        """The pieces as text, starting at piece `start`."""
        marks = (piece for k in reversed(range(start)) if isinstance(piece := self.pieces[k], _TURN_MARKS))
        role = role_after(next(marks, ""), None)
        is_first = not any(isinstance(piece, wire.BeginTurn) for piece in islice(self.pieces, start))
        return self._rendered(start, Place(role, is_first))[0]

    def _rendered(self, start: int, place: Place) -> tuple[str, Place]:
        """The pieces as text, starting at piece `start`, and the place after them. place: the one before them."""
        chat, (role, is_first), texts = self._chat, place, list[str]()
        for piece in self.pieces[start:]:
            match piece:
                case str():
                    texts.append(piece)
                case wire.BeginTurn():
                    texts.append(role_markers(chat, piece.role, is_first)[0])
                    is_first = False
                case wire.EndTurn():
                    texts.append(chat.roles[role][1] if chat and role else "")
                case CallTurn(text=text):
                    texts += [text, chat.roles[ASSISTANT][1] if chat else ""]
                case ToolResults(texts=results):
                    before, after = chat.roles.get("tool", ("", "")) if chat else ("", "")
                    texts += [f"{before}{text}{after}" for _, text in results]
                    texts.append(chat.roles[ASSISTANT][0] if chat else "")
                case wire.Raw(text=text) | Output(text=text):
                    texts.append(text)
            role = role_after(piece, role)
        return "".join(texts), Place(role, is_first)

    def tail(self) -> str:
        return self.text[-N_TAIL:]


class LocalReader:
    """Base class of programs in the user's process: its `read` gives an executor the text of a LocalPrompt."""

    def read(
        self,
        program: Any,
        prompt: Prompt,
        start: int,
        has_tokens: bool,
        then: Callable[[GenOutcome | BanyanError], None],
    ) -> None:
        """Call `then` with the text of the prompt starting at piece `start`, as an outcome with one sample. It never
        has token ids, even if has_tokens asks for them: a LocalPrompt does not know its tokens."""
        assert isinstance(prompt, LocalPrompt)
        then(GenOutcome((wire.Sample(prompt.render(start), "stop"),)))


class Job(Attempt):
    """One gen or select. The backend answers it by one call of `finish` or `fail`, from any thread.

    program, state: the name of the program, and the number of the state in it. round: for a gen with tools, the number
    of turns with tool calls so far. is_over: the job was answered, or stopped because nobody wants the answer.
    """

    prompt: LocalPrompt

    def __init__(self, owner: JobOwner, start: Callable[[Job], None], generation: Generation, done: Done) -> None:
        super().__init__(generation.op, generation.prompt, generation.round, done)
        self.owner, self._start = owner, start
        self.program, self.state = owner.name, generation.order[0]
        self.ready, self._first = time.monotonic(), 0.0
        self._on_stop: Callable[[], object] | None = None
        self._parser: ReasoningParser | None = None  # splits the text that streams

    @property
    def text(self) -> str:
        """The prompt as text, with the markers of the backend around its turns."""
        return self.prompt.text

    @property
    def stops(self) -> tuple[str, ...]:
        """The gen's own stop strings, then the strings with which a model ends the open turn."""
        assert isinstance(self.op, wire.Gen)
        own = self.op.sampling.stop
        return (*own, *(stop for stop in self.prompt.turn_stops if stop not in own))

    def start(self) -> None:
        try:
            self._start(self)
        except Exception as e:
            self.fail(e)

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Register `stop`: it is called, on any thread, when nobody wants the answer any more. If the job is already
        over, `stop` is called now."""
        self._on_stop = stop
        if self.is_over:
            stop()

    def stop(self) -> None:
        super().stop()
        if self._on_stop is not None:
            self._on_stop()

    def deliver(self, text: str) -> None:
        """Stream more text of a gen to its program. Separates reasoning from the text, if the gen asks for that. Has no
        effect once the job is answered or stopped."""
        if self._parser is None:
            self._parser = self._new_parser()
        if self._parser is not None:
            text = self._parser.feed(text)
            self.deliver_separated(self._parser.new_reasoning(), is_thought=True)
        self.deliver_separated(text)

    def deliver_separated(self, text: str, is_thought: bool = False) -> None:
        """Stream more text of a gen to its program, as it is. is_thought: the text is reasoning; False: it contains no
        reasoning. Has no effect once the job is answered or stopped."""
        if text and not self.is_over:
            self._first = self._first or time.monotonic()
            self.owner.deliver(wire.Delta(0, 0, self.op.ref, text, is_thought=is_thought, round=self.round))

    def finish(self, outcome: GenOutcome | BanyanError, is_separated: bool = False) -> None:
        """Answer the job. is_separated: the reasoning was already taken out of the texts of the samples."""
        if isinstance(outcome, GenOutcome):
            if self._parser is not None and not is_separated:
                rest = self._parser.finish()  # text that it held back as the possible start of a mark
                self.deliver_separated(self._parser.new_reasoning(), is_thought=True)
                self.deliver_separated(rest)
            first = outcome.times.first or self._first
            times = wire.Times(self.ready, self.ready, self.ready if first else 0.0, first, time.monotonic())
            outcome = outcome._replace(times=times)
            if not is_separated and self._new_parser() is not None:
                outcome = outcome._replace(samples=tuple(map(self._separated, outcome.samples)))
        super().finish(outcome)

    def fail(self, error: BaseException) -> None:
        """Answer the job with an error."""
        self.finish(as_banyan_error(error, "the backend failed:"))

    def _new_parser(self) -> ReasoningParser | None:
        marks = self.op.reasoning if isinstance(self.op, wire.Gen) else None
        return None if marks is None else ReasoningParser(marks, is_open=self.text.rstrip().endswith(marks.start))

    def _separated(self, sample: wire.Sample) -> wire.Sample:
        parser = self._new_parser()
        assert parser is not None
        text = parser.feed(sample.text) + parser.finish()
        return replace(sample, text=text, reasoning=parser.reasoning)


class JobOwner(Protocol):
    """What a Job uses of its program."""

    name: str

    def ahead(self, state: int) -> list[str | wire.Gen]: ...

    def deliver(self, delta: wire.Delta) -> None: ...


def as_banyan_error(error: BaseException, what: str) -> BanyanError:
    """`error`, if it is a BanyanError; else a ProgramError with `error` as its cause. what: the start of the
    message."""
    if isinstance(error, BanyanError):
        return error
    reason = ProgramError(f"{what} {type(error).__name__}: {error}")
    reason.__cause__ = error
    return reason


NAMES = {field: option for option, field in RENAMED.items()}
"""Field of wire.Sampling -> the name of the option for users, where the two differ."""

ALL = frozenset({
    *(NAMES.get(name, name) for name in wire.Sampling.__struct_fields__ if name != "constraint"),
    *("regex", "json_schema", "grammar", "whitespace", "order", "choices", "tools", "priority", "deadline", "stream"),
    *("adapter", "select", "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"),
    *("chat_template_kwargs", "image", "raw", "roles"),
})  # fmt: skip
"""All names that `features` can yield."""

_DEFAULT = wire.Sampling()


def changed(sampling: wire.Sampling) -> list[str]:
    """The fields that differ from their defaults."""
    return [name for name in sampling.__struct_fields__ if getattr(sampling, name) != getattr(_DEFAULT, name)]


def features(job: Job) -> Iterator[str]:
    """What a gen or select requires of its backend beyond plain text, by the names that users write: the options that
    differ from their defaults, and the kinds of prompt pieces that are not text."""
    if job.op.adapter:
        yield "adapter"
    if job.op.chat_template_kwargs:
        yield "chat_template_kwargs"
    if isinstance(job.op, wire.Select):
        yield from ("select", job.op.method)
    else:
        yield from (NAMES.get(name, name) for name in changed(job.op.sampling) if name != "constraint")
        if (constraint := job.op.sampling.constraint) is not None:
            yield constraint.kind
            yield from ["whitespace"] * (constraint.style != "either") + ["order"] * (constraint.order != "schema")
        yield from (name for name in ("tools", "priority", "deadline", "stream") if getattr(job.op, name))
    kinds: dict[type, str] = {wire.Image: "image", wire.Raw: "raw", wire.BeginTurn: "roles"}
    yield from dict.fromkeys(kinds[type(piece)] for piece in job.prompt.pieces if type(piece) in kinds)


def role_after(piece: Piece, role: str | None) -> str | None:
    """The role of the turn that is open after `piece`; None outside of turns. role: the same before it."""
    match piece:
        case wire.BeginTurn():
            return piece.role
        case ToolResults():
            return ASSISTANT
        case wire.EndTurn() | CallTurn():
            return None
    return role


def n_common(one: str, other: str) -> int:
    """The number of characters in the longest common prefix of two texts."""
    return len(commonprefix([one, other]))  # noqa: RUF071 (they are no paths)
