"""Programs without a model: their bodies run, what they append is kept, and what needs a value ends there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import CoroutineType
from typing import Any, NamedTuple, NoReturn

from banyan.backends.base import Question, Quiet
from banyan.backends.default import CURRENT
from banyan.prompt import Prompt
from banyan.record import Record
from banyan.runtime import wire
from banyan.runtime.promise import Promise
from banyan.sampling import Options
from banyan.slot import AWAITED, Observed
from banyan.source import source_line
from banyan.state import State
from banyan.transcript import Transcript


class Recording(NamedTuple):
    """What a body did. programs: the ops of each program, in order of their begins; the body's own is the first.

    value: what it returned. ended: why it ended before its end, at the value that it looked at; None if it did not.
    """

    programs: list[RecordedProgram]
    state: Prompt
    value: Any
    ended: Observed | None

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
        raise Observed(f"the backend's {what}", source_line())


class RecordedProgram(Quiet):
    """Its ops, as they came."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ops: list[wire.Op] = []

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        self.ops += ops

    def future(self, ref: int) -> Promise[wire.Value]:
        return Unmade(ref)


class Unmade(Promise[wire.Value]):
    """A value that nothing makes. Who looks whether it is there ends the body."""

    def __init__(self, ref: int) -> None:
        super().__init__()
        self._ref = ref

    def _observe(self, timeout: float | None = None) -> NoReturn:
        raise Observed(self._ref, source_line())

    done = result = exception = _observe


def record(
    name: str, body: Callable[[Any], Any], options: Options, welcome: wire.Welcome, kind: type[Prompt] = State
) -> Recording:
    """Run `body`, of a program called `name`, on a new state of `kind`. Raises what it raises, but for Observed."""
    recorder = Recorder(welcome)
    kept = Record(name, recorder, options)
    state = kind(kept, kept.new_lane(), options.seed, Transcript())
    value, ended = None, None
    token = CURRENT.set(recorder)
    try:
        value = body(state)
        if isinstance(value, CoroutineType) and kind is not State:
            value = _played(value)
        elif isinstance(value, CoroutineType):
            value.close()  # as a run would: nobody awaits it
    except Observed as e:
        ended = e
    finally:
        CURRENT.reset(token)
    with suppress(Observed):  # before it sends states that were dropped and no more, it looks what is known
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
    raise Observed(AWAITED, line)
