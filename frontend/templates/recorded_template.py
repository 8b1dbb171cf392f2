"""A program as a template: the ops of its body, recorded once, with slots for its arguments.

Running the template does not run the body: it sends the arguments, and the server expands the ops.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from banyan.backends.base import Backend
from banyan.lang import fstring
from banyan.lang.lazy_value import JoinedValues, LazyValue, ReasoningText, lazy_values
from banyan.lang.sampling import mix
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import Unsupported
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate, is_unseeded
from banyan.templates.argument_slot import ArgumentSlot
from banyan.templates.recorder import Recording

Path: TypeAlias = tuple[tuple[int, ...], ...]
"""The arguments of the `mix` calls that lead from the seed of a run to the seed of a gen."""


class RecordedTemplate:
    """The ops and variables of a recorded body. `write` adds them to new states of one backend."""

    def __init__(self, recording: Recording, names: tuple[str, ...]) -> None:
        """names: the names of the arguments that have slots. Unsupported: no template can repeat what the
        recorded body did."""
        if len(recording.programs) > 1:
            raise Unsupported(f"it calls another program, {recording.programs[1].name}")
        if recording.state._handle.number:
            raise Unsupported("its state adopts one of its branches")
        self.shape = ProgramTemplate([_checked_op(op) for op in recording.ops if not _is_implicit_drop(op)])
        self.names = names[: self.shape.n_args]
        self._state, self._value = recording.state, recording.value
        for value in (self._value, *self._state._values.values()):
            _check_value(value, self._state)
        forks = [op for op in self.shape.ops if isinstance(op, wire.Fork)]
        parents = {child: fork.state for fork in forks for child in fork.children}
        self._parents = [parents[child] for child in sorted(parents)]  # parents of states 1, 2, ...
        self._gen_paths, self._end_path = _seed_paths(self.shape.ops)
        refs = {id(ref): ref for ref in _lazy_values(self._state, self._value)}
        self._refs = sorted(refs.values(), key=lambda ref: ref.number)
        self._number, self._process, self._define_lock = -1, os.getpid(), threading.Lock()

    @property
    def n_bytes(self) -> int:
        """The size of the message that defines the template on a backend."""
        return len(wire.encode(wire.Define(0, tuple(self.shape.ops))))

    def matches(self, recording: Recording, arguments: Sequence[Any]) -> bool:
        """Whether `recording`, which was made with these arguments, did exactly what the template does with them."""
        if recording.ended is not None or len(recording.programs) > 1:
            return False
        use = wire.Use(0, 0, tuple(map(_text, arguments[: self.shape.n_args])))
        return _flattened(recording.ops) == _flattened(self.shape.expand(use)) and (
            _results(recording.state, recording.value, ()) == _results(self._state, self._value, arguments)
        )

    def write(self, arguments: Sequence[Any], state: StateBase) -> Any:
        """Append the template to a new state, with these arguments. Returns what the body would return."""
        record, shape, recorded = state._record, self.shape, self._state
        texts = tuple([_text(one) for one in arguments])
        handles = [state._handle]
        for parent in self._parents:
            handles.append(record.new_handle(handles[parent]))
        first_ref = record.new_refs(shape.n_refs)
        new: dict[int, Any] = {id(recorded): state, id(None): None}
        for ref in self._refs:
            new[id(ref)] = ref.copy_to(record, handles[ref.state], new[id(ref.previous)], first_ref + ref.number)
        if record.counters:
            for op in shape.ops:  # not self._refs, which lacks the gens of branches that are not joined
                if isinstance(op, wire.Gen | wire.Select):
                    record.watch(record.program.future(first_ref + op.ref))
        state._transcript.copy_from(recorded._transcript, lambda item: _replaced(item, new, texts))
        state._refs += _renumbered(recorded._refs, first_ref)
        for name, value in recorded._values.items():
            state._set(name, _replaced(value, new, arguments))
        use = wire.Use(
            state=state._handle.number,
            template=self._define(record.backend),
            args=texts[: shape.n_args],  # without the last arguments, if no op uses them
            child=handles[1].number if self._parents else 1,
            ref=first_ref,
            mark=record.new_marks(shape.n_marks),
            seeds=() if state._seed is None else tuple([_seed(state._seed, path) or 0 for path in self._gen_paths]),
        )
        record.use(use, shape)
        state._seed, state._closed = _seed(state._seed, self._end_path), recorded._closed
        return _replaced(self._value, new, arguments)

    def _define(self, backend: Backend) -> int:
        """The number that the backend has for this template. The first call sends the template to the backend. -1: the
        backend does not support templates."""
        if self._process != os.getpid():  # a forked child, with its own connection
            self._number, self._process, self._define_lock = -1, os.getpid(), threading.Lock()
        if self._number < 0 and (define := getattr(backend, "define", None)) is not None:
            with self._define_lock:
                if self._number < 0:
                    self._number = define(self.shape)
                    undefine = partial(_undefine, weakref.ref(backend), self._number, self._process)
                    weakref.finalize(self, undefine).atexit = False
        return self._number


def _undefine(backend: weakref.ref[Any], number: int, process: int) -> None:
    if (found := backend()) is not None and process == os.getpid():
        found.undefine(number)


# ---- checking a recording --------------------------------------------------------------------------------------------


_OWN = {"timeout": "timeout", "client_decides": "choices_method", "tools": "tools", "retries": "retries"}
"""Field of a gen or select that a template does not support -> its name for users."""


def _is_implicit_drop(op: wire.Op) -> bool:
    """Whether the op only says that a state was freed. A template omits these ops, because each run sends them."""
    return isinstance(op, wire.Drop) and not op.tree


def _checked_op(op: wire.Op) -> wire.TemplateOp:
    if not isinstance(op, wire.TemplateOp):
        raise Unsupported(f"it uses {type(op).__name__}")
    if isinstance(op, wire.Gen | wire.Select):
        for field, what in _OWN.items():
            if getattr(op, field, None):
                raise Unsupported(f"gen {op.name!r} ({op.line}) has its own {what}, which no template supports")
    return op


def _check_value(value: Any, state: StateBase) -> None:
    """Check that a template can hold `value`, a variable or the return value of a recorded body. Unsupported: it
    cannot. For example, all runs would share a list that the body created."""
    if isinstance(value, JoinedValues):
        for one in value.values:
            _check_value(one, state)
        return
    if any(ref.record is not state._record for ref in lazy_values(value)):
        raise Unsupported("a ref of another program is stored, and a template has no number for it")
    if isinstance(value, str) and fstring.holds_expression(value):
        raise Unsupported("a string that contains an argument or a gen is stored, not appended")
    plain = str | int | float | bytes | None | LazyValue | ArgumentSlot | ReasoningText
    if not isinstance(value, plain) and value is not state:
        raise Unsupported(f"a {type(value).__name__} that the body created is stored, and all runs would share it")


def _results(state: StateBase, value: Any, arguments: Sequence[Any]) -> list[Any]:
    """The return value and the variables, in a form that can be compared between recordings."""
    new: dict[int, Any] = {id(state): "its state"}
    new |= {id(ref): ("value", ref.number) for ref in _lazy_values(state, value)}
    return [
        _replaced(value, new, arguments),
        {name: _replaced(one, new, arguments) for name, one in state._values.items()},
    ]


def _flattened(ops: Iterable[wire.Op]) -> list[Any]:
    """The ops in a form that can be compared. A text that is appended becomes [state, text], and any other part of a
    prompt (state, part). Adjacent texts are joined, so it does not matter in how many pieces a text was appended. Other
    ops stay."""
    flat: list[Any] = []
    for op in ops:
        if isinstance(op, wire.Append):
            for part in op.parts:
                if not isinstance(part, str):
                    flat.append((op.state, part))
                elif flat and isinstance(flat[-1], list) and flat[-1][0] == op.state:
                    flat[-1][1] += part
                elif part:
                    flat.append([op.state, part])
        elif not _is_implicit_drop(op):
            flat.append(op)
    return flat


# ---- from a recorded state to a new one ------------------------------------------------------------------------------


def _text(argument: Any) -> str:
    return argument if type(argument) is str else format(argument)


def _lazy_values(state: StateBase, value: Any) -> Iterator[LazyValue]:
    """All lazy values that can be reached from the state and from `value`, which the body returned."""
    found: list[Any] = [*state._transcript, *state._values.values(), state._transcript.last, value]
    while found:
        for ref in lazy_values(found.pop()):
            yield ref
            found.append(ref.previous)


def _replaced(value: Any, new: Mapping[int, Any], arguments: Sequence[Any]) -> Any:
    """Returns `value` for a new run: an argument slot becomes the item of `arguments` at its index; a lazy value or a
    state of the recording becomes the entry of its id in `new`. Other values stay."""
    if isinstance(value, ArgumentSlot):
        return arguments[value.i]
    if isinstance(value, JoinedValues):
        return JoinedValues([_replaced(one, new, arguments) for one in value.values], value.collects)
    if isinstance(value, ReasoningText):
        return ReasoningText(new[id(value.ref)])
    return new[id(value)] if isinstance(value, LazyValue | StateBase) else value


def _renumbered(refs: list[Any], by: int) -> list[Any]:
    return [_renumbered(one, by) if isinstance(one, list) else one + by for one in refs]


def _seed_paths(ops: Sequence[wire.Op]) -> tuple[list[Path], Path]:
    """The seed paths of a template. A seed path is a list of arguments of `mix`: applied to the seed of a run, they
    give the seed of a gen.

    Returns (one path for each gen and select without its own seed, in the order of ops; the path that the
    template's first state has reached at the end).
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
