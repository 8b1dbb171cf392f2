"""`bn.compile`: programs that send a recorded template instead of running their body."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, overload

import msgspec
from msgspec.structs import replace

from banyan.backends.base import Backend
from banyan.execution.program_record import ProgramRecord
from banyan.lang.program import AsyncProgram, Program
from banyan.lang.sampling import Options
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.templates.argument_slot import AWAITED, ArgumentSlot
from banyan.templates.recorded_template import RecordedTemplate
from banyan.templates.recorder import Recorder, Recording
from banyan.templates.recorder import record as record_body

MAX_TEMPLATES = 64
"""The most templates of one program on one backend. A program that needs more gains nothing from templates."""

PROBES: dict[type, Any] = {
    str: " \t{{odd}} %s 'Text'\n\n  of <|several|> lines\r\n" + 3_000 * "and long " + "\\n ",
    int: -(10**25) - 7,
    float: -1.5e-300,
}
"""Unusual arguments of each type that can have a slot. A template is used only if the body, run with them, appends
exactly what the template says."""


@overload
def compile(program: AsyncProgram) -> AsyncCompiled: ...
@overload
def compile(program: Program) -> Compiled: ...
def compile(program: Program) -> Compiled:
    """Compile a program to templates, which a backend gets once. A run then sends only the arguments that are text.

    The first run records the body several times, also with unusual arguments. If the body inspects an argument
    (compares, measures or splits it), each value of it gets its own template; if it reads a generated value, calls
    another program or awaits something, it always runs. So the results are those of the program, as long as what the
    body appends depends only on its arguments. `explain()` tells which case holds.
    """
    if not isinstance(program, Program):
        raise BadProgram(f"compile takes a program, which `@function` makes, not a {type(program).__name__}")
    return (AsyncCompiled if program.is_async else Compiled)(program.func, program._bound, program.num_api_spec_tokens)


class ArgumentPlan(NamedTuple):
    """How the arguments of a run are used. slots: those that are sent. key: selects the template by the others."""

    slots: dict[str, Any]
    key: tuple[Hashable, ...]


class _Observed(Exception):
    """The body depends on the values of some arguments. reasons: argument name -> why."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class Compiled(Program):
    """What `compile` returns. It runs like the program, mostly without running its body."""

    def __init__(
        self, func: Callable[..., Any], bound: Mapping[str, Any] | None = None, num_api_spec_tokens: int | None = None
    ) -> None:
        super().__init__(func, bound, num_api_spec_tokens)
        self._templates: weakref.WeakKeyDictionary[Backend, dict[tuple[Hashable, ...], RecordedTemplate]]
        self._templates = weakref.WeakKeyDictionary()
        self._make_lock = threading.RLock()
        self._observed: dict[str, str] = {}
        """Argument name -> why each of its values needs a template of its own."""
        self._unsupported = ""
        """Why the body always runs; "" if it need not."""

    def explain(self) -> str:
        """In words: which arguments are sent, and why the body runs, if it does."""
        if self._unsupported:
            return f"{self.name} runs its body every time: {self._unsupported}"
        known = list(chain.from_iterable(templates.values() for templates in self._templates.values()))
        lines = [f"{self.name} has {len(known)} {'template' if len(known) == 1 else 'templates'}"]
        for one in known:
            lines.append(f"  {one.n_bytes} bytes, sent once; a run sends {', '.join(one.names) or 'no argument'}")
        lines += [f"each value of {name!r} has a template of its own: {why}" for name, why in self._observed.items()]
        return "\n".join(lines)

    def _body(self, arguments: inspect.BoundArguments) -> Callable[[Any], Any]:
        return partial(self._write, arguments)

    def _write(self, arguments: inspect.BoundArguments, state: StateBase) -> Any:
        """Runs in place of the body: writes the template, or runs the body if there is none."""
        record = state._record
        if not record.options.stream and not isinstance(record.backend, Recorder):
            template, slots = self._find(arguments, record)
            if template is not None:
                value = template.write(list(slots.values()), state)
                return _awaited(value) if self.is_async else value
        return super()._body(arguments)(state)

    def _find(
        self, arguments: inspect.BoundArguments, record: ProgramRecord
    ) -> tuple[RecordedTemplate | None, dict[str, Any]]:
        """(the template for these arguments, the arguments that it takes). None: the body must run."""
        while not self._unsupported and (plan := self._plan(arguments.arguments, record.options)) is not None:
            try:
                known = self._templates.get(record.backend) or {}
                return known.get(plan.key) or self._make(arguments, plan, record), plan.slots
            except _Observed as e:
                self._observed |= e.reasons
            except Unsupported as e:
                self._unsupported = e.message
        return None, {}

    def _plan(self, arguments: Mapping[str, Any], options: Options) -> ArgumentPlan | None:
        """None: no argument can have a slot, or one is not immutable."""
        slots: dict[str, Any] = {}
        rest: list[Hashable] = []
        any_given = False
        for name, value in arguments.items():
            is_bound = name in self._bound and self._bound[name] is value
            any_given |= not is_bound
            if type(value) in PROBES and name not in self._observed and not is_bound:
                slots[name] = value
                rest.append((name, type(value)))
            else:
                try:
                    rest.append((name, frozen(value)))
                except TypeError:
                    return None
        return None if any_given and not slots else ArgumentPlan(slots, (_encode(_gen_options(options)), *rest))

    def _make(
        self, arguments: inspect.BoundArguments, plan: ArgumentPlan, record: ProgramRecord
    ) -> RecordedTemplate | None:
        """Record the body and keep the template. None: the body raises, or there are too many templates."""

        def recorded(**changes: Any) -> Recording:
            changed = inspect.BoundArguments(arguments.signature, arguments.arguments | changes)
            body, options = Program._body(self, changed), _gen_options(record.options)
            return record_body(self.name, body, options, record.backend.welcome, self._state_class)

        with self._make_lock:  # one at a time: other threads most likely need the same template
            known = self._templates.setdefault(record.backend, {})
            if plan.key not in known and len(known) < MAX_TEMPLATES:
                try:
                    plain = recorded()
                except Exception:
                    return None  # the run itself will raise it
                known[plan.key] = _checked_template(plain, recorded, plan.slots)
            return known.get(plan.key)


class AsyncCompiled(Compiled, AsyncProgram):
    """What `compile` returns for an `async def` program."""


async def _awaited(value: Any) -> Any:
    return value


def _checked_template(
    plain: Recording, recorded: Callable[..., Recording], values: Mapping[str, Any]
) -> RecordedTemplate:
    """The template of a body, compared with the body itself. Raises _Observed or Unsupported if there is none.

    plain: the recording with the run's own arguments. recorded: records the body with some arguments changed.
    """
    if plain.ended is not None:
        does = "awaits something" if plain.ended.what == AWAITED else "reads a generated value"
        raise Unsupported(f"in {plain.ended.line} it {does}")
    slots = [ArgumentSlot(i, name) for i, name in enumerate(values)]
    error: Exception | None = None
    try:
        recording = recorded(**{slot.name: slot for slot in slots})
    except Exception as e:
        error = e
    if observed := {slot.name: f"it is inspected in {slot.observed.line}" for slot in slots if slot.observed}:
        raise _Observed(observed)
    if error is not None:
        raise _Observed(dict.fromkeys(values, f"without its value the body raises {error!r:.200}"))
    template = RecordedTemplate(recording, tuple(values))
    if not template.matches(plain, list(values.values())):
        raise Unsupported("it appends different things for the same arguments")
    for name, value in values.items():
        changed = {**values, name: PROBES[type(value)]}
        try:
            is_same = template.matches(recorded(**changed), list(changed.values()))
        except Exception:
            is_same = False
        if not is_same:
            raise _Observed({name: "what is appended is computed from it"})
    return template


def frozen(value: Any) -> Hashable:
    """A hashable key that is equal for equal values of the same type. TypeError: the value may be mutable."""
    kind = type(value)
    if value is None or kind in (str, bytes, int, float, bool) or isinstance(value, Enum):
        return kind, value
    if kind in (list, tuple):
        return kind, tuple(map(frozen, value))
    if kind in (set, frozenset):
        return kind, frozenset(map(frozen, value))
    if kind is dict:
        return kind, tuple((frozen(key), frozen(one)) for key, one in value.items())
    raise TypeError(f"a {kind.__name__} is not known to stay as it is")


def _gen_options(options: Options) -> Options:
    """The options of a run that affect its gens' ops."""
    return replace(options, seed=None, timeout=None, budget=None, priority=None, deadline=None, backend=None)


_encode = msgspec.msgpack.Encoder().encode
