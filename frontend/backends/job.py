"""What a backend that only generates has to answer: one gen or select behind its prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from banyan.runtime.errors import BadProgram, BanyanError, ProgramError
from banyan.runtime.executor.generation import Generation
from banyan.runtime.executor.generator import ASSISTANT, N_TAIL, Attempt, Done, GenOutcome, Prompt
from banyan.runtime.protocol import wire
from banyan.runtime.reasoning import ReasoningParser

CHATML = wire.ChatMarkers(
    roles={name: (f"<|im_start|>{name}\n", "<|im_end|>\n") for name in ("system", "user", "assistant", "tool")},
    stop=("<|im_end|>",),
)
"""Markers around turns, where the model's own are not known."""


class Output(NamedTuple):
    """The text of a gen or select."""

    text: str


class CallTurn(NamedTuple):
    """An output that calls tools, and the end of its turn."""

    text: str
    calls: tuple[wire.WireToolCall, ...]


class ToolResults(NamedTuple):
    """Turns of tools behind a CallTurn, as (id of the call, result) each; then a turn of the assistant begins."""

    texts: tuple[tuple[str, str], ...]


Piece: TypeAlias = str | wire.Raw | wire.Image | wire.BeginTurn | wire.EndTurn | Output | CallTurn | ToolResults


class LocalPrompt(Prompt):
    """A prompt as pieces, and as text with the markers `chat` around its turns. program: its name, for errors."""

    def __init__(self, chat: wire.ChatMarkers | None, program: str) -> None:
        self._chat, self._program = chat, program
        self.pieces: list[Piece] = []
        self.role: str | None = None
        self.n_inherited = 0
        self._text, self._n_rendered = "", 0  # the first pieces as text

    def copy(self) -> LocalPrompt:
        copied = self.upto(len(self.pieces), len(self.pieces))
        copied.role, copied._text, copied._n_rendered = self.role, self._text, self._n_rendered
        return copied

    def upto(self, n_pieces: int, n_inherited: int) -> LocalPrompt:
        prompt = LocalPrompt(self._chat, self._program)
        prompt.pieces, prompt.n_inherited = self.pieces[:n_pieces], n_inherited
        prompt.role = open_role(prompt.pieces, n_pieces)
        return prompt

    def join(self, child: LocalPrompt, start: int, stop: int) -> None:
        self.pieces += child.pieces[start:stop]
        self.role = open_role(self.pieces, len(self.pieces))

    def append_part(self, part: wire.Part) -> None:
        match part:
            case wire.BeginTurn(role=role):
                if self._chat is None:
                    raise BadProgram(
                        f"this backend has no chat template, so there are no role turns (here: {role!r}); write the "
                        "prompt as plain text, or give the backend a template",
                        program=self._program,
                    )
                if role not in self._chat.roles:
                    raise BadProgram(f"the chat markers of this backend know no role {role!r}", program=self._program)
                self.role = role
            case wire.EndTurn():
                self.role = None
        assert not isinstance(part, wire.Ref | wire.Arg)
        self.pieces.append(part)

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
            self._text += self.render(self._n_rendered)
            self._n_rendered = len(self.pieces)
        return self._text

    def render(self, start: int) -> str:
        """The pieces from `start` on as text."""
        chat, role, texts = self._chat, open_role(self.pieces, start), list[str]()
        for piece in self.pieces[start:]:
            match piece:
                case str():
                    texts.append(piece)
                case wire.BeginTurn():
                    role = piece.role
                    texts.append(chat.roles[role][0] if chat else "")
                case wire.EndTurn():
                    texts.append(chat.roles[role][1] if chat and role else "")
                    role = None
                case CallTurn(text=text):
                    texts += [text, chat.roles[ASSISTANT][1] if chat else ""]
                case ToolResults(texts=results):
                    before, after = chat.roles.get("tool", ("", "")) if chat else ("", "")
                    texts += [f"{before}{text}{after}" for _, text in results]
                    role = ASSISTANT
                    texts.append(chat.roles[role][0] if chat else "")
                case wire.Raw(text=text) | Output(text=text):
                    texts.append(text)
        return "".join(texts)

    def tail(self) -> str:
        return self.text[-N_TAIL:]


class Job(Attempt):
    """One gen or select, to be answered by one call of `finish` or `fail`, from any thread.

    program, state: the name of the program, and the number of the state in it. round: for a gen with tools, how often
    it has called some. `owner` and `ahead` are what LocalProgram says. After `is_stopped` nobody wants the answer.
    """

    prompt: LocalPrompt

    def __init__(self, owner: JobOwner, start: Callable[[Job], None], generation: Generation, done: Done) -> None:
        super().__init__(generation.op, generation.prompt, generation.round, done)
        self.owner, self._start = owner, start
        self.program, self.state = owner.name, generation.order[0]
        self.ready = time.monotonic()
        self.is_stopped = False
        self._on_stop: Callable[[], object] | None = None
        self._parser: ReasoningParser | None = None  # of what streams

    @property
    def pieces(self) -> Sequence[Piece]:
        return self.prompt.pieces

    @property
    def role(self) -> str | None:
        """The role of the turn that is open at the end of the prompt."""
        return self.prompt.role

    @property
    def text(self) -> str:
        """The prompt as text, with the markers of the backend around its turns."""
        return self.prompt.text

    def ahead(self) -> list[str | wire.Gen]:
        """The texts and gens behind this gen in its turn, as far as they were sent and are known by now."""
        return self.owner.ahead(self.state)

    def start(self) -> None:
        try:
            self._start(self)
        except Exception as e:
            self.fail(e)

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Call `stop`, from any thread, when the answer is not wanted any more; at once, if that is so already."""
        self._on_stop = stop
        if self.is_stopped:
            stop()

    def stop(self) -> None:
        super().stop()
        self.is_stopped = True
        if self._on_stop is not None:
            self._on_stop()

    def deliver(self, text: str) -> None:
        """More text of a gen that streams."""
        if self._parser is None:
            self._parser = self._new_parser()
        if self._parser is not None:
            text = self._parser.feed(text)
            self.deliver_separated(self._parser.new_reasoning(), is_thought=True)
        self.deliver_separated(text)

    def deliver_separated(self, text: str, is_thought: bool = False) -> None:
        """More text of a gen that streams: reasoning, or content without it."""
        if text:
            self.owner.deliver(wire.Delta(0, 0, self.op.ref, text, is_thought=is_thought, round=self.round))

    def finish(self, outcome: GenOutcome | BanyanError, is_separated: bool = False) -> None:
        """Answer. is_separated: the texts of the samples are without their reasoning already."""
        if isinstance(outcome, GenOutcome):
            first = outcome.times.first
            times = wire.Times(self.ready, self.ready, self.ready if first else 0.0, first, time.monotonic())
            outcome = outcome._replace(times=times)
            if not is_separated and self._new_parser() is not None:
                outcome = outcome._replace(samples=tuple(map(self._separated, outcome.samples)))
        super().finish(outcome)

    def fail(self, error: BaseException) -> None:
        """Answer with an error. One that is not a BanyanError becomes the cause of a ProgramError."""
        if not isinstance(error, BanyanError):
            reason = ProgramError(f"the backend failed: {type(error).__name__}: {error}")
            reason.__cause__ = error
            error = reason
        self.finish(error)

    def _new_parser(self) -> ReasoningParser | None:
        marks = self.op.reasoning if isinstance(self.op, wire.Gen) else None
        return None if marks is None else ReasoningParser(marks, is_open=self.text.rstrip().endswith(marks.start))

    def _separated(self, sample: wire.Sample) -> wire.Sample:
        parser = self._new_parser()
        assert parser is not None
        text = parser.feed(sample.text) + parser.finish()
        return replace(sample, text=text, reasoning=parser.reasoning)


class JobOwner(Protocol):
    """The program of a job."""

    name: str

    def ahead(self, state: int) -> list[str | wire.Gen]: ...

    def deliver(self, delta: wire.Delta) -> None: ...


NAMES = {"logprobs": "return_logprob", "top_logprobs": "top_logprobs_num", "logprob_start": "logprob_start_len"}
"""Fields of Sampling that users know by another name."""

ALL = frozenset({
    *(NAMES.get(name, name) for name in wire.Sampling.__struct_fields__ if name != "constraint"),
    *("regex", "json_schema", "grammar", "choices", "tools", "priority", "deadline", "stream"),
    *("select", "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"),
    *("image", "raw", "roles"),
})  # fmt: skip
"""All names that `features` may give."""

_DEFAULT = wire.Sampling()


def changed(sampling: wire.Sampling) -> list[str]:
    """The fields that differ from their defaults."""
    return [name for name in sampling.__struct_fields__ if getattr(sampling, name) != getattr(_DEFAULT, name)]


def features(job: Job) -> Iterator[str]:
    """What a gen or select needs of its backend beyond plain text, by the names that users write: options that differ
    from their defaults, and what the prompt has besides text."""
    if isinstance(job.op, wire.Select):
        yield from ("select", job.op.method)
    else:
        yield from (NAMES.get(name, name) for name in changed(job.op.sampling) if name != "constraint")
        if (constraint := job.op.sampling.constraint) is not None:
            yield constraint.kind
        yield from (name for name in ("tools", "priority", "deadline", "stream") if getattr(job.op, name))
    kinds: dict[type, str] = {wire.Image: "image", wire.Raw: "raw", wire.BeginTurn: "roles"}
    yield from dict.fromkeys(kinds[type(piece)] for piece in job.pieces if type(piece) in kinds)


def open_role(pieces: Sequence[Piece], at: int) -> str | None:
    """The role of the turn that piece `at` stands in."""
    for piece in reversed(pieces[:at]):
        match piece:
            case wire.BeginTurn(role=role):
                return role
            case ToolResults():
                return ASSISTANT
            case wire.EndTurn() | CallTurn():
                return None
    return None


def n_common(one: str, other: str) -> int:
    """The length of the longest common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
