"""The interface of a generator for an executor: prompts, and attempts to answer a gen or select."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from banyan.runtime.errors import BanyanError
from banyan.runtime.executor.piece_list import PieceList
from banyan.runtime.protocol import wire

N_TAIL = 80
"""How many characters of a prompt an error shows."""


class GenOutcome(NamedTuple):
    """The answer of a generator to a gen or select.

    samples .. prompt, rounds: as in wire.Value. calls: tool calls in the first sample.
    pieces: the pieces to append to the state's prompt, if the generator's prompts keep more than the text of the first
    sample.
    """

    samples: tuple[wire.Sample, ...]
    usage: wire.TokenUsage = wire.TokenUsage()
    scores: wire.Scores | None = None
    times: wire.Times = wire.Times()
    calls: tuple[wire.WireToolCall, ...] = ()
    tokens: wire.Tokens | None = None
    prompt: tuple[wire.TokenLogprob, ...] = ()
    pieces: tuple[Any, ...] = ()
    rounds: tuple[wire.TokenUsage, ...] = ()

    @property
    def text(self) -> str:
        return self.samples[0].text


class Prompt(ABC):
    """The prompt of a state: an append-only sequence of pieces. The generator defines their type.

    role: the role of the open turn; None outside of turns.
    n_inherited: how many of the pieces the state had when it was forked.
    """

    pieces: PieceList[Any]
    role: str | None
    n_inherited: int

    @abstractmethod
    def copy(self) -> Self:
        """Return the prompt of a forked state, which inherits all pieces."""

    @abstractmethod
    def append_part(self, part: wire.Part) -> None:
        """Append any part but a Ref or an Arg. Raises BanyanError if the part is not allowed here."""

    @abstractmethod
    def append_output(self, outcome: GenOutcome) -> None:
        """Append the first sample of an outcome."""

    @abstractmethod
    def append_calls(self, outcome: GenOutcome) -> None:
        """Append the first sample of an outcome, which calls tools, and end its turn."""

    @abstractmethod
    def append_results(self, calls: Sequence[wire.WireToolCall], texts: Sequence[str]) -> None:
        """Append a tool turn with the result of each call, and begin a turn of the assistant. texts: the results."""

    @abstractmethod
    def join(self, child: Self, start: int, stop: int) -> None:
        """Append the pieces start .. stop - 1 of `child`."""

    @abstractmethod
    def tail(self) -> str:
        """The last characters, for error messages."""


Done: TypeAlias = "Callable[[Attempt, GenOutcome | BanyanError], None]"


class Attempt(ABC):
    """One request to the generator: a whole gen or select, one try of a gen with retries, or one turn of a tool loop.

    The constructor does not raise. The executor calls `start` once. The attempt then calls `finish` once, inside
    `start` or later. If the executor has a lock, `finish` may be called from any thread.
    """

    def __init__(self, op: wire.Gen | wire.Select, prompt: Prompt, round: int, done: Done) -> None:
        self.op, self.prompt, self.round, self._done = op, prompt, round, done
        self.is_over = False

    @abstractmethod
    def start(self) -> None:
        """Begin to generate. If this raises a BanyanError, the error is the outcome."""

    def stop(self) -> None:
        """Free what the attempt holds, because its outcome is no longer wanted."""
        self.is_over = True

    def finish(self, outcome: GenOutcome | BanyanError) -> None:
        """Report the outcome. Does nothing after `stop`."""
        if not self.is_over:
            self.is_over = True
            self._done(self, outcome)
