"""The states of a running program, and what stands in their queues."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, TypeAlias

from banyan.runtime.errors import BanyanError
from banyan.runtime.executor.generation import Generation
from banyan.runtime.executor.generator import Prompt
from banyan.runtime.protocol import wire


class Snapshot(NamedTuple):
    """A state at one point of its queue: the first `n_pieces` of its prompt, and its marks."""

    prompt: Prompt
    n_pieces: int
    marks: dict[int, int]


class PendingJoin:
    """A Join in the queue of its state. reached: child -> its snapshot where the Join was sent, or its error."""

    def __init__(self, op: wire.Join) -> None:
        self.op, self.n_missing = op, len(op.children)
        self.reached: dict[int, Snapshot | BanyanError] = {}


class JoinPoint(NamedTuple):
    """Stands in the queue of a child where a Join takes its text."""

    join: PendingJoin
    child: int


QueuedOp: TypeAlias = wire.Op | PendingJoin | JoinPoint


class RunningState:
    """One running prompt, and the ops still to be done to it."""

    def __init__(self, number: int, prompt: Prompt, is_forked: bool = False) -> None:
        self.number, self.prompt, self.is_forked = number, prompt, is_forked
        """is_forked: the Fork that makes the state is done. Before that it does not run."""
        self.marks: dict[int, int] = {}  # mark -> number of pieces before it
        self.queue: deque[QueuedOp] = deque()
        self.n_done = 0  # ops taken from the queue
        self.generation: Generation | None = None
        """The gen or select that runs. The queue waits for it."""
        self.error: BanyanError | None = None
        self.children: tuple[int, ...] = ()
