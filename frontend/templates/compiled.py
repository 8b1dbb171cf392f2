"""`bn.compile`: programs whose bodies run once for all runs that do the same."""

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
from banyan.lang.async_state import AsyncState
from banyan.lang.program import AsyncProgram, Program
from banyan.lang.sampling import Options
from banyan.lang.state import State
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.templates.argument_slot import AWAITED, Slot
from banyan.templates.recorded_template import RecordedTemplate
from banyan.templates.recorder import Recorder, Recording, record

MOST_TEMPLATES = 64
"""Of one program on one backend. One that needs more looks at its arguments too closely for templates to pay."""

ODD: dict[type, Any] = {
    str: " \t{{odd}} %s 'Text'\n\n  of <|several|> lines\r\n" + 3_000 * "and long " + "\\n ",
    int: -(10**25) - 7,
    float: -1.5e-300,
}
"""Arguments that no body expects, of each type that a slot may have. A template is believed only where the body, given
one of them, appends what the template says."""


@overload
def compile(program: AsyncProgram) -> AsyncCompiled: ...
@overload
def compile(program: Program) -> Compiled: ...
def compile(program: Program) -> Compiled:
    """The program as templates, which a backend gets once; a run sends the arguments that are text, and no more.

    The first run records the body, a few times: with its own arguments, with stand-ins that can only be appended, and
    with odd ones. What those runs append must be the same but for the arguments. Where the body looks at an argument
    (compares it, measures it, takes it apart), each of its values has a template of its own; where it looks at a
    generated value, calls another program or awaits something, it runs as ever, every time. So the results are those of
    the program, as long as what the body appends depends on its arguments alone. `explain()` says what was found.
    """
    if not isinstance(program, Program):
        raise BadProgram(f"compile takes a program, which `@function` makes, not a {type(program).__name__}")
    return (AsyncCompiled if program.is_async else Compiled)(program.func, program._bound, program.num_api_spec_tokens)


class ArgumentPlan(NamedTuple):
    """What becomes of a run's arguments. slots: those that are sent; others are part of the key, by their values."""

    slots: dict[str, Any]
    key: tuple[Hashable, ...]


class _Observed(Exception):
    """The body does different things for different values of some arguments. why: by their names."""

    def __init__(self, why: dict[str, str]) -> None:
        super().__init__(why)
        self.why = why


class Compiled(Program):
    """What `compile` makes of a program: it is run like that, and mostly without its body."""

    def __init__(
        self,
        func: Callable[..., Any],
        bound: Mapping[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        super().__init__(func, bound, num_api_spec_tokens)
        self._templates: weakref.WeakKeyDictionary[Backend, dict[tuple[Hashable, ...], RecordedTemplate]]
        self._templates = weakref.WeakKeyDictionary()
        self._making = threading.RLock()
        self._observed: dict[str, str] = {}
        """Argument -> why each of its values has a template of its own."""
        self._why_not = ""
        """Why the body runs every time; "" if it need not."""

    def explain(self) -> str:
        """What is known by now, in words: which arguments are sent, and why the body runs, where it does."""
        if self._why_not:
            return f"{self.name} runs its body every time: {self._why_not}"
        known = list(chain.from_iterable(templates.values() for templates in self._templates.values()))
        lines = [f"{self.name} has {len(known)} {'template' if len(known) == 1 else 'templates'}"]
        for template in known:
            lines.append(
                f"  {template.n_bytes} bytes, sent once; a run sends {', '.join(template.names) or 'no argument'}"
            )
        lines += [f"each value of {name!r} has a template of its own: {why}" for name, why in self._observed.items()]
        return "\n".join(lines)

    def _body(self, arguments: inspect.BoundArguments) -> Callable[[Any], Any]:
        return partial(self._write, arguments)

    def _write(self, arguments: inspect.BoundArguments, state: StateBase) -> Any:
        """Runs as the body, and does what that would do."""
        kept = state._record
        if not kept.options.stream and not isinstance(kept.backend, Recorder):
            template, slots = self._find(arguments, kept)
            if template is not None:
                return self._given(template.write(list(slots.values()), state))
        return super()._body(arguments)(state)

    def _given(self, value: Any) -> Any:
        """What the body would give: `value`, or what it comes of when it is awaited."""
        return value

    # ---- which template ----------------------------------------------------------------------------------------------

    def _find(
        self, arguments: inspect.BoundArguments, kept: ProgramRecord
    ) -> tuple[RecordedTemplate | None, dict[str, Any]]:
        """The template for these arguments, and those of them that it takes. None: the body must run."""
        while not self._why_not and (plan := self._plan(arguments.arguments, kept.options)) is not None:
            try:
                known = self._templates.get(kept.backend) or {}
                return known.get(plan.key) or self._make(arguments, plan, kept), plan.slots
            except _Observed as e:
                self._observed |= e.why
            except Unsupported as e:
                self._why_not = e.message
        return None, {}

    def _plan(self, arguments: Mapping[str, Any], options: Options) -> ArgumentPlan | None:
        """None: each of these arguments would need a template of its own, or is nothing that stays as it is."""
        slots: dict[str, Any] = {}
        rest: list[Hashable] = []
        is_given = False
        for name, value in arguments.items():
            is_bound = name in self._bound and self._bound[name] is value
            is_given |= not is_bound
            if type(value) in ODD and name not in self._observed and not is_bound:
                slots[name] = value
                rest.append((name, type(value)))
            else:
                try:
                    rest.append((name, frozen(value)))
                except TypeError:
                    return None
        return None if is_given and not slots else ArgumentPlan(slots, (_encode(_shared(options)), *rest))

    # ---- making it ---------------------------------------------------------------------------------------------------

    def _make(
        self, arguments: inspect.BoundArguments, plan: ArgumentPlan, kept: ProgramRecord
    ) -> RecordedTemplate | None:
        """Record the body, and keep what it gives. None: it raises, or there are too many templates already."""

        def played(**others: Any) -> Recording:
            changed = inspect.BoundArguments(arguments.signature, arguments.arguments | others)
            body, options = super(Compiled, self)._body(changed), _shared(kept.options)
            return record(self.name, body, options, kept.backend.welcome, AsyncState if self.is_async else State)

        with self._making:  # one at a time: whoever comes meanwhile most likely needs the same
            known = self._templates.setdefault(kept.backend, {})
            if plan.key not in known and len(known) < MOST_TEMPLATES:
                try:
                    plain = played()
                except Exception:
                    return None  # the run itself will say what is wrong with these arguments
                template = _recorded(plain, played, plan.slots)
                _check(template, plain, played, plan.slots)
                known[plan.key] = template
            return known.get(plan.key)


class AsyncCompiled(Compiled, AsyncProgram):
    """What `compile` makes of an `async def` program: it is awaited like that, and mostly without its body."""

    def _given(self, value: Any) -> Any:
        async def give() -> Any:
            return value

        return give()


def _recorded(plain: Recording, played: Callable[..., Recording], values: Mapping[str, Any]) -> RecordedTemplate:
    """The template of a body that was `plain` for these arguments. _Observed, Unsupported: why there is none."""
    if plain.ended is not None and plain.ended.what == AWAITED:
        raise Unsupported(f"in {plain.ended.line} it awaits something")
    if plain.ended is not None:
        raise Unsupported(f"in {plain.ended.line} it looks at a generated value, and goes on as that says")
    slots = [Slot(i, name) for i, name in enumerate(values)]
    error: Exception | None = None
    try:
        recording = played(**{slot.name: slot for slot in slots})
    except Exception as e:
        error = e
    if observed := {slot.name: f"it is looked at in {slot.observed.line}" for slot in slots if slot.observed}:
        raise _Observed(observed)
    if error is not None:
        raise _Observed(dict.fromkeys(values, f"without it the body raises {error!r:.200}"))
    return RecordedTemplate(recording, tuple(values))


def _check(
    template: RecordedTemplate, plain: Recording, played: Callable[..., Recording], values: Mapping[str, Any]
) -> None:
    """Hold the template against the body, run with its own arguments and with odd ones."""
    if not template.says(plain, list(values.values())):
        raise Unsupported("it does not append the same each time that it has the same arguments")
    for name, value in values.items():
        odd = {**values, name: ODD[type(value)]}
        try:
            is_same = template.says(played(**odd), list(odd.values()))
        except Exception:
            is_same = False
        if not is_same:
            raise _Observed({name: "what is appended is not its text as it is, but made of it"})


def frozen(value: Any) -> Hashable:
    """What is equal for equal values. TypeError: it may change, or nobody knows when two of them are equal."""
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


def _shared(options: Options) -> Options:
    """What of a run's options its gens are made of."""
    return replace(options, seed=None, timeout=None, budget=None, priority=None, deadline=None, backend=None)


_encode = msgspec.msgpack.Encoder().encode
