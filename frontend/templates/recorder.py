"""Runs a program's body without a model and keeps the ops that it appends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import CoroutineType
from typing import Any, NamedTuple, NoReturn

from banyan.backends.base import ProgramDefaults, Question
from banyan.backends.default import using
from banyan.execution.program_record import ProgramRecord
from banyan.execution.source_line import source_line
from banyan.lang.sampling import Options
from banyan.lang.state import State
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import BanyanError
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from banyan.templates.argument_slot import AWAITED, ArgumentObserved, ArgumentSlot
from banyan.views.transcript import Transcript


class Recording(NamedTuple):
    """What a body did. programs: the recorded programs; the first is the body's own, the others are those that it
    called.

    value: what the body returned. ended: the argument or value at which the recording ended early; None: the body ran
    to its end.
    """

    programs: list[RecordedProgram]
    state: StateBase
    value: Any
    ended: ArgumentObserved | None

    @property
    def ops(self) -> list[wire.Op]:
        return self.programs[0].ops


class Recorder:
    """A backend that runs no model: it only stores the ops of a program. welcome: what the real backend says about
    itself and its model, because a body may depend on it."""

    refuses: frozenset[str] = frozenset()
    is_recorder = True
    """Marks a recorder. Programs that the body calls run on the recorder, even if they name another backend."""

    def __init__(self, welcome: wire.Welcome) -> None:
        self.welcome = welcome
        self.programs: list[RecordedProgram] = []
        self.observed: ArgumentObserved | None = None
        """The error that ended the recording. The body may have caught it."""
        self.flush: Callable[[], None] | None = None
        """Submits all ops that the body has appended so far."""
        self.is_ended = False
        """Whether the recording has ended. Later ops are ignored: only a body that caught `observed` appends them."""

    def program(self, name: str = "") -> RecordedProgram:
        self.programs.append(RecordedProgram(name, self))
        return self.programs[-1]

    def ask(self, what: Question) -> NoReturn:
        self.observe(f"the backend's {what}")

    def observe(self, what: str | int) -> NoReturn:
        """End the recording because the body needs a value that does not exist. Raises ArgumentObserved.

        what: a description of the value, or the number of a generated value.
        """
        self.end(ArgumentObserved(what, source_line()))
        assert self.observed is not None
        raise self.observed

    def end(self, observed: ArgumentObserved) -> None:
        """End the recording with the ops that the body has appended so far. observed: the reason. Only the first call
        has an effect."""
        if self.observed is not None:
            return
        self.observed = observed
        if self.flush is not None:
            with suppress(ArgumentObserved, BanyanError):  # see `record`; the body may have stopped its program
                self.flush()
        self.is_ended = True


class RecordedProgram(ProgramDefaults):
    """The backend's side of one recorded program: `submit` stores the ops instead of running them."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name, self._recorder = name, recorder
        self.ops: list[wire.Op] = []

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        if not self._recorder.is_ended:
            self.ops += ops

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        return RecordedFuture(ref, self._recorder)


class RecordedFuture(ValueFuture[wire.Value]):
    """The future of a value that is never generated. Any use of the future ends the recording."""

    def __init__(self, ref: int, recorder: Recorder) -> None:
        super().__init__()
        self._ref, self._recorder = ref, recorder

    def _observe(self, timeout: float | None = None) -> NoReturn:
        self._recorder.observe(self._ref)

    done = result = exception = _observe


def record(
    name: str,
    body: Callable[[Any], Any],
    options: Options,
    welcome: wire.Welcome,
    state_class: type[StateBase] = State,
    slots: Iterable[ArgumentSlot] = (),
) -> Recording:
    """Run `body` once on a new state, without a model, and record its ops. Raises what the body raises, except
    ArgumentObserved: this ends the recording, also if the body catches it.

    name: the program's name. welcome: what the real backend says about itself. slots: the slots among the body's
    arguments.
    """
    recorder = Recorder(welcome)
    record = ProgramRecord(name, recorder, options)
    recorder.flush = record.flush
    for slot in slots:
        slot.on_observed = recorder.end
    state = state_class(record, record.new_handle(), options.seed, Transcript())
    value, ended = None, None
    try:
        with using(recorder):
            value = body(state)
            if isinstance(value, CoroutineType):
                if state_class is State:
                    value.close()  # as in a run: nobody awaits it
                else:
                    value = _run_coroutine(value)
    except ArgumentObserved as e:
        ended = e
    ended = recorder.observed or ended  # also if a bare `except` of the body caught it
    recorder.flush = None  # breaks the reference cycle with the record
    with suppress(ArgumentObserved):  # `flush` asks whether the values of dropped states are done
        record.flush()
    record.end()
    return Recording(recorder.programs, state, value, ended)


def _run_coroutine(body: CoroutineType[Any, Any, Any]) -> Any:
    """Run an `async def` body without an event loop. Returns its value. ArgumentObserved: the body awaits something."""
    try:
        body.send(None)
    except StopIteration as e:
        return e.value
    assert body.cr_frame is not None  # the coroutine is suspended there
    line = f"{Path(body.cr_code.co_filename).name}:{body.cr_frame.f_lineno}"
    with suppress(BaseException):  # what it raises while it is closed is not part of the recording
        body.close()
    raise ArgumentObserved(AWAITED, line)
