"""The states of a running program, and the entries of their queues."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, TypeAlias

from banyan.runtime.errors import BanyanError
from banyan.runtime.executor.generation import Generation
from banyan.runtime.executor.generator import Prompt
from banyan.runtime.protocol import wire


class Snapshot(NamedTuple):
    """A state as it was at one point: the first `n_pieces` pieces of its prompt, and its marks (mark -> number of
    pieces before it). If the parent state will adopt this state, `prompt` is a copy with exactly these pieces."""

    prompt: Prompt
    n_pieces: int
    marks: dict[int, int]


class PendingJoin:
    """An op in the queue of a parent state: join one child.

    reached: the child's snapshot when it has done the ops sent before the join, or the child's error; None: the parent
    must wait.
    n_joined: the index of the child's piece that is appended next; 0: the join has not begun.
    """

    def __init__(self, child: int, adopt: bool) -> None:
        self.child, self.adopt = child, adopt
        self.reached: Snapshot | BanyanError | None = None
        self.n_joined = 0


class JoinPoint(NamedTuple):
    """An entry in the queue of a child state. The join takes the text that the child has when it reaches this entry."""

    join: PendingJoin


QueuedOp: TypeAlias = wire.Op | PendingJoin | JoinPoint


class RunningState:
    """One running prompt, and the queue of ops that it still has to do."""

    def __init__(self, number: int, prompt: Prompt, parent: int = 0, is_forked: bool = False) -> None:
        self.number, self.prompt, self.parent, self.is_forked = number, prompt, parent, is_forked
        """parent: the number of the state whose Fork creates it. is_forked: whether that Fork is done. Before that, the
        state does not run."""
        self.origin: Snapshot | None = None
        """The point from which the state was forked. None once its first op begins: from then on, the state has its
        own copy of the prompt."""
        self.marks: dict[int, int] = {}  # mark -> number of pieces before it
        self.queue: deque[QueuedOp] = deque()
        self.n_generations = 0  # gens and selects that have begun
        self.blocker: int | PendingJoin | None = None
        """The value or join for which the state's next op waits; None: the op is not known to wait."""
        self.generation: Generation | None = None
        """The gen or select that runs. The queue waits for it."""
        self.error: BanyanError | None = None
        self.children: list[int] = []
        self.is_dropped = False
        """Whether the client has dropped the state, and it has not been ended yet."""
        self.n_needs = 0
        """How much needs the state, which runs until it is 0 even if it is dropped: values of it that other states will
        insert, joins of it, children that it will fork, and a read of its prompt."""

    @property
    def size(self) -> int:
        """How many ops are queued, plus the number of pieces of the prompt."""
        return len(self.queue) + len(self.prompt.pieces)
