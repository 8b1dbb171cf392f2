"""Lazy values: the results of gens, selects and reads, which may not be known yet; and how variables are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from banyan.backends.base import enforces_schemas
from banyan.execution.async_body import program_on, refuse_to_block, running_loop
from banyan.execution.feed import Feed
from banyan.execution.program_record import ProgramRecord, StateHandle
from banyan.execution.source_line import source_line
from banyan.lang import fstring
from banyan.lang.expr import Expr
from banyan.lang.meta_info import meta_of_sample, meta_of_select
from banyan.lang.output_types import OutputType, output_type
from banyan.runtime import errors
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from banyan.tools.toolbox import ToolCall

if TYPE_CHECKING:
    from banyan.tools.caller import Caller
    from banyan.tools.checks import Checker, Chooser


T = TypeVar("T")


class LazyValue(Expr):
    """A value that may not be known yet. When it is appended to a state, the server inserts its text."""

    __slots__ = (
        *(
            "__weakref__",
            "_handle",
            "_objects",
            "_value",
            "caller",
            "checker",
            "choices",
            "chooser",
            "deltas",
            "has_logprobs",
        ),
        *("line", "method", "name", "number", "output_type", "previous", "record", "was_refused", "with_text"),
    )

    def __init__(
        self, record: ProgramRecord, handle: StateHandle, previous: LazyValue | None, name: str = "", line: str = ""
    ) -> None:
        """handle: the handle of the state. name: the variable, or "". line: the source line, such as "file.py:12".
        previous: the lazy value before this one in the same state, for errors: if several values failed, the first
        error is raised."""
        self.record, self.number, self.name, self.line = record, record.new_refs(), name, line
        self.previous = previous
        self.deltas: Feed[wire.Delta] | None = None
        """The text of the gen as it is generated, if the program streams."""
        self.has_logprobs = self.with_text = False
        """Whether the meta info has the log-probability of each token, and whether it also has the token's text."""
        self.output_type: OutputType | None = None
        self.was_refused = False
        """Whether reading the value raised BadOutput, because the text is not a valid object of the type."""
        self.method: wire.ChoicesMethod | None = None
        """For a select: how its choices are scored."""
        self.choices: tuple[str, ...] = ()
        self.caller: Caller | None = None
        """Calls the tools, for a gen with tools."""
        self.checker: Checker | None = None
        """Checks each output, for a gen with retries."""
        self.chooser: Chooser | None = None
        """Calls the user's choices_method, for a select with one."""
        self._handle: StateHandle | None = handle
        handle.last_ref = self.number
        self._value: wire.Value | None = None
        self._objects: list[Any] | None = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str | int | float):  # a condition that would be False whatever the text is
            raise errors.BadProgram(
                f"s.ref({self.name!r}) == {other!r}: the text may not be known yet; s[{self.name!r}] waits for it"
            )
        return self is other

    def __hash__(self) -> int:  # for a set or dict of texts, which would lack it whatever the text is
        raise errors.BadProgram(
            f"s.ref({self.name!r}) in a set, or as a key: the text may not be known yet; s[{self.name!r}] waits for it"
        )

    def __repr__(self) -> str:
        return f"<Ref {self.name or self.number} of program {self.record.name}{fstring.MARK}>"

    @property
    def future(self) -> ValueFuture[wire.Value]:
        return self.record.program.future(self.number)

    @property
    def is_done(self) -> bool:
        """Whether the value, or its error, is known."""
        return self._value is not None or self.future.done()

    @property
    def state(self) -> int:
        """The number of the state that the value belongs to. -1 after `wait` has returned the value, because the
        reference to the state is then released."""
        return -1 if self._handle is None else self._handle.number

    def copy_to(self, record: ProgramRecord, handle: StateHandle, previous: LazyValue | None, number: int) -> LazyValue:
        """Copy this lazy value of a recorded body into another run. record, handle: the program and state of that run.
        previous: as for the constructor. number: the value's number in that run."""
        ref = self._copy()
        ref.record, ref._handle, ref.previous, ref.number = record, handle, previous, number
        handle.last_ref = number
        return ref

    def spliced(self) -> LazyValue:
        """The lazy value for a place where this one is inserted: of a gen with tools, the prompt gets only the answer
        there, without the turns of the tools."""
        if self.caller is None:
            return self
        ref = self._copy()
        ref.caller = ref.deltas = None
        return ref

    def _copy(self) -> LazyValue:
        ref = LazyValue.__new__(LazyValue)
        for name in LazyValue.__slots__:
            if name != "__weakref__":
                setattr(ref, name, getattr(self, name))
        return ref

    def stream(self) -> None:
        """Put each delta of the text into `deltas`, which other threads can read as it grows. Must be called before the
        gen is sent."""
        deltas = self.deltas = Feed[wire.Delta]()
        callback = deltas.put if self.caller is None else self.caller.stream(deltas)
        if self.record.events is not None:
            callback = self.record.events.add_tokens(self.name, self.state, callback)
        self.record.program.on_delta(self.number, callback)
        self.future.add_done_callback(lambda _: deltas.close())

    def wait(self) -> wire.Value:
        """Wait for the value. If its gen failed, raises the error of the first gen that caused the failure."""
        if self._value is None:
            check_wait(self)
            try:
                if self.future.done():
                    self._value = self.future.result()
                else:
                    with self.waiting():
                        self._value = self.future.result()
            except errors.BanyanError as e:
                self.record.error_flag.is_seen = True
                error = self._root_error(e)
                e.__traceback__ = None  # a traceback holds this frame, and the future holds the error: a cycle
                raise error from error.__cause__ or e.__cause__
            self._handle = None  # the value is known: it no longer needs the state
        return self._value

    def waiting(self) -> AbstractContextManager[None]:
        """Flush the program. Returns a context manager that records how long its block waits."""
        line = source_line()
        self.record.flush(self.reason(line))
        return self.record.trace.span("wait", self.name or "the text", self.state, line)

    def reason(self, line: str) -> str:
        """Why the program is flushed if source line `line` reads this value, for the trace."""
        return f"{line} looked at {self.name or 'the text'!r}"

    def _root_error(self, error: errors.BanyanError) -> BaseException:
        if self.record.error is not None:  # the body raised, which stopped its gens
            return self.record.error
        origin, ref = self, self.previous
        while ref is not None:
            if ref.future.done() and isinstance(found := ref.future.exception(), errors.BanyanError):
                error, origin = found, ref
            ref = ref.previous
        failure = self.record.failure
        if isinstance(error, errors.Cancelled) and self.record.is_stopped and failure is not None:
            if not isinstance(failure, errors.BanyanError):
                return failure
            error = failure
        return _with_location(error, origin)

    # ---- what reading a variable returns -----------------------------------------------------------------------------

    def read(self) -> str | list[str]:
        """The text; with n > 1, a list of n texts."""
        return _one_or_list([sample.text for sample in self.wait().samples])

    def text(self) -> str:
        """The text of the first sample, which is the one that the prompt continues with."""
        return self.wait().samples[0].text

    def value(self) -> Any:
        """The object, for a gen with a type; else the text. With n > 1, a list. BadOutput: a text is not valid."""
        if self.output_type is None:
            return self.read()
        if self._objects is None:
            self._objects = self._parsed(self.output_type)
        return _one_or_list(self._objects)

    def value_as(self, kind: Any) -> Any:
        """The text as an object of type `kind`. BadOutput: it is not valid. BadProgram: n > 1, or a bad type."""
        samples = self.wait().samples
        if len(samples) > 1:
            raise errors.BadProgram(
                f"{self.name!r} holds {len(samples)} samples; read them with s.value({self.name!r})"
            )
        wanted = output_type(kind)
        return self.value() if self.output_type is wanted else self._parsed(wanted)[0]

    def _parsed(self, kind: OutputType) -> list[Any]:
        """The samples as objects. BadOutput: a text is not valid."""
        samples = self.wait().samples  # not in the `try`: the gen itself may have failed with BadOutput
        try:
            is_enforced = kind is self.output_type and enforces_schemas(self.record.backend)
            return [kind.parse_sample(sample, is_enforced) for sample in samples]
        except errors.BadOutput as e:
            self.was_refused = True
            if self.checker is not None and kind is self.output_type:
                e.message += f" (the model was told {self.checker.n_refused} times)"
            raise _with_location(e, self) from e.__cause__

    def tool_calls(self) -> list[ToolCall]:
        """The calls that a gen with tools made, also if the gen failed."""
        check_wait(self)
        with suppress(errors.BanyanError):
            self.wait()
        return [] if self.caller is None else [call for turn in self.caller.rounds for call in turn.calls]

    def meta_info(self) -> dict[str, Any] | list[dict[str, Any]]:
        """How the text was generated; with n > 1, a list of n dicts."""
        value = self.wait()
        if self.choices:
            if self.chooser is None:
                return meta_of_select(value, self.method)
            return meta_of_select(value, None) | self.chooser.meta_info
        has_rounds = self.caller is not None or self.checker is not None
        return _one_or_list(
            [meta_of_sample(k, value, self.has_logprobs, self.with_text, has_rounds) for k in range(len(value.samples))]
        )


def _one_or_list(items: list[T]) -> T | list[T]:
    return items[0] if len(items) == 1 else items


@dataclass(slots=True)
class ReasoningText:
    """The reasoning of a gen, stored under its `..._reasoning_content` variable."""

    ref: LazyValue

    def read(self) -> str | list[str]:
        """The reasoning; with n > 1, a list of n texts."""
        return _one_or_list([sample.reasoning for sample in self.ref.wait().samples])


@dataclass(slots=True)
class JoinedValues:
    """The values of one variable in all joined branches; None for a branch without the variable."""

    values: list[Any]
    collects: bool
    """Whether the list that is read holds the errors of failed branches; if not, reading it raises the error."""
    _texts: list[Any] | None = field(default=None, init=False, repr=False, compare=False)  # the list of `read`
    _as_read: list[Any] | None = field(default=None, init=False, repr=False, compare=False)  # its first content

    def read(self) -> list[Any]:
        """What `s[name]` returns for each branch. Always the same list, so that a program can append to it."""
        if self._texts is None:
            self._texts = self.each(read)
            self._as_read = self._texts.copy()
        return self._texts

    @property
    def is_changed(self) -> bool:
        """Whether the program has changed the list that `read` returns."""
        return self._texts != self._as_read

    def each(self, get: Callable[[Any], Any]) -> list[Any]:
        """Returns `get(value)` for each branch. ForkError: a branch failed. Cancelled: it was dropped. If `collects`, a
        ForkError is an item of the list in both cases. Errors that end the whole program are always raised."""
        check_wait(self)
        found: list[Any] = []
        for i, value in enumerate(self.values):
            try:
                found.append(get(value))
            except errors.ProgramError as e:
                if _ended_program(value, e) or (isinstance(e, errors.Cancelled) and not self.collects):
                    raise
                error = fork_error(i, e)
                if not self.collects:
                    raise error from e
                found.append(error)
        return found


def _ended_program(value: Any, error: errors.ProgramError) -> bool:
    """Whether `error`, raised by reading `value`, comes from a limit or the end of the whole program, not of one
    branch."""
    if isinstance(error, errors.Cancelled):  # if the program was not stopped, the branch was dropped
        return any(ref.record.is_stopped for ref in lazy_values(value))
    if not isinstance(error, errors.DeadlineExceeded | errors.BudgetExceeded):
        return False
    return any(ref.record.failure is not None for ref in lazy_values(value)) or errors.is_limit_of_run(error)


# The functions below take what a variable holds: a LazyValue, a ReasoningText, JoinedValues or an object of the user.


def lazy_values(value: Any) -> Iterator[LazyValue]:
    """The lazy values in what a variable holds: one for a generated value, several for joined branches, none for any
    other object."""
    if isinstance(value, JoinedValues):
        for one in value.values:
            yield from lazy_values(one)
    elif isinstance(value, ReasoningText):
        yield value.ref
    elif isinstance(value, LazyValue):
        yield value


def is_done(value: Any) -> bool:
    """Whether `read` returns without waiting."""
    return all(ref.is_done for ref in lazy_values(value))


def check_wait(value: Any) -> None:
    """BadProgram: what a variable holds is not known yet, and waiting for it would block the event loop of an `async
    def` program. On another loop, the program is sent first, because some backends, such as a Mock, then know the value
    at once, and there is nothing to warn of. In a program a Mock is as strict as a server."""
    for ref in lazy_values(value):
        if not ref.is_done and (loop := running_loop()) is not None:
            if program_on(loop) is None:
                ref.record.send(ref.reason(source_line()))
            if not ref.is_done:
                refuse_to_block(repr(ref.name) if ref.name else "the text", ref.record.name)


def read(value: Any) -> Any:
    """Wait for what a variable holds, and return it as `s[name]` does: a text; a list for n > 1 or joined branches; an
    object of the user as it is."""
    return value.read() if isinstance(value, LazyValue | ReasoningText | JoinedValues) else value


def read_object(value: Any, kind: Any = None) -> Any:
    """Wait for what a variable holds, and return it as `s.value(name)` does: an object, for a gen with a type; else the
    same as `read`.

    kind: the type that the object must have; for joined branches list[T], where T is the type of each branch's value.
    BadProgram: an object that was not generated is not of this type, or `kind` is not a list for joined branches.
    """
    if isinstance(value, LazyValue):
        return value.value() if kind is None else value.value_as(kind)
    if isinstance(value, JoinedValues):
        item = None if kind in (None, list) else _item_type(kind, len(value.values))
        return value.each(lambda one: read_object(one, item))
    found = read(value)
    if kind is not None:
        expected = get_origin(kind) or kind
        if not isinstance(expected, type) or not isinstance(found, expected):
            raise errors.BadProgram(
                f"the variable holds a {type(found).__name__} that was not generated, so it cannot be read as {kind!r}"
            )
    return found


def _item_type(kind: Any, n: int) -> Any:
    """The item type T of `kind`, which must be list[T], because the variable holds the values of `n` branches.
    BadProgram: `kind` is not list[T]."""
    if get_origin(kind) is not list or len(get_args(kind)) != 1:
        raise errors.BadProgram(f"the variable holds the values of {n} branches; read it as list[...], not as {kind!r}")
    return get_args(kind)[0]


def tool_calls(value: Any) -> Any:
    """The tool calls of a gen; for joined branches, a list for each branch; [] for any other value."""
    if isinstance(value, JoinedValues):
        return [tool_calls(one) for one in value.values]
    return value.tool_calls() if isinstance(value, LazyValue) else []


def meta_info(value: Any) -> Any:
    """The meta info of a gen or select; for joined branches, a list; None for any other value."""
    if isinstance(value, LazyValue):
        return value.meta_info()
    return value.each(meta_info) if isinstance(value, JoinedValues) else None


def dist(value: Any) -> Any:
    """The probability of each choice of a select; for joined branches, a list. BadProgram: no select made the value."""
    if isinstance(value, JoinedValues):
        return value.each(dist)
    if not isinstance(value, LazyValue) or not value.choices:
        raise errors.BadProgram("dist needs a variable whose value comes from a select")
    scores = value.wait().scores
    if scores is None:
        raise errors.Unsupported("dist: this backend does not report the scores of the choices")
    logprobs = [math.fsum(logprob for logprob, _ in tokens) for tokens in scores.tokens]
    top = max(logprobs)
    odds = [math.exp(logprob - top) for logprob in logprobs]
    once = dict(zip(value.choices, odds, strict=True))  # a choice that is listed twice counts once
    total = math.fsum(once.values())
    return {choice: one / total for choice, one in once.items()}


# ---- errors ----------------------------------------------------------------------------------------------------------


def fork_error(i: int, error: errors.BanyanError, prefix: str = "") -> errors.ForkError:
    """The ForkError for branch number `i`, which failed with `error`. prefix: the start of the message."""
    where = {}
    if isinstance(error, errors.ProgramError):
        where = {"program": error.program, "line": error.line, "gen": error.gen, "prompt_tail": error.prompt_tail}
    fork = errors.ForkError(f"{prefix}branch {i} failed: {error.message}", index=i, **where)
    fork.__cause__ = error
    return fork


def _with_location(error: errors.BanyanError, ref: LazyValue) -> errors.BanyanError:
    """A copy of `error` that names the program, the source line and the gen. ref: the lazy value of that gen."""
    fresh = errors.copy_of(error)
    if isinstance(fresh, errors.ProgramError):
        fresh.program = fresh.program or ref.record.name
        fresh.gen, fresh.line = fresh.gen or ref.name, fresh.line or ref.line
        fresh.attempts = 1 if ref.checker is None else ref.checker.n_refused + 1
        fresh.usage = ref.record.spent()
    else:  # the runtime failed, not the program: keep the error's own class so that users can catch it
        fresh.add_note(
            f"while program {ref.record.name} waited for {ref.name or 'its text'!r} ({ref.line or 'no line'})"
        )
    return fresh
