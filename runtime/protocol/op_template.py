"""Program templates: ops with placeholders that a client defines once and uses many times with other arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_NUMBER


class ValueSource(NamedTuple):
    """The op that makes a value. ref: the number of the value. name, line: the gen's name and source line, for
    errors."""

    ref: int
    name: str = ""
    line: str = ""


class ProgramTemplate:
    """The ops of one Define, and what a Use of them needs. n_args, n_draws: how many arguments, and how many seeds (one
    for each gen and select without a seed). n_children, n_refs, n_marks: how many states (besides state 0), values and
    marks the ops have. places: the gens, selects and reads that make the values."""

    def __init__(self, ops: Iterable[wire.TemplateOp] = ()) -> None:
        self.ops: list[wire.TemplateOp] = []
        self.places: list[ValueSource] = []
        self.n_args = self.n_children = self.n_refs = self.n_marks = self.n_draws = 0
        for op in ops:
            self.add(op)

    def add(self, op: wire.TemplateOp) -> None:
        """Add an op at the end."""
        args, states, refs, marks = list[int](), [op.state], list[int](), list[int]()
        match op:
            case wire.Append(parts=parts):
                args += [part.i for part in parts if isinstance(part, wire.Arg)]
                refs += [part.ref for part in parts if isinstance(part, wire.Ref)]
            case wire.Gen(ref=ref) | wire.Select(ref=ref):
                refs.append(ref)
                self.places.append(ValueSource(ref, op.name, op.line))
            case wire.Read(ref=ref, mark=mark):
                refs.append(ref)
                self.places.append(ValueSource(ref))
                marks += [] if mark is None else [mark]
            case wire.Fork(children=children) | wire.Join(children=children):
                states += children
            case wire.Mark(mark=mark):
                marks.append(mark)
        self.n_args = max(self.n_args, 1 + max(args, default=-1))
        self.n_refs = max(self.n_refs, 1 + max(refs, default=-1))
        self.n_marks = max(self.n_marks, 1 + max(marks, default=-1))
        self.n_children = max(self.n_children, *states)
        self.n_draws += is_unseeded(op)
        self.ops.append(op)

    def expand(self, use: wire.Use) -> Iterator[wire.TemplateOp]:
        """The ops that `use` stands for. BadProgram: a wrong number of arguments or seeds, or numbers out of range."""
        for what, given, n in (("arguments", use.args, self.n_args), ("seeds", use.seeds or (), self.n_draws)):
            if len(given) != n and (given or what == "arguments"):
                raise BadProgram(f"template {use.template} takes {n} {what}, not {len(given)}")
        for what, start, n in (
            ("states", use.child, self.n_children),
            ("values", use.ref, self.n_refs),
            ("marks", use.mark, self.n_marks),
        ):
            if start + n - 1 > MAX_NUMBER:
                raise BadProgram(
                    f"template {use.template} numbers its {what} up to {start + n - 1}, but the largest number is "
                    f"{MAX_NUMBER}"
                )
        seeds = iter(use.seeds)
        is_renumbered = (use.state, use.child, use.ref, use.mark) != (0, 1, 0, 0)
        for op in self.ops:
            if isinstance(op, wire.Append):
                parts = (use.args[part.i] if isinstance(part, wire.Arg) else part for part in op.parts)
                op = wire.Append(op.state, tuple(parts))
            elif use.seeds and is_unseeded(op):
                op = seeded(op, next(seeds))
            yield _renumber(op, use) if is_renumbered else op


def is_unseeded(op: wire.TemplateOp) -> bool:
    """Whether `op` is a Gen or a Select without a seed, so that the server chooses the seed."""
    return (op.sampling.seed if isinstance(op, wire.Gen) else op.seed if isinstance(op, wire.Select) else 0) is None


def seeded(op: wire.TemplateOp, seed: int) -> wire.TemplateOp:
    """Copy `op`, a Gen or a Select, with the seed `seed`."""
    if isinstance(op, wire.Gen):
        return replace(op, sampling=replace(op.sampling, seed=seed))
    return replace(op, seed=seed)


def _renumber(op: wire.TemplateOp, use: wire.Use) -> wire.TemplateOp:
    """Copy `op` with the numbers of states, refs and marks that `use` gives."""

    def renumbered(state: int) -> int:
        return use.child + state - 1 if state else use.state

    op = replace(op, state=renumbered(op.state))
    match op:
        case wire.Append(parts=parts):
            refs = (wire.Ref(p.ref + use.ref) if isinstance(p, wire.Ref) else p for p in parts)
            return replace(op, parts=tuple(refs))
        case wire.Gen() | wire.Select():
            return replace(op, ref=op.ref + use.ref)
        case wire.Read(mark=mark):
            return replace(op, ref=op.ref + use.ref, mark=None if mark is None else mark + use.mark)
        case wire.Mark():
            return replace(op, mark=op.mark + use.mark)
        case wire.Fork() | wire.Join():
            return replace(op, children=tuple(map(renumbered, op.children)))
    return op
