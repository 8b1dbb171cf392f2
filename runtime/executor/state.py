"""The states of a running program, and what stands in their queues."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, TypeAlias

from banyan.runtime.errors import BanyanError
from banyan.runtime.executor.generation import Generation
from banyan.runtime.executor.generator import Prompt
from banyan.runtime.protocol import wire


class Snapshot(NamedTuple):
    """A state at one point of its queue: the first `n_pieces` of its prompt, and its marks. To adopt it, the prompt is
    a copy with no more than these pieces."""

    prompt: Prompt
    n_pieces: int
    marks: dict[int, int]


class PendingJoin:
    """A Join of one child in the queue of its state. reached: the child where the Join was sent, or its error.
    n_joined: pieces of the child up to which the state has joined them."""

    def __init__(self, child: int, adopt: bool) -> None:
        self.child, self.adopt = child, adopt
        self.reached: Snapshot | BanyanError | None = None
        self.n_joined = 0


class JoinPoint(NamedTuple):
    """Stands in the queue of a child where a Join takes its text."""

    join: PendingJoin


QueuedOp: TypeAlias = wire.Op | PendingJoin | JoinPoint


class RunningState:
    """One running prompt, and the ops still to be done to it."""

    def __init__(self, number: int, prompt: Prompt, is_forked: bool = False) -> None:
        self.number, self.prompt, self.is_forked = number, prompt, is_forked
        """is_forked: the Fork that makes the state is done. Before that it does not run."""
        self.origin: Snapshot | None = None
        """What it was forked from, until it does its first op: then it gets a prompt of its own."""
        self.marks: dict[int, int] = {}  # mark -> number of pieces before it
        self.queue: deque[QueuedOp] = deque()
        self.n_done = 0  # ops taken from the queue
        self.blocker: int | PendingJoin | None = None
        """The value or join that its next op waits for, if it was found to wait."""
        self.generation: Generation | None = None
        """The gen or select that runs. The queue waits for it."""
        self.error: BanyanError | None = None
        self.children: list[int] = []

    @property
    def size(self) -> int:
        """Ops that are queued, and pieces of the prompt."""
        return len(self.queue) + len(self.prompt.pieces)
