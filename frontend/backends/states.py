"""The states of a program that runs in this process, and what stands in their queues."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from banyan.backends.job import Piece, open_role, render
from banyan.runtime.errors import BanyanError
from banyan.runtime.protocol import wire

if TYPE_CHECKING:
    from banyan.backends.job import Job


class End(NamedTuple):
    """What a state had at some point: the first `n` of its pieces. They stay those, whatever it goes on as."""

    pieces: list[Piece]
    n: int
    n_inherited: int
    marks: dict[int, int]


class Gathering:
    """A Join on its way: what each child had where the Join stands among the child's ops."""

    __slots__ = ("ends", "n_missing")

    def __init__(self, children: tuple[int, ...]) -> None:
        self.ends: dict[int, End | BanyanError] = {}
        self.n_missing = len(children)


class Point(NamedTuple):
    """Stands in a child's queue where a Join takes its text."""

    join: Gathering
    child: int


class Joining(NamedTuple):
    """A Join in its state's queue."""

    op: wire.Join
    gathering: Gathering


Step: TypeAlias = "wire.Op | Point | Joining"


class State:
    """One running prompt and the ops that are still to be done to it."""

    __slots__ = ("_n_rendered", "_text", "error", "is_born", "job", "marks", "n_inherited", "number", "pieces",
                 "queue", "role")  # fmt: skip

    def __init__(self, number: int, is_born: bool) -> None:
        self.number, self.is_born = number, is_born
        self.pieces: list[Piece] = []
        self.n_inherited = 0
        self.role: str | None = None
        self.marks: dict[int, int] = {}
        self.queue: deque[Step] = deque()
        self.job: Job | None = None
        self.error: BanyanError | None = None
        self._text, self._n_rendered = "", 0

    def inherit(self, parent: State) -> None:
        self.is_born, self.pieces, self.n_inherited = True, list(parent.pieces), len(parent.pieces)
        self.role, self.marks = parent.role, dict(parent.marks)
        self._text, self._n_rendered = parent._text, parent._n_rendered

    @property
    def end(self) -> End:
        return End(self.pieces, len(self.pieces), self.n_inherited, dict(self.marks))

    def become(self, end: End) -> None:
        """Go on as another, from what it had at `end`."""
        self.pieces, self.marks = end.pieces[: end.n], dict(end.marks)
        self.role = open_role(self.pieces, end.n)
        self._text, self._n_rendered = "", 0

    def text(self, chat: wire.ChatMarkers | None) -> str:
        if self._n_rendered < len(self.pieces):
            self._text += render(self.pieces[self._n_rendered :], chat, open_role(self.pieces, self._n_rendered))
            self._n_rendered = len(self.pieces)
        return self._text

    def ahead(self) -> list[str | wire.Gen]:
        """The texts and gens that are still to be done to the turn that is open, up to the first thing that is neither,
        or that is not known yet."""
        found: list[str | wire.Gen] = []
        for step in self.queue:
            if isinstance(step, wire.Append):
                for part in step.parts:
                    if not isinstance(part, str):
                        return found
                    found.append(part)
            elif isinstance(step, wire.Gen):
                found.append(step)
            else:
                break
        return found
