"""Programs that are executed in the user's process, for backends that only generate text: Mock, OpenAI, Replay.

A backend gets each gen and select as a Job, and answers it when it can, from any thread. If the backend answers inside
`start`, the program runs in the caller's thread, op by op.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from banyan.backends.base import ProgramDefaults
from banyan.backends.job import Job, LocalPrompt, LocalReader, as_banyan_error
from banyan.execution.clock import Alarm, clock
from banyan.runtime.errors import BanyanError, Cancelled, DeadlineExceeded, ProgramError
from banyan.runtime.executor.executor import Executor, ProgramObserver
from banyan.runtime.executor.generation import Generation
from banyan.runtime.executor.generator import Done, GenOutcome, Prompt
from banyan.runtime.executor.state import RunningState
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire


class JobBackend(Protocol):
    """A backend that only answers gens and selects. The rest of a program runs in the user's process."""

    @property
    def welcome(self) -> wire.Welcome: ...

    def start(self, job: Job) -> None:
        """Answer `job`, now or later. An exception that this raises becomes the answer."""


class LocalProgram(LocalReader, ProgramDefaults, ProgramObserver):
    """One program, and the futures of its values. Any thread may use it. Every future gets a value or an error."""

    def __init__(self, backend: JobBackend, name: str) -> None:
        self.name, self._backend, self._process = name, backend, os.getpid()
        self._lock = threading.RLock()
        self._executor = Executor(self, self, self._lock)
        self._futures: dict[int, ValueFuture[wire.Value]] = {}
        self._listeners: dict[int, Callable[[wire.Delta], None]] = {}
        self._callers: dict[int, Callable[[wire.Called], None]] = {}
        self._alarms: dict[int, Alarm] = {}  # by state
        self.first_error: BaseException | None = None

    # ---- what the language calls -----------------------------------------------------------------------------------

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        if self._executor.is_over:
            return
        for op in ops:
            self._executor.queue(op)
            if isinstance(op, wire.Gen | wire.Select):  # start it before the next ops are queued
                self._executor.pump()
        self._executor.is_last = last
        self._executor.pump()

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        with self._lock:
            future = self._futures.get(ref)
            if future is None:
                future = self._futures[ref] = ValueFuture()
                if self._executor.is_over:
                    future.set_exception(self._cancelled())
            return future

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        self._callers[ref] = callback

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        self._listeners[ref] = callback

    def cancel(self) -> None:
        if self._process != os.getpid():  # a forked child: its jobs run in the parent
            return
        self._executor.end()
        with self._lock:
            pending = [future for future in self._futures.values() if not future.done()]
        for future in pending:
            future.set_exception(self._cancelled())

    def _cancelled(self) -> Cancelled:
        return Cancelled("the program was cancelled", program=self.name)

    # ---- what jobs call --------------------------------------------------------------------------------------------

    def deliver(self, delta: wire.Delta) -> None:
        if (listener := self._listeners.get(delta.ref)) is not None:
            listener(delta)

    def ahead(self, state: int) -> list[str | wire.Gen]:
        """The texts and gens that follow the current gen of a state in the same turn, if already submitted."""
        found: list[str | wire.Gen] = []
        with self._lock:
            for op in self._executor.states[state].queue:
                if isinstance(op, wire.Append):
                    for part in op.parts:
                        if not isinstance(part, str):
                            return found
                        found.append(part)
                elif isinstance(op, wire.Gen):
                    found.append(op)
                else:
                    break
        return found

    # ---- what the executor calls -----------------------------------------------------------------------------------

    def prompt(self, program: Executor) -> Prompt:
        return LocalPrompt(self._backend.welcome.chat, self.name)

    def attempt(self, program: Executor, generation: Generation, done: Done) -> Job:
        return Job(self, self._backend.start, generation, done)

    def value(self, program: Executor, ref: int, outcome: GenOutcome) -> None:
        value = wire.Value(
            0, 0, ref, outcome.samples, outcome.usage, outcome.scores, outcome.times, prompt=outcome.prompt,
            rounds=outcome.rounds,
        )  # fmt: skip
        if not (future := self.future(ref)).done():
            future.set_result(value)

    def failed(self, program: Executor, ref: int, error: BanyanError) -> None:
        if isinstance(error, ProgramError):
            error.program = error.program or self.name
        if self.first_error is None and not isinstance(error, Cancelled):
            self.first_error = error
        if not (future := self.future(ref)).done():
            future.set_exception(error)

    def called(self, program: Executor, state: int, called: wire.Called) -> None:
        try:
            self._callers[called.ref](called)
        except Exception as e:  # otherwise the program would wait for results for ever
            error = as_banyan_error(e, f"the callback of value {called.ref} raised")
            self._executor.stop(self._executor.states[state], error)

    def started(self, program: Executor, state: RunningState, op: wire.Gen | wire.Select) -> None:
        if op.timeout:
            error = DeadlineExceeded.of("gen" if isinstance(op, wire.Gen) else "select", op.timeout)
            late = partial(self._executor.stop, state, error, state.generation)
            self._alarms[state.number] = clock().call(time.monotonic() + op.timeout, late)

    def stopped(self, program: Executor, state: RunningState) -> None:
        if (alarm := self._alarms.pop(state.number, None)) is not None:
            alarm.cancel()
