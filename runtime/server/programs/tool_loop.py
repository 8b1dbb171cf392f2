"""A gen with tools: a turn of the assistant after the other, and between them what the client's tools said.

To its program it is one generation: the state stands still until the turn in which the model calls nothing. Only new
text is computed in each round: the state goes on from the tokens that the model made.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from banyan.runtime.errors import (
    BadProgram,
    BanyanError,
    ConstraintCrashed,
    ConstraintSyntax,
    ConstraintTimeout,
    ConstraintTooLarge,
    ConstraintUnsatisfiable,
    ConstraintUnsupported,
    ToolError,
    Unsupported,
)
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.requests import EngineRequest, Listener, StreamPiece
from banyan.runtime.server.programs.generation import Error, Generation, Generator, GenOutcome
from banyan.runtime.server.text.chat_template import ASSISTANT
from banyan.runtime.server.text.prompt import GeneratedText, PromptText, TurnEnd, TurnStart, unpack
from banyan.runtime.server.text.tokenizer import TextSpan
from banyan.runtime.server.text.tool_call_format import Form, example, form_of

CANNOT = tuple(
    error.code
    for error in (ConstraintSyntax, ConstraintTimeout, ConstraintTooLarge, ConstraintCrashed, ConstraintUnsatisfiable,
                  ConstraintUnsupported, Unsupported)
)  # fmt: skip
"""Why a constraint cannot be used."""

Call = Callable[[int, tuple[wire.WireToolCall, ...], str, wire.TokenUsage], None]
"""(round, calls, text of the turn, its usage): tell the client."""


class ToolLoops:
    """What this model can do with tools: the form of its calls, or why it has none."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self._form: Form | ToolError
        try:
            self._form = form_of(generator.template, generator.tokenizer)
        except ToolError as e:
            self._form = e

    @property
    def form(self) -> Form:
        """ToolError: there is none."""
        if isinstance(self._form, ToolError):
            raise ToolError(self._form.message)
        return self._form

    def told(self, chat: wire.ChatMarkers) -> wire.ChatMarkers:
        """The markers with what clients are told of tools."""
        if isinstance(self._form, ToolError):
            return replace(chat, no_calls=self._form.message)
        return replace(chat, calls=example(self._form))

    def start(
        self,
        op: wire.Gen,
        text: PromptText,
        now: datetime,
        order: tuple[int, ...],
        done: Callable[[GenOutcome | Error], None],
        call: Call,
        listener: Listener | None = None,
    ) -> ToolLoop:
        """As `Generator.start`, for a gen with tools. Raises BanyanError for what can be seen at once."""
        form = self.form
        assert op.tools is not None
        if text.role != ASSISTANT:
            raise BadProgram("a gen with tools stands in a turn of the assistant, where the model can call them")
        if op.sampling.n != 1:
            raise BadProgram(f"n is {op.sampling.n}; a gen with tools has one sample")
        for spec in op.tools.specs:
            _check(spec)
        text.tools = op.tools.specs
        rounds = ToolLoop(self.generator, form, op, text, now, order, done, call, listener)
        rounds.go_on()
        return rounds


class ToolLoop:
    """One gen with tools; in the place of a Generation. `stop` ends it without an outcome."""

    def __init__(
        self,
        generator: Generator,
        form: Form,
        op: wire.Gen,
        text: PromptText,
        now: datetime,
        order: tuple[int, ...],
        done: Callable[[GenOutcome | Error], None],
        call: Call,
        listener: Listener | None,
    ) -> None:
        self.op, self.is_over = op, False
        self._generator, self._form, self._text, self._now, self._order = generator, form, text, now, order
        self._done, self._call, self._listener = done, call, listener
        self._turn: Generation | None = None
        self._sieve: Sieve | None = None
        self._calls: tuple[wire.WireToolCall, ...] = ()  # those that wait for results
        self._round = self._n_calls = 0
        self._usage = wire.TokenUsage()
        self._began: wire.Times | None = None
        self._held = self._constraints(op)  # what calls are held to: the strictest first, and nothing at last

    @property
    def requests(self) -> list[EngineRequest]:
        return [] if self._turn is None else self._turn.requests

    def _constraints(self, op: wire.Gen) -> list[wire.ConstraintSpec | None]:
        assert op.tools is not None
        if op.sampling.ignore_eos or op.sampling.constraint is not None:
            return [op.sampling.constraint]
        since = "" if op.reasoning is None else op.reasoning.end
        return [*(self._form.constraint(op.tools.specs, since, is_strict) for is_strict in (True, False)), None]

    def stop(self) -> None:
        self.is_over = True
        if self._turn is not None:
            self._turn.stop()

    def resume(self, number: int, texts: tuple[str, ...]) -> None:
        """The results of round `number` are there. Those of any other round are ignored."""
        if self.is_over or not self._calls or number != self._round:
            return
        calls, self._calls = self._calls, ()
        try:
            if len(texts) != len(calls):
                raise BadProgram(f"{len(texts)} results came for {len(calls)} calls; there must be one for each")
            for call, said in zip(calls, texts, strict=True):
                for piece in (TurnStart("tool", wire.WireToolCall(call.id, call.name)), TextSpan(said), TurnEnd()):
                    self._text.append(piece)
            self._text.append(TurnStart(ASSISTANT))
            self._round += 1
            self.go_on()
        except BanyanError as e:
            self._end(Error(e.code, e.message))

    def go_on(self) -> None:
        """Begin the next turn."""
        listener = None if self._listener is None else self._heard(self._listener)
        order = (*self._order, self._round)
        op = replace(self.op, sampling=replace(self.op.sampling, constraint=self._held[0]))
        turn = self._generator.start(op, self._text, self._now, order, self._turn_ended, listener)
        self._turn = None if turn.is_over else turn

    def _heard(self, listener: Listener) -> Listener:
        """What hears a turn, and lets `listener` hear what of it is no call."""
        last = StreamPiece("", round=self._round)  # the piece that came last, with all logprobs that are not told yet

        def let(text: str) -> None:
            nonlocal last
            listener(last._replace(text=text))
            last = last._replace(logprobs=())

        sieve = self._sieve = Sieve(self._form, let)

        def hear(piece: StreamPiece) -> None:
            nonlocal last
            if piece.is_thought:
                listener(piece._replace(round=last.round))
            else:
                last = piece._replace(round=last.round, logprobs=last.logprobs + piece.logprobs)
                sieve.feed(piece.text)

        return hear

    def _turn_ended(self, outcome: GenOutcome | Error) -> None:
        self._turn = None
        if isinstance(outcome, Error):
            if outcome.code in CANNOT and len(self._held) > 1 and not self.is_over:
                del self._held[0]  # parameters may say what no grammar can; the client looks at the arguments anyway
                self.go_on()
            else:
                self._end(outcome)
            return
        shown = outcome.samples[0].text
        calls = self._form.read(shown, self._spelled(outcome), self._n_before())
        self._usage = _sum(self._usage, outcome.usage)
        self._began = self._began or outcome.times
        if self._sieve is not None:
            self._sieve.end(bool(calls))
        assert self.op.tools is not None
        if not calls:
            times = replace(self._began, ended=outcome.times.ended)
            self._end(outcome._replace(usage=self._usage, times=times))
        elif self._round >= self.op.tools.max_rounds:
            names = ", ".join(dict.fromkeys(call.name or "?" for call in calls))
            n = self.op.tools.max_rounds
            message = f"the model calls tools ({names}) still after {n} rounds; max_rounds says how many there may be"
            self._end(Error(ToolError.code, message))
        else:
            for piece in (*outcome.pieces, TurnEnd(() if self._form.is_plain else calls)):
                self._text.append(piece)
            self._calls = calls
            self._call(self._round, calls, shown, outcome.usage)

    def _spelled(self, outcome: GenOutcome) -> str:
        spell = self._generator.tokenizer.text_of
        pieces = [p for p in outcome.pieces if isinstance(p, GeneratedText | TextSpan)]
        return "".join(spell(unpack(piece.ids)) if isinstance(piece, GeneratedText) else piece.text for piece in pieces)

    def _n_before(self) -> int:
        """Calls that the conversation had so far: their turns have answers."""
        return sum(isinstance(piece, TurnStart) and piece.answers is not None for piece in self._text.pieces)

    def _end(self, outcome: GenOutcome | Error) -> None:
        if not self.is_over:
            self.stop()
            self._done(outcome)


class Sieve:
    """Lets through what is said, and holds back what is, or may still be, a call."""

    def __init__(self, form: Form, listener: Callable[[str], None]) -> None:
        self._form, self._listener = form, listener
        self._held = ""
        self._is_calling = self._is_talking = False

    def feed(self, text: str) -> None:
        self._held += text
        if self._is_calling:
            return
        if self._form.is_hidden or not self._form.mark:
            # What begins a call cannot be seen in the text: JSON at the start of a turn is held until its end.
            lead = self._held.lstrip()[:1]
            self._is_talking |= lead not in ("", "[", "{") and self._form.name is not None
            n = len(self._held) if self._is_talking else 0
        else:
            mark = self._form.mark
            start = self._held.find(mark)
            self._is_calling = start >= 0
            n = start if start >= 0 else len(self._held) - _overlap(self._held, mark)
        self._let(n)

    def end(self, is_call: bool) -> None:
        """The turn is over, and was a call or not."""
        self._let(0 if is_call else len(self._held))

    def _let(self, n: int) -> None:
        out, self._held = self._held[:n], self._held[n:]
        if out:
            self._listener(out)


def _overlap(text: str, mark: str) -> int:
    """The longest end of `text` that begins `mark`."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)


def _sum(a: wire.TokenUsage, b: wire.TokenUsage) -> wire.TokenUsage:
    return wire.TokenUsage(*(getattr(a, field) + getattr(b, field) for field in wire.TokenUsage.__struct_fields__))


def _check(spec: str) -> None:
    try:
        is_spec = isinstance(json.loads(spec)["function"]["name"], str)
    except (ValueError, KeyError, TypeError, RecursionError):
        is_spec = False
    if not is_spec:
        raise BadProgram(
            f'a tool is told of as {{"type": "function", "function": {{"name": ...}}}}, not as {spec[:80]}'
        )
