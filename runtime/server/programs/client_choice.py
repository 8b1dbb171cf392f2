"""A select whose client decides: the choices are scored here, and the state stands still until its word comes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.requests import EngineRequest
from banyan.runtime.server.programs.generation import Error, Generation, Generator, GenOutcome
from banyan.runtime.server.programs.retries import Show
from banyan.runtime.server.text.prompt import PromptText
from banyan.runtime.server.text.tokenizer import TextSpan


class ClientChoice:
    """One such select; in the place of a Generation. `stop` ends it without an outcome."""

    def __init__(
        self,
        generator: Generator,
        op: wire.Select,
        text: PromptText,
        now: datetime,
        order: tuple[int, ...],
        done: Callable[[GenOutcome | Error], None],
        show: Show,
    ) -> None:
        """Raises BanyanError for what can be seen at once, as `Generator.start` does."""
        self.op, self.is_over = op, False
        self._done, self._show = done, show
        self._shown: GenOutcome | None = None  # waits for what the client says
        self._scoring: Generation | None = None
        scoring = generator.start(op, text, now, order, self._scored, None)
        self._scoring = None if scoring.is_over else scoring

    @property
    def requests(self) -> list[EngineRequest]:
        return [] if self._scoring is None else self._scoring.requests

    def stop(self) -> None:
        self.is_over = True
        if self._scoring is not None:
            self._scoring.stop()

    def resume(self, number: int, texts: tuple[str, ...]) -> None:
        """The client's choice is there."""
        if self.is_over or self._shown is None or number:
            return
        outcome, self._shown = self._shown, None
        if len(texts) != 1 or texts[0] not in self.op.choices:
            self._end(Error(BadProgram.code, f"{' '.join(texts)[:200]!r} is none of the choices"))
            return
        assert outcome.scores is not None
        weights = tuple(float(choice == texts[0]) for choice in self.op.choices)
        n_tokens = len(outcome.scores.tokens[self.op.choices.index(texts[0])])
        sample = replace(outcome.samples[0], text=texts[0], n_tokens=n_tokens)
        scores = replace(outcome.scores, weights=weights)
        self._end(outcome._replace(samples=(sample,), pieces=(TextSpan(texts[0]),), scores=scores))

    def _scored(self, outcome: GenOutcome | Error) -> None:
        self._scoring = None
        if isinstance(outcome, Error):
            self._end(outcome)
        else:
            self._shown = outcome
            self._show(0, outcome, outcome.usage)

    def _end(self, outcome: GenOutcome | Error) -> None:
        if not self.is_over:
            self.stop()
            self._done(outcome)
