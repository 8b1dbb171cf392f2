"""Records the answers of a backend in a file, from which `Replay` gives the same answers without the backend."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from banyan.backends.base import Backend, OpenProgram, Question, enforces_schemas
from banyan.backends.job import CallTurn, LocalReader, Output, ToolResults
from banyan.backends.replay.recording_file import (
    OF_MODEL,
    VERSION,
    Digest,
    DigestedPrompt,
    Failure,
    Header,
    TapeEntry,
    Text,
    asked_of,
    encode,
)
from banyan.runtime.errors import BanyanError, Cancelled, ConfigError, DeadlineExceeded
from banyan.runtime.executor.executor import Executor, ProgramObserver
from banyan.runtime.executor.generation import Generation, add_usage
from banyan.runtime.executor.generator import Attempt, Done, GenOutcome
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire

_logger = logging.getLogger("banyan")


class Record:
    """Runs programs on `backend`, and writes the backend's answers to the file `path`. An existing file is replaced.

    Each entry is written when its value is known, so a run that is interrupted leaves a file that can be replayed up to
    that point. Close the Record, or use it in a `with` block. The end of the block waits for values that are not known
    yet, except on an event loop or after an exception. `backend` stays open. ConfigError: the file cannot be written,
    or this process was forked from the one that writes it. Programs continue if an entry cannot be written: the first
    error is logged, and raised by the end of the block or `close`. The file lacks only the entries that could not be
    written.
    """

    def __init__(self, backend: Backend, path: str | Path) -> None:
        self.backend, self.path, self._process = backend, Path(path), os.getpid()
        self._lock = threading.Lock()
        self._programs: weakref.WeakSet[_RecordedProgram] = weakref.WeakSet()
        self._end = 0  # bytes of the lines in the file
        self._error: Exception | None = None  # the first error of writing a line
        try:
            self._file = self.path.open("wb", buffering=0)  # a forked child would write a buffer again
        except OSError as e:
            raise ConfigError(f"the recording {path} cannot be written: {e}") from e
        weakref.finalize(self, self._file.close)
        self.enforces_schemas = enforces_schemas(backend)
        model = {name: getattr(backend.welcome, name) for name in OF_MODEL}
        self._put(Header(banyan="recording", version=VERSION, enforces_schemas=self.enforces_schemas, **model))
        if self._error is not None:
            raise ConfigError(f"the recording {path} cannot be written: {self._error}") from self._error

    def __repr__(self) -> str:
        return f"<Record of {self.backend!r} in {self.path}>"

    @property
    def welcome(self) -> wire.Welcome:
        return self.backend.welcome

    @property
    def refuses(self) -> frozenset[str]:
        """The features that `backend` does not have."""
        return self.backend.refuses

    def program(self, name: str = "") -> OpenProgram:
        if self._process != os.getpid():
            raise ConfigError(f"{self!r} belongs to process {self._process}, and this is its fork: make a Record here")
        program = _RecordedProgram(self.backend, name, self._put)
        self._programs.add(program)
        return program

    def ask(self, what: Question) -> Any:
        return self.backend.ask(what)

    def close(self) -> None:
        """Stop writing. Idempotent. ConfigError: an entry could not be written; raised once."""
        with self._lock:
            self._file.close()
            error, self._error = self._error, None
        if error is not None:
            raise ConfigError(f"the recording {self.path} is incomplete: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, raised: BaseException | None, *__: object) -> None:
        if raised is None and not _is_on_loop():
            for program in list(self._programs):
                program.settle()
        try:
            self.close()
        except ConfigError as e:
            if raised is None:
                raise
            raised.add_note(e.message)

    def _put(self, line: Header | TapeEntry) -> None:
        """Write a line; if that fails, remove the part that was written. The error is kept, and `close` raises
        it: this runs in callbacks of futures, in which an exception would only be logged."""
        with self._lock:
            if self._file.closed:
                return
            try:
                data = encode(line)
                left = memoryview(data)
                while left:
                    left = left[self._file.write(left) :]  # a disk that is nearly full may take only a part
                self._end += len(data)
            except (OSError, ValueError) as e:  # ValueError: half of a surrogate pair
                if self._error is None and self._end:  # `__init__` raises the error of the first line
                    _logger.warning("the recording %s is incomplete: %s", self.path, e)  # `close` may never be called
                self._error = self._error or e
                with suppress(OSError):  # a device cannot be truncated
                    self._file.truncate(self._end)
                    self._file.seek(self._end)


def _is_on_loop() -> bool:
    """Whether this thread runs an event loop. If so, the caller must not block, because programs may need the loop."""
    if (asyncio := sys.modules.get("asyncio")) is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Question:
    """A gen or select under way, and the entry for its current round: one try, or one turn of a tool loop."""

    def __init__(self) -> None:
        self.entry: TapeEntry | None = None
        self.digest = Digest()  # digest of the prompt that the state keeps, which lacks refused outputs
        self.round = 0
        self.attempt: _RecordedAttempt | None = None
        self.value: wire.Value | BaseException | None = None
        self.is_settled = False
        """Whether the value was written, as well as those that waited for it."""
        self.spent = wire.TokenUsage()  # usage of the rounds that were written
        self.called: wire.Called | None = None  # an output that the user's process is checking
        self.results: tuple[str, ...] = ()
        self.deltas: list[wire.Delta] = []

    def stream(self, number: int) -> dict[str, tuple[str, ...]]:
        """Returns the pieces in which the output of round `number` was streamed, as the fields of a TapeEntry: "pieces"
        (text) and "thoughts" (reasoning)."""
        deltas = [delta for delta in self.deltas if delta.round == number]
        return {
            "pieces": tuple(delta.text for delta in deltas if not delta.is_thought),
            "thoughts": tuple(delta.text for delta in deltas if delta.is_thought),
        }


class _RecordedAttempt(Attempt):
    """An attempt in the executor that computes the prompts (see _RecordedProgram). The answer of the recorded backend
    finishes it."""

    prompt: DigestedPrompt

    def __init__(self, program: _RecordedProgram, generation: Generation, done: Done) -> None:
        super().__init__(generation.op, generation.prompt, generation.round, done)
        self._begin = program.begin

    def start(self) -> None:
        self._begin(self)


class _RecordedProgram(LocalReader, ProgramObserver):
    """A program on the recorded backend, which generates all outputs. The backend does not report the prompts of gens,
    but the recording needs them. So an executor in this process runs the same ops with the backend's outputs."""

    def __init__(self, backend: Backend, name: str, put: Callable[[TapeEntry], None]) -> None:
        self._program, self._chat, self._name, self._put = backend.program(name), backend.welcome.chat, name, put
        self.future, self.generate_ahead = self._program.future, self._program.generate_ahead
        self._began, self._cancelled_at = time.monotonic(), 0.0
        self._end = inf  # when the timeout of the run or batch ends it
        self._late: Failure | None = None  # the error of this timeout
        self._lock = threading.RLock()
        self._answered = threading.Condition(self._lock)
        self._executor = Executor(self, self, self._lock)
        self._questions: dict[int, _Question] = {}
        self._keys: dict[str, str] = {}  # digest of a prompt that ends with an output -> key of the output's entry

    # ---- what the language calls -----------------------------------------------------------------------------------

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        refs = [op.ref for op in ops if isinstance(op, wire.Gen | wire.Select)]
        with self._lock:
            for op in ops:
                if isinstance(op, wire.Results):
                    self._questions[op.ref].results = op.texts
            for ref in refs:
                self._questions.setdefault(ref, _Question())
        for op in ops:
            if not isinstance(op, wire.Drop | wire.CacheHint):
                self._executor.queue(op)
        self._executor.pump()
        for ref in refs:
            self._program.future(ref).add_done_callback(partial(self._take, ref))
        self._program.submit(ops, last)

    def limit(self, limits: wire.ProgramLimits) -> None:
        if limits.timeout:
            late = DeadlineExceeded.of(limits.timeout_of, limits.timeout)
            self._end, self._late = self._began + limits.left, Failure(late.code, late.message)
        self._program.limit(limits)

    def cancel(self) -> None:
        self._cancelled_at = self._cancelled_at or time.monotonic()
        self._program.cancel()

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        def record(delta: wire.Delta) -> None:
            with self._lock:
                if (question := self._questions.get(ref)) is not None:
                    question.deltas.append(delta)
            callback(delta)

        self._program.on_delta(ref, record)

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        def record(called: wire.Called) -> None:
            self._take_call(ref, called)
            callback(called)

        self._program.on_call(ref, record)

    @property
    def first_error(self) -> BaseException | None:
        return self._program.first_error

    def settle(self) -> None:
        """Wait until all gens and selects so far are answered and written."""
        with self._answered:
            self._answered.wait_for(lambda: all(one.is_settled for one in self._questions.values()))

    # ---- what the executor calls -----------------------------------------------------------------------------------

    def prompt(self, program: Executor) -> DigestedPrompt:
        return DigestedPrompt(self._chat, self._name)

    def attempt(self, program: Executor, generation: Generation, done: Done) -> _RecordedAttempt:
        return _RecordedAttempt(self, generation, done)

    def begin(self, attempt: _RecordedAttempt) -> None:
        """Create the TapeEntry of an attempt: of a gen or select, a retry, or a turn with tools. The entry is written
        later, when the answer is known. The executor calls this when it starts the attempt; from then on the prompt of
        the attempt is known."""
        op, question = attempt.op, self._questions[attempt.op.ref]
        with self._lock:
            digest = attempt.prompt.digest()
            known = ((n, self._keys[one]) for n, one in reversed(attempt.prompt.outputs) if one in self._keys)
            n_known, after = next(known, (0, ""))
            parts: list[Text] = []
            for piece in attempt.prompt.pieces[n_known:]:
                part = piece.text if isinstance(piece, Output) else piece
                if parts and isinstance(part, str) and isinstance(parts[-1], str):
                    parts[-1] += part
                elif not isinstance(part, CallTurn | ToolResults):
                    parts.append(part)
            asked = asked_of(op)
            key = digest.key(asked)
            if (last := question.entry) is None:
                where: dict[str, Any] = {"program": self._name, "name": op.name, "state": op.state}
                entry = TapeEntry(**where, key=key, after=after, parts=tuple(parts), asked=asked)
            elif question.called is None:  # the calls of the previous round have results
                entry = replace(last, key=key, after=last.key, parts=(), answers=question.results)
            else:
                self._put_round(question, question.called)
                refused = (question.called.text, " ".join(question.results))
                entry = replace(last, key=key, refused=(*last.refused, refused))
                question.called = None
            if not entry.refused:
                question.digest = digest
            question.entry, question.round, question.attempt = entry, attempt.round, attempt
        if question.value is not None:
            self._finish(question)

    # ---- what the backend answers ----------------------------------------------------------------------------------

    def _take_call(self, ref: int, called: wire.Called) -> None:
        with self._lock:
            question = self._questions[ref]
            attempt, question.attempt = question.attempt, None
            if called.calls:
                self._put_round(question, called)
            else:
                question.called = called
                if question.entry is not None:
                    self._keys[question.digest.after(called.text)] = question.entry.key
        if attempt is not None:
            sample = wire.Sample(called.text, called.finish_reason)
            attempt.finish(GenOutcome((sample,), scores=called.scores, calls=called.calls))

    def _put_round(self, question: _Question, called: wire.Called) -> None:
        """Write the entry of one round of a gen, after which the gen continues: the output called tools, or the client
        refused it and the model tries again. called: the output."""
        if question.entry is not None:
            sample, stream = wire.Sample(called.text, called.finish_reason), question.stream(called.round)
            self._put(replace(question.entry, samples=(sample,), usage=called.usage, calls=called.calls, **stream))
            question.spent = add_usage(question.spent, called.usage)

    def _take(self, ref: int, future: ValueFuture[wire.Value]) -> None:
        question = self._questions[ref]
        with self._lock:
            question.value = future.exception() or future.result()
        try:
            if question.entry is not None:
                self._finish(question)
        finally:
            with self._answered:
                question.is_settled = True
                self._answered.notify_all()

    def _finish(self, question: _Question) -> None:
        """Write the entry of the last round. A gen that failed because an earlier value failed has no entry: the
        earlier error occurs again in a replay."""
        with self._lock:
            entry, value, attempt = question.entry, question.value, question.attempt
            question.entry = question.attempt = None
            if entry is None:
                return
            if isinstance(value, wire.Value):
                rest = add_usage(value.usage, question.spent, -1)
                stream = question.stream(question.round)
                self._put(
                    replace(
                        entry, samples=value.samples, usage=rest, scores=value.scores, prompt=value.prompt, **stream
                    )
                )
                self._keys[question.digest.after(value.samples[0].text)] = entry.key
            elif isinstance(value, BanyanError) and (failure := self._failure(value)) is not None:
                self._put(replace(entry, error=failure))
        if attempt is not None:
            attempt.finish(GenOutcome(value.samples) if isinstance(value, wire.Value) else BanyanError("it failed"))

    def _failure(self, error: BanyanError) -> Failure | None:
        """What the entry of a gen that failed with `error` says: Cancelled, if its branch was dropped. None: the gen
        gets no entry, because its program was cancelled."""
        if not isinstance(error, Cancelled) or not self._cancelled_at:
            return Failure(error.code, error.message)
        return self._late if self._cancelled_at >= self._end else None
