"""A program as a template: what its body appends, recorded once, with slots where its arguments stand.

A run of it runs no body: it sends the arguments, and the server has the rest.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from banyan.backends.base import Backend
from banyan.lang import fstring
from banyan.lang.lazy_value import JoinedValues, LazyValue, Thought
from banyan.lang.sampling import mix
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import Unsupported
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate, is_unseeded
from banyan.templates.argument_slot import Slot
from banyan.templates.recorder import Recording

Path: TypeAlias = tuple[tuple[int, ...], ...]
"""From the seed of a run to that of a gen: what `mix` gets, fork after fork."""


class RecordedTemplate:
    """What a recorded body appended, to be written into new states of programs, all on one backend.

    names: the arguments that are written with it.
    """

    def __init__(self, recording: Recording, names: tuple[str, ...]) -> None:
        """Unsupported: something in it cannot be done a second time without the body."""
        if len(recording.programs) > 1:
            raise Unsupported(f"it calls another program, {recording.programs[1].name}")
        if recording.state._lane.number:
            raise Unsupported("its state goes on as one of its branches")
        self.names = names
        self.shape = ProgramTemplate([_checked_op(op) for op in recording.ops if not _is_let_go(op)])
        self._state, self._value = recording.state, recording.value
        for value in (self._value, *self._state._values.values()):
            _check_value(value, self._state)
        self._parents, (self._paths, self._path) = _parents(self.shape.ops), _paths(self.shape.ops)
        self._refs = sorted(set(_refs(self._state)), key=lambda ref: ref.number)
        self._number, self._defining = -1, threading.Lock()

    @property
    def n_bytes(self) -> int:
        """Of the message that makes it known to a backend."""
        return len(wire.encode(wire.Define(0, self.shape.ops)))

    def says(self, recording: Recording, arguments: Sequence[Any]) -> bool:
        """Whether a body that was run with these arguments did what the template does with them."""
        if recording.ended is not None or len(recording.programs) > 1:
            return False
        use = wire.Use(0, 0, tuple(map(_text, arguments)))
        return _merged(recording.ops) == _merged(self.shape.expand(use)) and (
            _kept(recording.state, recording.value, ()) == _kept(self._state, self._value, arguments)
        )

    def write(self, arguments: Sequence[Any], state: StateBase) -> Any:
        """Append all that was recorded to a new state, with these arguments; gives what the body would return."""
        record, shape, recorded = state._record, self.shape, self._state
        texts = tuple([_text(one) for one in arguments])
        lanes = [state._lane]
        for parent in self._parents:
            lanes.append(record.new_lane(lanes[parent]))
        number = record.new_refs(shape.n_refs)
        new: dict[Any, Any] = {recorded: state, None: None}
        for ref in self._refs:
            new[ref] = ref.twin(record, lanes[ref.state], new[ref.before], number + ref.number)
            if record.limits is not None:
                record.limits.watch(new[ref])
        state._transcript.take(recorded._transcript, lambda item: _moved(item, new, texts))
        state._numbers += _renumbered(recorded._numbers, number)
        for name, value in recorded._values.items():
            state._set(name, _moved(value, new, arguments))
        use = wire.Use(
            state=state._lane.number,
            template=self._defined(record.backend),
            args=texts,
            child=lanes[1].number if self._parents else 1,
            ref=number,
            mark=record.new_marks(shape.n_marks),
            seeds=() if state._seed is None else tuple([_seed(state._seed, path) or 0 for path in self._paths]),
        )
        record.use(use, shape)
        state._seed, state._closed = _seed(state._seed, self._path), recorded._closed
        return _moved(self._value, new, arguments)

    def _defined(self, backend: Backend) -> int:
        """Its number there; the backend gets it with the first use. -1: it takes ops only."""
        if self._number < 0 and (define := getattr(backend, "define", None)) is not None:
            with self._defining:
                if self._number < 0:
                    self._number = define(self.shape)
                    weakref.finalize(self, _undefine, weakref.ref(backend), self._number).atexit = False
        return self._number


def _undefine(backend: weakref.ref[Any], number: int) -> None:
    if (found := backend()) is not None:
        found.undefine(number)


# ---- what can be a template ----------------------------------------------------------------------------------------


def _is_let_go(op: wire.Op) -> bool:
    """Whether it says that nobody holds a state any more. A run says that by itself, when it is so."""
    return isinstance(op, wire.Drop) and not op.tree


def _checked_op(op: wire.Op) -> wire.TemplateOp:
    if not isinstance(op, wire.TemplateOp):
        raise Unsupported(f"it holds a {type(op).__name__}")
    if isinstance(op, wire.Gen | wire.Select):
        wants: dict[str, Any] = {"a timeout of its own": op.timeout}
        if isinstance(op, wire.Gen):
            wants |= {"tools": op.tools, "retries": op.retries}
        else:
            wants["a choices_method of its own"] = op.client_decides
        for what in (what for what, has in wants.items() if has):
            raise Unsupported(f"gen {op.name!r} ({op.line}) has {what}, which needs its run's attention")
    return op


def _check_value(value: Any, state: StateBase) -> None:
    """That every run may have the same value, or its own in the place of a slot or of a value in the making."""
    if isinstance(value, JoinedValues):
        for one in value.values:
            _check_value(one, state)
    elif isinstance(value, str) and fstring.holds(value):
        raise Unsupported("a string that holds an argument or a gen is kept, not appended")
    elif not isinstance(value, str | int | float | bytes | None | LazyValue | Slot | Thought) and value is not state:
        raise Unsupported(f"a {type(value).__name__} that its body made is kept, and all runs would share it")


def _kept(state: StateBase, value: Any, arguments: Sequence[Any]) -> list[Any]:
    """What a body leaves behind beside its ops, as it can be compared."""
    new: dict[Any, Any] = {state: "its state"}
    new |= {ref: ("value", ref.number) for ref in _refs(state)}

    def seen(one: Any) -> Any:
        if isinstance(one, JoinedValues):
            return [one.collects, *map(seen, one.values)]
        return ("thought", one.ref.number) if isinstance(one, Thought) else _moved(one, new, arguments)

    return [seen(value), {name: seen(one) for name, one in state._values.items()}]


def _merged(ops: Iterable[wire.Op]) -> list[wire.Op]:
    """The ops, with texts that stand side by side as one."""
    merged: list[wire.Op] = []
    for op in ops:
        if isinstance(op, wire.Append):
            parts: list[wire.Part] = []
            if merged and isinstance(merged[-1], wire.Append) and merged[-1].state == op.state:
                parts += merged.pop().parts  # type: ignore[union-attr]
            for part in op.parts:
                if isinstance(part, str) and parts and isinstance(parts[-1], str):
                    parts[-1] += part
                elif part != "":
                    parts.append(part)
            op = wire.Append(op.state, tuple(parts))
        if not _is_let_go(op) and op != wire.Append(op.state, ()):
            merged.append(op)
    return merged


# ---- from a recorded state to a new one ------------------------------------------------------------------------------


def _text(argument: Any) -> str:
    return argument if type(argument) is str else format(argument)


def _refs(state: StateBase) -> Iterator[LazyValue]:
    """All values in the making that somebody who holds the state can come to."""
    found: list[Any] = [*state._transcript, *state._values.values(), state._transcript.last]
    while found:
        one = found.pop()
        if isinstance(one, JoinedValues):
            found += one.values
        elif isinstance(one, Thought):
            found.append(one.ref)
        elif isinstance(one, LazyValue):
            yield one
            found.append(one.before)


def _moved(value: Any, new: Mapping[Any, Any], arguments: Sequence[Any]) -> Any:
    """What stands in a new state where `value` was recorded."""
    if isinstance(value, Slot):
        return arguments[value.i]
    if isinstance(value, JoinedValues):
        return JoinedValues([_moved(one, new, arguments) for one in value.values], value.collects)
    if isinstance(value, Thought):
        return Thought(new[value.ref])
    return new[value] if isinstance(value, LazyValue | StateBase) else value


def _renumbered(numbers: list[Any], by: int) -> list[Any]:
    return [_renumbered(one, by) if isinstance(one, list) else one + by for one in numbers]


def _parents(ops: Sequence[wire.Op]) -> list[int]:
    """The state that each state was forked from, from the first child on."""
    forks = [op for op in ops if isinstance(op, wire.Fork)]
    parents = {child: fork.state for fork in forks for child in fork.children}
    return [parents[child] for child in sorted(parents)]


def _paths(ops: Sequence[wire.Op]) -> tuple[list[Path], Path]:
    """Where the seeds come from of gens and selects that have none of their own, and where state 0 comes from at last.

    Counted as states count what they draw.
    """
    found: list[Path] = []
    n_draws, paths = {0: 0}, dict[int, Path]({0: ()})
    for op in ops:
        if isinstance(op, wire.Join) and op.adopt:
            (child,) = op.children
            n_draws[op.state], paths[op.state] = n_draws[child], paths[child]
        if not isinstance(op, wire.Gen | wire.Select | wire.Fork):
            continue
        n_draws[op.state] += 1
        path, n = paths[op.state], n_draws[op.state]
        if isinstance(op, wire.Fork):
            for i, child in enumerate(op.children):
                n_draws[child], paths[child] = 0, (*path, (n, i))
        elif is_unseeded(op):
            found.append((*path, (n,)))
    return found, paths[0]


def _seed(seed: int | None, path: Path) -> int | None:
    for step in path:
        seed = mix(seed, *step)
    return seed
