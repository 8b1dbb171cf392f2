"""Programs without a model: their bodies run, what they append is kept, and what needs a value ends there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import CoroutineType
from typing import Any, NamedTuple, NoReturn

from banyan.backends.base import ProgramDefaults, Question
from banyan.backends.default import CURRENT
from banyan.execution.program_record import ProgramRecord
from banyan.execution.source_line import source_line
from banyan.lang.sampling import Options
from banyan.lang.state import State
from banyan.lang.state_base import StateBase
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from banyan.templates.argument_slot import AWAITED, ArgumentObserved
from banyan.views.transcript import Transcript


class Recording(NamedTuple):
    """What a body did. programs: the ops of each program, in order of their begins; the body's own is the first.

    value: what it returned. ended: why it ended before its end, at the value that it looked at; None if it did not.
    """

    programs: list[RecordedProgram]
    state: StateBase
    value: Any
    ended: ArgumentObserved | None

    @property
    def ops(self) -> list[wire.Op]:
        return self.programs[0].ops


class Recorder:
    """A backend that keeps what it is given. welcome: of the backend in whose place it stands."""

    def __init__(self, welcome: wire.Welcome) -> None:
        self.welcome = welcome
        self.programs: list[RecordedProgram] = []

    refuses: frozenset[str] = frozenset()

    def program(self, name: str = "") -> RecordedProgram:
        self.programs.append(RecordedProgram(name))
        return self.programs[-1]

    def ask(self, what: Question) -> NoReturn:
        raise ArgumentObserved(f"the backend's {what}", source_line())


class RecordedProgram(ProgramDefaults):
    """Its ops, as they came."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ops: list[wire.Op] = []

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        self.ops += ops

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        return Unmade(ref)


class Unmade(ValueFuture[wire.Value]):
    """A value that nothing makes. Who looks whether it is there ends the body."""

    def __init__(self, ref: int) -> None:
        super().__init__()
        self._ref = ref

    def _observe(self, timeout: float | None = None) -> NoReturn:
        raise ArgumentObserved(self._ref, source_line())

    done = result = exception = _observe


def record(
    name: str, body: Callable[[Any], Any], options: Options, welcome: wire.Welcome, kind: type[StateBase] = State
) -> Recording:
    """Run `body`, of a program called `name`, on a new state of `kind`. Raises what it raises, but for Observed."""
    recorder = Recorder(welcome)
    kept = ProgramRecord(name, recorder, options)
    state = kind(kept, kept.new_lane(), options.seed, Transcript())
    value, ended = None, None
    token = CURRENT.set(recorder)
    try:
        value = body(state)
        if isinstance(value, CoroutineType) and kind is not State:
            value = _played(value)
        elif isinstance(value, CoroutineType):
            value.close()  # as a run would: nobody awaits it
    except ArgumentObserved as e:
        ended = e
    finally:
        CURRENT.reset(token)
    with suppress(ArgumentObserved):  # before it sends states that were dropped and no more, it looks what is known
        kept.flush()
    kept.end()
    return Recording(recorder.programs, state, value, ended)


def _played(body: CoroutineType[Any, Any, Any]) -> Any:
    """What the body of an `async def` returns. Observed: it awaits something, which will come in its own time."""
    try:
        body.send(None)
    except StopIteration as e:
        return e.value
    assert body.cr_frame is not None  # it stands still there
    line = f"{Path(body.cr_code.co_filename).name}:{body.cr_frame.f_lineno}"
    with suppress(BaseException):  # what it does on its way out is no part of what it does
        body.close()
    raise ArgumentObserved(AWAITED, line)
