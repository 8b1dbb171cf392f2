"""A gen whose client looks at each output before it counts, and may say what is wrong with it.

To its program it is one generation: the state stands still until an output is taken. The model sees what it wrote and
what was said of that, as turns of their own; the state gets the last output alone. All attempts begin with the same
tokens, so each costs what is new in it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from banyan.runtime.errors import BadProgram, BanyanError
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.requests import EngineRequest, Listener, StreamPiece
from banyan.runtime.server.programs.generation import Error, Generation, Generator, GenOutcome
from banyan.runtime.server.text.chat_template import ASSISTANT
from banyan.runtime.server.text.prompt import PromptText, TurnEnd, TurnStart
from banyan.runtime.server.text.tokenizer import TextSpan

Show = Callable[[int, GenOutcome, wire.TokenUsage], None]
"""(attempt, outcome, the usage of this attempt alone): ask the client."""


class Retries:
    """One gen that may be tried again; in the place of a Generation. `stop` ends it without an outcome."""

    def __init__(
        self,
        generator: Generator,
        op: wire.Gen,
        text: PromptText,
        now: datetime,
        order: tuple[int, ...],
        done: Callable[[GenOutcome | Error], None],
        show: Show,
        listener: Listener | None = None,
    ) -> None:
        """Raises BanyanError for what can be seen at once, as `Generator.start` does."""
        if op.tools is not None or op.sampling.n != 1:
            raise BadProgram("a gen with retries has one sample, and no tools")
        self.op, self.is_over = op, False
        self._generator, self._text, self._now, self._order = generator, text, now, order
        self._done, self._show, self._listener = done, show, listener
        self._attempt: Generation | None = None
        self._shown: GenOutcome | None = None  # waits for what the client says
        self._n = 0
        self._usage = wire.TokenUsage()
        self._began: wire.Times | None = None
        self._try()

    @property
    def requests(self) -> list[EngineRequest]:
        return [] if self._attempt is None else self._attempt.requests

    def stop(self) -> None:
        self.is_over = True
        if self._attempt is not None:
            self._attempt.stop()

    def resume(self, number: int, texts: tuple[str, ...]) -> None:
        """What the client says of attempt `number`: nothing, or what is wrong. Of any other it is ignored."""
        if self.is_over or self._shown is None or number != self._n:
            return
        outcome, self._shown = self._shown, None
        if not texts:
            self._end(outcome)
            return
        self._text = self._text.copy()
        role = self._text.role
        try:
            for piece in outcome.pieces:
                self._text.append(piece)
            said = " ".join(texts)
            if role == ASSISTANT:
                for piece in (TurnEnd(), TurnStart("user"), TextSpan(said), TurnEnd(), TurnStart(ASSISTANT)):
                    self._text.append(piece)
            else:
                self._text.append(TextSpan(f"\n\n{said}\n\n"))
            self._n += 1
            self._try()
        except BanyanError as e:
            self._end(Error(e.code, e.message))

    def _try(self) -> None:
        order = (*self._order, self._n)
        listener = None if self._listener is None else self._heard
        attempt = self._generator.start(self.op, self._text, self._now, order, self._ended, listener)
        self._attempt = None if attempt.is_over else attempt

    def _heard(self, piece: StreamPiece) -> None:
        if self._listener is not None:
            self._listener(piece._replace(round=self._n))

    def _ended(self, outcome: GenOutcome | Error) -> None:
        self._attempt = None
        if isinstance(outcome, Error):
            self._end(outcome)
            return
        usage, self._usage = outcome.usage, total(self._usage, outcome.usage)
        self._began = self._began or outcome.times
        outcome = outcome._replace(usage=self._usage, times=replace(self._began, ended=outcome.times.ended))
        if self._n >= self.op.retries:
            self._end(outcome)
        else:
            self._shown = outcome
            self._show(self._n, outcome, usage)

    def _end(self, outcome: GenOutcome | Error) -> None:
        if not self.is_over:
            self.stop()
            self._done(outcome)


def total(a: wire.TokenUsage, b: wire.TokenUsage) -> wire.TokenUsage:
    return wire.TokenUsage(*(getattr(a, field) + getattr(b, field) for field in wire.TokenUsage.__struct_fields__))
