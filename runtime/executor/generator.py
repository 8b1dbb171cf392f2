"""The interface between an executor and its generator: `Prompt`, to which the executor appends, and `Attempt`, one try
to answer a gen or select."""

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
    """What a generator returns for a gen, select or read.

    calls: tool calls in the first sample.
    pieces: what to append to the state's prompt, in the generator's own type of piece; (): the text of the first
    sample.
    All other fields are those of wire.Value.
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
    """The prompt of a state: an append-only sequence of pieces. Each generator has its own type of piece.

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
        """Append a part of any kind except Ref and Arg. Raises BanyanError if the prompt cannot take the part, such as
        an image for a model that takes only text."""

    @abstractmethod
    def append_output(self, outcome: GenOutcome) -> None:
        """Append the first sample of an outcome to the prompt."""

    @abstractmethod
    def append_calls(self, outcome: GenOutcome) -> None:
        """Append the first sample of an outcome, which contains tool calls, and end the turn of the assistant."""

    @abstractmethod
    def append_results(self, calls: Sequence[wire.WireToolCall], texts: Sequence[str]) -> None:
        """Append a tool turn with the result of each call, and begin a turn of the assistant. texts: the results."""

    @abstractmethod
    def join(self, child: Self, start: int, stop: int) -> None:
        """Append the pieces start .. stop - 1 of `child`."""

    @abstractmethod
    def tail(self) -> str:
        """The last characters of the prompt, at most N_TAIL, for error messages."""


Done: TypeAlias = "Callable[[Attempt, GenOutcome | BanyanError], None]"


class Attempt(ABC):
    """One request to the generator: a whole gen or select, one try of a gen with retries, or one turn of a tool loop.

    The constructor does not raise. The executor calls `start` once. The attempt calls `finish` once with its outcome,
    inside `start` or later. `finish` may be called from any thread if the executor was made with a lock.
    """

    def __init__(self, op: wire.Gen | wire.Select, prompt: Prompt, round: int, done: Done) -> None:
        self.op, self.prompt, self.round, self._done = op, prompt, round, done
        self.is_over = False

    @abstractmethod
    def start(self) -> None:
        """Begin to generate. A BanyanError raised by this method becomes the attempt's outcome."""

    def stop(self) -> None:
        """Stop the attempt, because its outcome is no longer wanted, and free what it holds. `finish` has no effect
        afterwards."""
        self.is_over = True

    def finish(self, outcome: GenOutcome | BanyanError) -> None:
        """Report the outcome to the executor. No effect after `stop` or an earlier `finish`."""
        if not self.is_over:
            self.is_over = True
            self._done(self, outcome)
