"""Templates: ops with holes in them, defined once and used many times, each time with other arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire


class ValueSource(NamedTuple):
    """Where a template makes a value: what an error about it says."""

    ref: int
    name: str = ""
    line: str = ""


class ProgramTemplate:
    """The ops of one Define, and what a Use of it takes.

    n_args, n_children, n_refs, n_marks: how many it has of each; a Use takes so many numbers.
    places: of its values. n_draws: gens and selects that have no seed of their own.
    """

    def __init__(self, ops: Sequence[wire.TemplateOp]) -> None:
        """BadProgram: a number below 0, which would be one outside of the template."""
        self.ops = tuple(ops)
        self.places: list[ValueSource] = []
        args, states, refs, marks = set[int](), {0}, set[int](), set[int]()
        for op in self.ops:
            states.add(op.state)
            match op:
                case wire.Append(parts=parts):
                    args |= {part.i for part in parts if isinstance(part, wire.Arg)}
                    refs |= {part.ref for part in parts if isinstance(part, wire.Ref)}
                case wire.Gen() | wire.Select():
                    self.places.append(ValueSource(op.ref, op.name, op.line))
                case wire.Read(ref=ref, mark=mark):
                    self.places.append(ValueSource(ref))
                    marks |= set() if mark is None else {mark}
                case wire.Fork(children=children) | wire.Join(children=children):
                    states.update(children)
                case wire.Mark(mark=mark):
                    marks.add(mark)
        refs.update(place.ref for place in self.places)
        if min(0, *args, *states, *refs, *marks) < 0:
            raise BadProgram("a template counts its states, values, marks and arguments from 0 on")
        self.n_args, self.n_refs, self.n_marks = (1 + max(found, default=-1) for found in (args, refs, marks))
        self.n_children = max(states)
        self.n_draws = sum(is_unseeded(op) for op in self.ops)

    def expand(self, use: wire.Use) -> Iterator[wire.TemplateOp]:
        """The ops that `use` stands for. BadProgram: too many or too few arguments or seeds, or numbers beyond all."""
        for what, given, n in (("arguments", use.args, self.n_args), ("seeds", use.seeds or (), self.n_draws)):
            if len(given) != n and (given or what == "arguments"):
                raise BadProgram(f"template {use.template} takes {n} {what}, not {len(given)}")
        for what, start, n in (
            ("states", use.child, self.n_children),
            ("values", use.ref, self.n_refs),
            ("marks", use.mark, self.n_marks),
        ):
            if start + n - 1 > wire.MAX_NUMBER:
                raise BadProgram(
                    f"template {use.template} numbers its {what} up to {start + n - 1}; {wire.MAX_NUMBER} is the most"
                )
        seeds = iter(use.seeds)
        is_moved = (use.state, use.child, use.ref, use.mark) != (0, 1, 0, 0)
        for op in self.ops:
            if isinstance(op, wire.Append):
                op = wire.Append(op.state, tuple(_filled(part, use.args) for part in op.parts))
            elif use.seeds and is_unseeded(op):
                op = seeded(op, next(seeds))
            yield _moved(op, use) if is_moved else op


def is_unseeded(op: wire.TemplateOp) -> bool:
    """Whether the server would choose the seed of what `op` draws."""
    return (op.sampling.seed if isinstance(op, wire.Gen) else op.seed if isinstance(op, wire.Select) else 0) is None


def seeded(op: wire.TemplateOp, seed: int) -> wire.TemplateOp:
    """`op`, a Gen or a Select, with a seed."""
    if isinstance(op, wire.Gen):
        return replace(op, sampling=replace(op.sampling, seed=seed))
    return replace(op, seed=seed)


def _filled(part: wire.Part, args: Sequence[str]) -> wire.Part:
    return args[part.i] if isinstance(part, wire.Arg) else part


def _moved(op: wire.TemplateOp, use: wire.Use) -> wire.TemplateOp:
    """`op` with the numbers that it has where `use` stands."""

    def place(state: int) -> int:
        return use.child + state - 1 if state else use.state

    op = replace(op, state=place(op.state))
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
            return replace(op, children=tuple(map(place, op.children)))
    return op
