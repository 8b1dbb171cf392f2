"""The history of a run, from which the other views are made: the messages that were sent and the values that have
arrived. Never waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

from banyan.runtime.protocol import wire
from banyan.views.transcript import role_markers
from banyan.views.usage import COUNTS, GenUsage, Usage

if TYPE_CHECKING:
    from banyan.execution.program_record import ProgramRecord
    from banyan.execution.run_trace import Round

Kind = Literal["marker", "text", "spliced", "gen", "select", "joined", "adopted"]
"""marker: text of the chat template. spliced: a value that was inserted as text. joined: text of a joined branch.
adopted: output of an adopted branch."""


class GenHistory(NamedTuple):
    """A gen or select and its result. value and error are both None while it is under way. rounds: the rounds of tool
    calls that have ended."""

    op: wire.Gen | wire.Select
    value: wire.Value | None = None
    error: BaseException | None = None
    rounds: Sequence[Round] = ()

    @property
    def label(self) -> str:
        return self.op.name or f"#{self.op.ref}"

    @property
    def text(self) -> str:
        return self.value.samples[0].text if self.value is not None else ""

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second from the first token to the end, of all samples together; 0.0 if unknown."""
        if self.value is None or not self.value.times.first:
            return 0.0
        n, times = self.value.usage.generated - len(self.value.samples), self.value.times
        return n / (times.ended - times.first) if n > 0 and times.ended > times.first else 0.0

    @property
    def constraint(self) -> str:
        """A short name of the output's constraint; "" if there is none."""
        if isinstance(self.op, wire.Select):
            return f"one of {len(self.op.choices)} choices"
        spec = self.op.sampling.constraint
        return "" if spec is None else spec.kind.replace("_", " ")


class PromptItem(NamedTuple):
    """A piece of a branch's prompt. gen: the gen or select that produced it, if any."""

    kind: Kind
    text: str
    gen: GenHistory | None = None

    @property
    def is_output(self) -> bool:
        """Whether the text is the output of `gen`."""
        return self.kind in ("gen", "select", "adopted")


class BranchHistory:
    """The history of one state. items: what was appended to this state itself. start: how many of its parent's `items`
    the state inherits. joins: one entry per join, (how many items this state had before the join, the joined child)."""

    def __init__(self, number: int, parent: BranchHistory | None = None) -> None:
        self.number, self.parent = number, parent
        self.start = len(parent.items) if parent is not None else 0
        self.items: list[PromptItem] = []
        self.joins: list[tuple[int, BranchHistory]] = []
        self.children: list[BranchHistory] = []
        self.is_dropped = False
        self.role: str = parent.role if parent is not None else ""
        self.n_turns: int = parent.n_turns if parent is not None else 0
        self.depth: int = parent.depth + 1 if parent is not None else 0

    @property
    def inherited(self) -> list[PromptItem]:
        """The items that the state inherited from its parent, in order."""
        pieces, branch = [], self
        while branch.parent is not None:  # a loop, because forks may be nested deeper than Python's calls
            pieces.append(branch.parent.items[: branch.start])
            branch = branch.parent
        return [*chain.from_iterable(reversed(pieces))]

    @property
    def prompt(self) -> list[PromptItem]:
        """All items of the prompt, in order: those inherited from the parent, then those appended to this state
        itself."""
        return self.inherited + self.items

    @property
    def gens(self) -> list[GenHistory]:
        """The gens and selects that were appended to this state itself."""
        return [item.gen for item in self.items if item.gen is not None and item.kind in ("gen", "select")]

    def subtree(self) -> Iterator[BranchHistory]:
        """The branch and all branches forked from it."""
        left = [self]
        while left:
            branch = left.pop()
            yield branch
            left += reversed(branch.children)


class History:
    """The history of one run: the branch `root` and all branches below it."""

    def __init__(self, record: ProgramRecord, root: int = 0) -> None:
        self.name, self.trace = record.name, record.trace
        self.model = record.backend.welcome.model
        self._chat = record.backend.welcome.chat
        self._program = record.program
        self._texts: dict[int, str] = {}
        self._branches = {0: BranchHistory(0)}
        for op in record.trace.ops():
            if (branch := self._branches.get(op.state)) is not None:
                self._apply(branch, op)
        self.root = self._branches.get(root) or BranchHistory(root)

    @property
    def branches(self) -> list[BranchHistory]:
        """The root and all branches below it, in the order of their creation."""
        return sorted(self.root.subtree(), key=lambda branch: branch.number)

    @property
    def gens(self) -> list[GenHistory]:
        """The gens and selects of all branches."""
        return [gen for branch in self.branches for gen in branch.gens]

    def _apply(self, branch: BranchHistory, op: wire.Op) -> None:
        match op:
            case wire.Append(parts=parts):
                branch.items += [self._item(branch, part) for part in parts]
            case wire.Gen() | wire.Select():
                gen = self._gen(op)
                branch.items.append(PromptItem("select" if isinstance(op, wire.Select) else "gen", gen.text, gen))
            case wire.Fork(children=children):
                for number in children:
                    self._branches[number] = BranchHistory(number, branch)
                    branch.children.append(self._branches[number])
            case wire.Join(children=(number,), adopt=True):
                child = self._branches[number]
                branch.joins.append((len(branch.items), child))
                branch.role, branch.n_turns = child.role, child.n_turns
                new = child.prompt[len(branch.inherited) + len(branch.items) :]
                branch.items += [item._replace(kind="adopted") if item.is_output else item for item in new]
            case wire.Join(children=children):
                for child in map(self._branches.__getitem__, children):
                    branch.joins.append((len(branch.items), child))
                    for item in child.items:
                        branch.items.append(item if item.kind == "marker" else item._replace(kind="joined"))
            case wire.Read(ref=ref):
                future = self._program.future(ref)
                if future.done() and future.exception() is None:
                    self._texts[ref] = future.result().samples[0].text
            case wire.Drop(tree=tree):
                for dropped in branch.subtree() if tree else (branch,):
                    dropped.is_dropped = True

    def _item(self, branch: BranchHistory, part: wire.Part) -> PromptItem:
        match part:
            case str():
                return PromptItem("text", part)
            case wire.Raw(text=text):
                return PromptItem("text", text)
            case wire.Ref(ref=ref):
                return PromptItem("spliced", self._texts.get(ref, ""))
            case wire.BeginTurn(role=role):
                branch.role = role
                branch.n_turns += 1
                return PromptItem("marker", role_markers(self._chat, role, is_first=branch.n_turns == 1)[0])
            case wire.EndTurn():
                return PromptItem("marker", role_markers(self._chat, branch.role)[1])
        return PromptItem("marker", "")  # a part without text, such as an image

    def _gen(self, op: wire.Gen | wire.Select) -> GenHistory:
        future, rounds = self._program.future(op.ref), tuple(self.trace.rounds.get(op.ref, ()))
        if not future.done():
            return GenHistory(op, rounds=rounds)
        if (error := future.exception()) is not None:
            return GenHistory(op, error=error, rounds=rounds)
        gen = GenHistory(op, future.result(), rounds=rounds)
        self._texts[op.ref] = gen.text
        return gen


def usage_of(gens: Iterable[GenHistory]) -> Usage:
    """The usage of the gens that have finished."""
    return Usage.of(
        GenUsage(
            **{name: getattr(gen.value.usage, name) for name in COUNTS},
            name=gen.op.name,
            line=gen.op.line,
            state=gen.op.state,
        )
        for gen in gens
        if gen.value is not None
    )
