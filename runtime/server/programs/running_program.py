"""A program of a client, while it runs on the server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import NamedTuple

from banyan.runtime.errors import BanyanError
from banyan.runtime.executor.executor import Executor, Generator, ProgramObserver
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.requests import StreamPiece
from banyan.runtime.server.programs.journal import Diary, JournalEntry
from banyan.runtime.server.programs.scheduling import SchedulingInfo

Client = bytes

MAX_GENS = 200
"""Maximum number of gens that a program remembers after they have ended."""


class EndedGen(NamedTuple):
    """A gen or select that has ended, as an overview shows it. usage: None if it failed."""

    state: int
    name: str
    line: str
    kind: str
    usage: wire.TokenUsage | None

    @classmethod
    def of(cls, op: wire.Gen | wire.Select, outcome: GenOutcome | BanyanError) -> EndedGen:
        usage = None if isinstance(outcome, BanyanError) else outcome.usage
        return cls(op.state, op.name, op.line, "gen" if isinstance(op, wire.Gen) else "select", usage)


class RunningProgram(Executor):
    """One program of one client, while it runs on the server.

    serial: its number among all programs of the server. stream: called with the program, the ref of a gen and a piece
    of the gen's text. spend: counts tokens against limits. is_late: whether the program should pause. later: gets the
    remaining work, to be done when the client has its turn."""

    def __init__(
        self,
        client: Client,
        number: int,
        name: str,
        serial: int,
        scheduling: SchedulingInfo,
        generator: Generator,
        observer: ProgramObserver,
        stream: Callable[[RunningProgram, int, StreamPiece], None],
        spend: Callable[[tuple[int, ...], int], None],
        is_late: Callable[[], bool],
        later: Callable[[Iterator[None]], None],
    ) -> None:
        super().__init__(generator, observer, is_late=is_late)
        self.is_late, self.later = is_late, later
        self.client, self.number, self.name, self.serial, self.scheduling = client, number, name, serial, scheduling
        self._stream, self.spend = stream, spend
        self.started = datetime.now()
        """The time that chat templates see. It is fixed, so that a prompt does not change at midnight."""
        self.last = self.started
        """When its last gen or select ended. (The client may keep the program open for long after that.)"""
        self.n_received = self.n_sent = 0
        """How many messages came from its client, and went to it. The next message has this number as its `seq`."""
        self.is_paused = False
        """Whether the program's `pump` has more to do, and continues when the client has its turn."""
        self.is_queueing = False
        """Whether ops of a message are being added; `pump` runs when all have been."""
        self.journal: Diary | None = None
        self.is_acknowledged = False
        """Whether its client has said that it has all values of this durable program."""
        self.ended_gens: deque[EndedGen] = deque(maxlen=MAX_GENS)
        """The latest gens that have ended, for an overview."""
        self.adapters: dict[str, bytes] = {}
        """Name of an adapter -> its digest when a gen of the program first used it."""
        self.early_results: dict[tuple[int, int], tuple[str, ...]] = {}
        """(ref, round) -> tool results of a durable program. After a restart of the server, its client sends them again
        before the server asks for them."""

    def crashed(self, error: Exception) -> None:
        self._observer.crashed(self, error)

    def stream(self, ref: int, piece: StreamPiece) -> None:
        self._stream(self, ref, piece)

    def record(self, run: wire.Run, visible: Collection[int]) -> JournalEntry | None:
        return None if self.journal is None else self.journal.begin(run, visible)
