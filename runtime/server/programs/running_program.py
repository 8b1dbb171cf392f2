"""What a program is while it runs: states with queues of ops, values, and who waits for what. Data only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.requests import EngineRequests
from banyan.runtime.server.programs.client_choice import ClientChoice
from banyan.runtime.server.programs.generation import Error, Generation
from banyan.runtime.server.programs.retries import Retries
from banyan.runtime.server.programs.tool_loop import ToolLoop
from banyan.runtime.server.text.prompt import GeneratedText, PromptText
from banyan.runtime.server.text.tokenizer import TextSpan

Client = bytes

N_TAIL = 80  # characters of the prompt that an error shows


class Broken(Exception):
    """An op cannot be done because of an error elsewhere in its program."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


class Had(NamedTuple):
    """What a state had somewhere among its ops: the first `n_pieces` of its text, which may go on, and its marks."""

    text: PromptText
    n_pieces: int
    marks: dict[int, int]


class PendingJoin:
    """A Join on its way: what each child had where the Join stands among the child's ops."""

    def __init__(self, children: tuple[int, ...]) -> None:
        self.had: dict[int, Had | Error] = {}  # by child; an error: what it had failed with
        self.n_missing = len(children)


class JoinPoint(NamedTuple):
    """Stands in a child's queue at the place up to which a Join takes its text."""

    join: PendingJoin
    child: int


class RunningState:
    """One running prompt: its text, and the ops that are still to be done to it."""

    def __init__(self, number: int, is_born: bool) -> None:
        self.number = number
        self.is_born = is_born
        """False until the Fork that makes it was done."""
        self.text = PromptText()
        self.marks: dict[int, int] = {}  # -> pieces that stood before it
        self.queue: deque[wire.Op | JoinPoint] = deque()
        self.n_done = 0
        self.generation: Generation | ToolLoop | Retries | ClientChoice | None = None
        """The gen or select that runs; the queue stands still meanwhile."""
        self.error: Error | None = None
        self.children: tuple[int, ...] = ()  # forked from it

    def tail(self) -> str:
        """The last characters that were appended."""
        pieces: list[str] = []
        n_chars = 0
        for piece in reversed(self.text.pieces):
            if isinstance(piece, TextSpan | GeneratedText) and n_chars < N_TAIL:
                pieces.append(piece.text[-N_TAIL:])
                n_chars += len(pieces[-1])
        return "".join(reversed(pieces))[-N_TAIL:]


class RunningProgram:
    """One program of one client."""

    def __init__(self, client: Client, number: int, name: str, serial: int) -> None:
        self.client, self.number, self.name, self.serial = client, number, name, serial
        self.started = datetime.now()
        """What a chat template takes for now: fixed, so that a prompt does not change at midnight."""
        self.last = self.started
        """When something of it was made last: it may be held for long after that."""
        self.is_last = False
        self.is_over = False
        self.states = {0: RunningState(0, is_born=True)}
        self.values: dict[int, str | Error] = {}
        self.makers: dict[int, RunningState] = {}  # ref -> the state whose op makes it
        self.dropped: set[int] = set()  # states to be stopped once nobody needs them
        self.joins: dict[int, deque[PendingJoin]] = {}  # state -> its queued Joins, in order
        self.waiting: dict[int | PendingJoin, list[RunningState]] = {}  # who stands still for a value or for children
        self.running: set[RunningState] = set()  # those with a generation
        self.early: dict[tuple[int, int], tuple[str, ...]] = {}
        """Results by ref and round, of a durable program: its client sends them again before they are asked for."""

    @property
    def is_settled(self) -> bool:
        """Nothing is left to do with the ops that came so far."""
        return not self.running and not any(state.queue for state in self.states.values())

    def subtree(self, number: int) -> Iterator[int]:
        """A state and all that was forked from it, at any depth."""
        left = [number]
        while left:
            yield (number := left.pop())
            left += self.states[number].children

    def blocker(self, op: wire.Op | JoinPoint) -> int | PendingJoin | None:
        """The value or the children that `op` has to wait for."""
        match op:
            case wire.Append(parts=parts):
                return next((r for r in _refs(parts) if r not in self.values), None)
            case wire.Join(state=number):
                join = self.joins[number][0]
                return join if join.n_missing else None
        return None

    def needed(self) -> Iterator[int]:
        """States that others wait for: for a value, to join them, or to be forked from them."""
        for state in self.states.values():
            for op in state.queue:
                match op:
                    case wire.Append(parts=parts):
                        for ref in _refs(parts):
                            maker = self.makers.get(ref)
                            if ref not in self.values and maker is not None and maker is not state:
                                yield maker.number
                    case wire.Join(children=children):
                        yield from children
                    case wire.Fork(children=children) if not self.dropped.issuperset(children):
                        yield state.number


def wrong(programs: Iterable[RunningProgram], requests: EngineRequests) -> str:
    """What does not hold of what must always hold of all programs between two messages; "" where all does."""
    owned: list[int] = []
    for program in programs:
        for state in program.states.values():
            if (state.generation is not None) != (state in program.running):
                return f"state {state.number} of program {program.name!r} runs, and is not counted so, or the reverse"
            if state.generation is not None:
                owned += [request.run.rid for request in state.generation.requests if request.finish is None]
        if program.is_over or (program.is_last and program.is_settled):
            return f"program {program.name!r} has ended and is still there"
    if sorted(owned) != sorted(requests.living):
        return f"requests {sorted(requests.living)} run, but generations have {sorted(owned)}"
    return ""


def _refs(parts: tuple[wire.Part, ...]) -> Iterator[int]:
    return (part.ref for part in parts if isinstance(part, wire.Ref))
