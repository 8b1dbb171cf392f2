"""`bn.compile`: programs that send recorded templates instead of running their bodies."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self, overload

import msgspec
from msgspec.structs import replace

from banyan.backends.base import Backend
from banyan.execution.program_record import ProgramRecord
from banyan.lang.fstring import check_unicode, holds_expression
from banyan.lang.program import AsyncProgram, Program
from banyan.lang.run_types import Args, R, R_co
from banyan.lang.sampling import Options
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.templates.argument_slot import AWAITED, ArgumentSlot
from banyan.templates.recorded_template import RecordedTemplate
from banyan.templates.recorder import Recorder, Recording
from banyan.templates.recorder import record as record_body

MAX_TEMPLATES = 64
"""The largest number of templates of one program on one backend. With more templates, each would be used too rarely."""

PROBES: dict[type, Any] = {
    str: " \t{{odd}} %s 'Text'\n\n  of <|several|> lines\r\n" + 3_000 * "and long " + "\\n ",
    int: -(10**25) - 7,
    float: -1.5e-300,
}
"""Type of the arguments that can have a slot -> an unusual value of that type. A template is used only if the body, run
with these values, appends exactly what the template says."""


@overload
def compile(program: AsyncProgram[Args, R]) -> AsyncCompiled[Args, R]: ...
@overload
def compile(program: Program[Args, R]) -> Compiled[Args, R]: ...
def compile(program: Program[Args, R]) -> Compiled[Args, R]:
    """Compile a program to templates. The backend gets each template once; a run then sends only its str, int and float
    arguments, as text. Of a method, compile that of an object: `compile(x.method)`.

    The first run records the body several times, also with unusual arguments. If the body inspects an argument
    (compares, measures or splits it), each value of this argument gets its own template. If the body reads a
    generated value or `s.index`, calls another program or awaits something, it runs every time, as without `compile`.
    The results are those of the program, provided that what the body appends depends only on its arguments. `explain()`
    says which of these cases holds.
    """
    if not isinstance(program, Program):
        raise BadProgram(f"compile takes a program, which `@function` makes, not a {type(program).__name__}")
    kind = AsyncCompiled if program.is_async else Compiled
    return kind(program.func, program._bound, program.num_api_spec_tokens, program._defaults)


class ArgumentPlan(NamedTuple):
    """How the arguments of a run are used. slots: the arguments that are sent. key: the key of the template, made from
    all other arguments."""

    slots: dict[str, Any]
    key: tuple[Hashable, ...]


class _Observed(Exception):
    """What the body appends depends on the values of some arguments. reasons: argument name -> how it is used."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class Compiled(Program[Args, R_co]):
    """What `compile` returns. It is used like the program, but runs the body only if there is no template."""

    def __init__(
        self,
        func: Callable[..., Any],
        bound: Mapping[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
        defaults: Options | None = None,
    ) -> None:
        super().__init__(func, bound, num_api_spec_tokens, defaults)
        self._templates: weakref.WeakKeyDictionary[Backend, dict[tuple[Hashable, ...], RecordedTemplate]]
        self._templates = weakref.WeakKeyDictionary()
        self._make_lock = threading.RLock()
        self._observed: dict[str, str] = {}
        """Argument name -> why each of its values needs its own template."""
        self._unsupported = ""
        """Why the body runs every time; "" if templates can be used."""

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        if instance is None:
            return self
        # Templates are those of one object, because the body may read its attributes.
        raise BadProgram(
            f"the method {self.name} is compiled in its class, so each access would compile it again; make it a "
            f"@function, and keep compile(x.{self.name}) for an object x"
        )

    def explain(self) -> str:
        """Describe each template and the arguments that its runs send, or say why the body runs every time."""
        if self._unsupported:
            return f"{self.name} runs its body every time: {self._unsupported}"
        known = list(chain.from_iterable(templates.values() for templates in self._templates.values()))
        lines = [f"{self.name} has {len(known)} {'template' if len(known) == 1 else 'templates'}"]
        for one in known:
            lines.append(f"  {one.n_bytes} bytes, sent once; a run sends {', '.join(one.names) or 'no argument'}")
        lines += [f"each value of {name!r} has its own template: {why}" for name, why in self._observed.items()]
        return "\n".join(lines)

    def _body(self, arguments: inspect.BoundArguments) -> Callable[[Any], Any]:
        return partial(self._write, arguments)

    def _write(self, arguments: inspect.BoundArguments, state: StateBase) -> Any:
        """Runs in place of the body. Appends the template for these arguments to `state`, or runs the real body if no
        template can be used. Returns what the body returns."""
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
        """Returns (the template for these arguments, the arguments to send). No template: the body must run."""
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
        """Decide which of these arguments are sent, and which are part of the template's key. None: the body must run.

        The body must run if all arguments that the caller gave belong to the key, because then each call would need a
        new template. It must also run if an argument is mutable, or is a str that holds a gen or a lone surrogate.
        """
        slots: dict[str, Any] = {}
        rest: list[Hashable] = []
        any_given = False
        for name, value in arguments.items():
            is_bound = name in self._bound and self._bound[name] is value
            any_given |= not is_bound
            if not is_bound and not _is_plain(value):
                return None  # as a part of the key, each such text would take up a template
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
        """Return the template for these arguments. If there is none yet, record the body, and store the new template.

        None: the program has MAX_TEMPLATES templates already, or the body raises; the run then raises the same error.
        """

        def recorded(**changes: Any) -> Recording:
            changed = inspect.BoundArguments(arguments.signature, arguments.arguments | changes)
            body, options = Program._body(self, changed), _gen_options(record.options)
            return record_body(self.name, body, options, record.backend.welcome, self._state_class)

        with self._make_lock:  # other threads most likely wait for the same template
            known = self._templates.setdefault(record.backend, {})
            if plan.key not in known and len(known) < MAX_TEMPLATES:
                try:
                    plain = recorded()
                except Exception:
                    return None  # the run itself will raise it
                known[plan.key] = _checked_template(plain, recorded, plan.slots)
            return known.get(plan.key)


class AsyncCompiled(Compiled[Args, R_co], AsyncProgram[Args, R_co]):
    """What `compile` returns for an `async def` program."""


async def _awaited(value: Any) -> Any:
    return value


def _checked_template(
    plain: Recording, recorded: Callable[..., Recording], values: Mapping[str, Any]
) -> RecordedTemplate:
    """Make a template from a recorded body, and check it. The template must append exactly what the body appends, with
    the arguments of this run and with unusual ones (PROBES).

    plain: the recording with the arguments of this run. recorded: a function that records the body again, with some
    arguments changed. values: the arguments that get slots, by name. _Observed: what the body appends depends on an
    argument in a way that a slot cannot express. Unsupported: no template is possible.
    """
    if plain.ended is not None:
        does = "awaits something" if plain.ended.what == AWAITED else "reads a generated value"
        raise Unsupported(f"in {plain.ended.line} it {does}")
    if line := plain.state._record.index_line:  # a recording has no batch item, so the body read None
        raise Unsupported(f"in {line} it reads the index of its batch item")
    slots = [ArgumentSlot(i, name) for i, name in enumerate(values)]
    recording = _with_slots(slots, recorded)
    if isinstance(recording, Exception):
        alone = {slot.name: _with_slots([slot], recorded) for slot in slots}
        errors = {name: one for name, one in alone.items() if isinstance(one, Exception)}
        errors = errors or dict.fromkeys(values, recording)  # no slot alone raises, only several together
        raise _Observed({name: f"without its value the body raises {one!r:.200}" for name, one in errors.items()})
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


def _with_slots(slots: Sequence[ArgumentSlot], recorded: Callable[..., Recording]) -> Recording | Exception:
    """Record the body with `slots` in place of arguments. Returns the recording. If the body raises an Exception,
    returns that exception instead. Raises _Observed if the body inspects one of the slots."""
    result: Recording | Exception
    try:
        result = recorded(**{slot.name: slot for slot in slots})
    except Exception as e:
        result = e
    if observed := {slot.name: f"it is inspected in {slot.observed.line}" for slot in slots if slot.observed}:
        raise _Observed(observed)
    return result


def _is_plain(value: Any) -> bool:
    """Whether an argument can be part of a template or its key. False only for a str that holds an expression, such as
    a gen in an f-string, and for a str with a lone surrogate, which cannot be encoded."""
    if type(value) is not str:
        return True
    try:
        check_unicode(value)
    except BadProgram:
        return False
    return not holds_expression(value)


def frozen(value: Any) -> Hashable:
    """A hashable key that is equal for equal values of the same type. TypeError: the value may be mutable."""
    kind = type(value)
    if kind is float:
        return kind, repr(value)  # 0.0 == -0.0, but their texts differ
    if value is None or kind in (str, bytes, int, bool) or isinstance(value, Enum):
        return kind, value
    if kind in (list, tuple):
        return kind, tuple(map(frozen, value))
    if kind in (set, frozenset):
        return kind, frozenset(map(frozen, value))
    if kind is dict:
        return kind, tuple((frozen(key), frozen(one)) for key, one in value.items())
    raise TypeError(f"a {kind.__name__} is not known to stay as it is")


def _gen_options(options: Options) -> Options:
    """A copy of `options` without those that do not change the recorded ops, such as timeout and priority. Runs that
    differ only in these share a template."""
    return replace(options, seed=None, timeout=None, budget=None, priority=None, deadline=None, backend=None)


_encode = msgspec.msgpack.Encoder().encode
