"""A run as data: what each branch was given, what came of it, and how branches hang together. Reads what is known by
now and never waits; timeline.py and show.py draw it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from banyan.runtime.protocol import wire
from banyan.views.usage import Usage, of_value

if TYPE_CHECKING:
    from banyan.execution.program_record import ProgramRecord

Kind = Literal["marker", "text", "spliced", "gen", "select", "joined", "adopted"]
"""joined: text of a branch. adopted: what a branch generated that its parent went on as."""


class GenHistory(NamedTuple):
    """A gen or select. value, error: what came of it; both None: nothing yet."""

    op: wire.Gen | wire.Select
    value: wire.Value | None = None
    error: BaseException | None = None

    @property
    def label(self) -> str:
        return self.op.name or f"#{self.op.ref}"

    @property
    def text(self) -> str:
        return self.value.samples[0].text if self.value is not None else ""

    @property
    def tokens_per_second(self) -> float:
        """Of all its samples, from the first token to the end; 0.0 where that is not known."""
        if self.value is None or not self.value.times.first:
            return 0.0
        n, times = self.value.usage.generated - len(self.value.samples), self.value.times
        return n / (times.ended - times.first) if n > 0 and times.ended > times.first else 0.0

    @property
    def constraint(self) -> str:
        """What its output had to match, in a word; "" if anything goes."""
        if isinstance(self.op, wire.Select):
            return f"one of {len(self.op.choices)} choices"
        spec = self.op.sampling.constraint
        return "" if spec is None else spec.kind.replace("_", " ")


class Item(NamedTuple):
    """A piece of a branch's text. gen: what made it."""

    kind: Kind
    text: str
    gen: GenHistory | None = None

    @property
    def is_made(self) -> bool:
        """Whether its tokens are those that the gen made."""
        return self.kind in ("gen", "select", "adopted")


class BranchHistory:
    """A state. start: so many items of its parent stand before its own. joins: (items of its own before it, child)."""

    def __init__(self, number: int, parent: BranchHistory | None = None) -> None:
        self.number, self.parent = number, parent
        self.start = len(parent.items) if parent is not None else 0
        self.items: list[Item] = []
        self.joins: list[tuple[int, BranchHistory]] = []
        self.children: list[BranchHistory] = []
        self.is_dropped = False
        self.role: str = parent.role if parent is not None else ""
        self.n_turns: int = parent.n_turns if parent is not None else 0

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def inherited(self) -> list[Item]:
        return [] if self.parent is None else self.parent.inherited + self.parent.items[: self.start]

    @property
    def prompt(self) -> list[Item]:
        """All that it says, from the beginning."""
        return self.inherited + self.items

    @property
    def gens(self) -> list[GenHistory]:
        """Its own."""
        return [item.gen for item in self.items if item.gen is not None and item.kind in ("gen", "select")]

    @property
    def lineage(self) -> list[GenHistory]:
        """All that its prompt stood before, its ancestors' first."""
        return [item.gen for item in self.prompt if item.is_made and item.gen is not None]

    def below(self) -> Iterator[BranchHistory]:
        """It, and all that were forked from it."""
        yield self
        for child in self.children:
            yield from child.below()


class History:
    """Of one run. root: the branch that is looked at; with those below it, in the order they were made."""

    def __init__(self, record: ProgramRecord, root: int = 0) -> None:
        self.name, self.trace = record.name, record.trace
        self.model = record.backend.welcome.model
        self._chat = record.backend.welcome.chat
        self._program = record.program
        self._texts: dict[int, str] = {}
        self._branches = {0: BranchHistory(0)}
        for op in record.trace.ops():
            if (branch := self._branches.get(op.state)) is not None:
                self._take(branch, op)
        self.root = self._branches.get(root) or BranchHistory(root)

    @property
    def branches(self) -> list[BranchHistory]:
        return sorted(self.root.below(), key=lambda branch: branch.number)

    @property
    def gens(self) -> list[GenHistory]:
        return [gen for branch in self.branches for gen in branch.gens]

    @property
    def is_complete(self) -> bool:
        return all(gen.value is not None or gen.error is not None for gen in self.gens)

    def _take(self, branch: BranchHistory, op: wire.Op) -> None:
        match op:
            case wire.Append(parts=parts):
                for part in parts:
                    branch.items.append(self._item(branch, part))
            case wire.Gen() | wire.Select():
                gen = self._gen(op)
                branch.items.append(Item("select" if isinstance(op, wire.Select) else "gen", gen.text, gen))
            case wire.Fork(children=children):
                for child in children:
                    self._branches[child] = BranchHistory(child, branch)
                    branch.children.append(self._branches[child])
            case wire.Join(children=(number,), adopt=True):
                self._adopt(branch, self._branches[number])
            case wire.Join(children=children):
                for joined in map(self._branches.__getitem__, children):
                    branch.joins.append((len(branch.items), joined))
                    branch.items += [
                        item if item.kind == "marker" else item._replace(kind="joined") for item in joined.items
                    ]
            case wire.Drop(tree=tree):
                for dropped in branch.below() if tree else (branch,):
                    dropped.is_dropped = True

    def _adopt(self, branch: BranchHistory, child: BranchHistory) -> None:
        branch.joins.append((len(branch.items), child))
        branch.role, branch.n_turns = child.role, child.n_turns
        for item in child.prompt[len(branch.inherited) + len(branch.items) :]:
            branch.items.append(item._replace(kind="adopted") if item.is_made else item)

    def _item(self, branch: BranchHistory, part: wire.Part) -> Item:
        match part:
            case str():
                return Item("text", part)
            case wire.Raw(text=text):
                return Item("text", text)
            case wire.Ref(ref=ref):
                return Item("spliced", self._texts.get(ref, ""))
            case wire.BeginTurn(role=role):
                branch.role = role
                return Item("marker", self._opening(branch))
            case wire.EndTurn():
                return Item("marker", self._markers(branch.role)[1])
        return Item("marker", "")  # what has no text, such as a picture

    def _opening(self, branch: BranchHistory) -> str:
        branch.n_turns += 1
        text = self._markers(branch.role)[0]
        if branch.n_turns == 1 and branch.role != "system" and self._chat is not None and self._chat.default_system:
            before, after = self._markers("system")
            text = f"{before}{self._chat.default_system}{after}{text}"
        return text

    def _markers(self, role: str) -> tuple[str, str]:
        return self._chat.roles.get(role, ("", "")) if self._chat is not None else ("", "")

    def _gen(self, op: wire.Gen | wire.Select) -> GenHistory:
        future = self._program.future(op.ref)
        if not future.done():
            return GenHistory(op)
        if (error := future.exception()) is not None:
            return GenHistory(op, error=error)
        gen = GenHistory(op, future.result())
        self._texts[op.ref] = gen.text
        return gen


def usage_of(gens: Iterable[GenHistory]) -> Usage:
    """Of those that are known."""
    return Usage.of(of_value(gen.op, gen.value.usage) for gen in gens if gen.value is not None)
