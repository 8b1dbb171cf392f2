"""Record what a backend answers into a file, to replay it without the backend: tests and demos of real runs."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from banyan.backends.base import Backend, OpenProgram, Question
from banyan.backends.job import CallTurn, Output, Piece, ToolResults
from banyan.backends.replay.recording_file import VERSION, Digest, Failure, Header, TapeEntry, Text, asked_of
from banyan.runtime.errors import BanyanError, Cancelled, ConfigError
from banyan.runtime.executor.generation import add_usage, correction
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire


class Record:
    """Runs programs on `backend` and writes what it answers to the file `path`, which is replaced.

    An entry is written when its value is known, so a run that is cut short leaves a file that can be replayed as far as
    it came. ConfigError: the file cannot be written. Close it, or use it in a `with` block, which waits at its end for
    what its programs asked for (not on an event loop, and not where it raises); `backend` is left open.
    """

    def __init__(self, backend: Backend, path: str | Path) -> None:
        self.backend, self.path = backend, Path(path)
        self._lock = threading.Lock()
        self._programs: weakref.WeakSet[_Recorded] = weakref.WeakSet()
        try:
            self._file = self.path.open("wb")
        except OSError as e:
            raise ConfigError(f"the recording {path} cannot be written: {e}") from e
        weakref.finalize(self, self._file.close)
        known = backend.welcome
        self._put(
            Header(
                banyan="recording",
                version=VERSION,
                model=known.model,
                max_context=known.max_context,
                chat=known.chat,
            )
        )

    def __repr__(self) -> str:
        return f"<Record of {self.backend!r} in {self.path}>"

    @property
    def welcome(self) -> wire.Welcome:
        return self.backend.welcome

    @property
    def refuses(self) -> frozenset[str]:
        """What the other backend refuses."""
        return self.backend.refuses

    def program(self, name: str = "") -> OpenProgram:
        program = _Recorded(self.backend.program(name), name, self._put)
        self._programs.add(program)
        return program

    def ask(self, what: Question) -> Any:
        return self.backend.ask(what)

    def close(self) -> None:
        """Write no more. Idempotent."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        if raised is None and not _is_on_loop():
            for program in list(self._programs):
                program.settle()
        self.close()

    def _put(self, line: Header | TapeEntry) -> None:
        data = msgspec.json.encode(line) + b"\n"
        with self._lock:
            if not self._file.closed:
                self._file.write(data)
                self._file.flush()


def _is_on_loop() -> bool:
    """Whether this thread runs an event loop, which may be what programs wait for."""
    if (asyncio := sys.modules.get("asyncio")) is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Shadow:
    """What a state says, with values in the making as Refs. since: behind its newest gen; own: since it was forked."""

    __slots__ = ("base", "own", "parent", "role", "since", "start")

    def __init__(self, parent: _Shadow | None = None) -> None:
        self.parent = parent
        self.base: int | None = None if parent is None else parent.base
        self.since: list[wire.Part] = [] if parent is None else list(parent.since)
        self.role: str | None = None if parent is None else parent.role
        self.start = 0 if parent is None else len(parent.own)
        self.own: list[wire.Part] = []

    def put(self, part: wire.Part) -> None:
        if isinstance(part, wire.Begin | wire.End):
            self.role = part.role if isinstance(part, wire.Begin) else None
        self.since.append(part)
        self.own.append(part)

    def adopt(self, branch: _Shadow) -> None:
        """Go on as a branch, or as a branch of one."""
        self.base, self.since, self.role = branch.base, list(branch.since), branch.role
        own: list[wire.Part] = []
        one, end = branch, len(branch.own)
        while one is not self:
            own = one.own[:end] + own
            assert one.parent is not None
            one, end = one.parent, one.start
        self.own += own


class _RecordedQuestion:
    """A gen or select on its way."""

    __slots__ = ("after", "answers", "called", "digest", "heard", "key", "op", "outcome", "parts", "role")

    def __init__(
        self, op: wire.Gen | wire.Select, after: int | None, parts: Sequence[wire.Part], role: str | None
    ) -> None:
        self.op, self.after, self.parts, self.role = op, after, tuple(parts), role
        self.outcome: wire.Value | BaseException | None = None
        self.digest: Digest | None = None
        """Of the prompt and the answer, once both are known and no error."""
        self.key = ""
        self.heard: list[wire.Delta] = []
        self.called: list[wire.Called] = []
        self.answers: list[tuple[str, ...]] = []
        """Of each round with calls."""

    def told(self, number: int) -> dict[str, tuple[str, ...]]:
        """What came of round `number`, where it streamed: fields of an Entry."""
        of_round = [delta for delta in self.heard if delta.round == number]
        return {
            "pieces": tuple(delta.text for delta in of_round if not delta.is_thought),
            "thoughts": tuple(delta.text for delta in of_round if delta.is_thought),
        }

    def needs(self) -> Iterator[int]:
        if self.after is not None:
            yield self.after
        yield from (part.ref for part in self.parts if isinstance(part, wire.Ref))


class _Recorded:
    """A program on the backend, overheard."""

    def __init__(self, program: OpenProgram, name: str, put: Callable[[TapeEntry], None]) -> None:
        self._program, self._name, self._put = program, name, put
        self._lock = threading.RLock()
        self._written = threading.Condition(self._lock)
        self._states = {0: _Shadow()}
        self._asked: dict[int, _RecordedQuestion] = {}
        self._pending: list[_RecordedQuestion] = []  # answered, but not written: what they go on from was not there yet

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        new = []
        with self._lock:
            for op in ops:
                self._follow(op)
                if isinstance(op, wire.Gen | wire.Select):
                    new.append(self._asked[op.ref])
        for asked in new:
            future = self._program.future(asked.op.ref)
            future.add_done_callback(partial(self._answered, asked))
        self._program.submit(ops, last)

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        return self._program.future(ref)

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        heard: list[wire.Delta] = []

        def hear(delta: wire.Delta) -> None:
            with self._lock:
                asked = self._asked.get(ref)
                (heard if asked is None else asked.heard).append(delta)
            callback(delta)

        self._program.on_delta(ref, hear)

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        def hear(called: wire.Called) -> None:
            with self._lock:
                self._asked[ref].called.append(called)
            callback(called)

        self._program.on_call(ref, hear)

    @property
    def first_error(self) -> BaseException | None:
        return self._program.first_error

    def settle(self) -> None:
        """Wait until all that was asked for by now is answered, and written."""
        with self._written:
            self._written.wait_for(lambda: all(one.outcome is not None for one in self._asked.values()))

    def limit(self, limits: wire.ProgramLimits) -> None:
        self._program.limit(limits)

    def foresee(self, n_tokens: int) -> None:
        self._program.foresee(n_tokens)

    def cancel(self) -> None:
        self._program.cancel()

    def _follow(self, op: wire.Op) -> None:
        state = self._states[op.state]
        match op:
            case wire.Append(parts=parts):
                for part in parts:
                    state.put(part)
            case wire.Gen(ref=ref) | wire.Select(ref=ref):
                self._asked[ref] = _RecordedQuestion(op, state.base, state.since, state.role)
                state.base, state.since = ref, []
                state.own.append(wire.Ref(ref))
            case wire.Fork(children=children):
                for child in children:
                    self._states[child] = _Shadow(state)
            case wire.Join(children=(child,), adopt=True):
                state.adopt(self._states[child])
            case wire.Join(children=children):
                for child in children:
                    for part in self._states[child].own:
                        state.put(part)
            case wire.Results(ref=ref, texts=texts):
                self._asked[ref].answers.append(texts)

    def _answered(self, asked: _RecordedQuestion, future: ValueFuture[wire.Value]) -> None:
        with self._lock:
            asked.outcome = future.exception() or future.result()
            self._pending.append(asked)
            is_moving = True
            while is_moving:
                is_moving = False
                for one in tuple(self._pending):
                    if all(self._asked[ref].outcome is not None for ref in one.needs() if ref in self._asked):
                        self._pending.remove(one)
                        self._write(one)
                        is_moving = True
            self._written.notify_all()

    def _write(self, asked: _RecordedQuestion) -> None:
        """Errors that come from what it goes on from are not written: they come again by themselves."""
        after = None if asked.after is None else self._asked[asked.after]
        digest = Digest() if after is None else after.digest
        parts: list[Text] = []
        for part in asked.parts:
            if isinstance(part, wire.Ref):
                value = self._program.future(part.ref)
                if not value.done() or value.exception() is not None:
                    return
                part = value.result().samples[0].text
            if parts and isinstance(part, str) and isinstance(parts[-1], str):
                parts[-1] += part
            elif not isinstance(part, wire.Arg):  # those are of templates
                parts.append(part)
        if digest is None or isinstance(asked.outcome, Cancelled):
            return
        asked.digest = digest.copy()
        for part in parts:
            asked.digest.put(part)
        self._write_rounds(asked, after.key if after is not None else "", tuple(parts), asked.digest)

    def _write_rounds(self, asked: _RecordedQuestion, after: str, parts: tuple[Text, ...], digest: Digest) -> None:
        question = asked_of(asked.op)
        entry = TapeEntry(program=self._name, name=asked.op.name, state=asked.op.state, key="", asked=question)
        spent, n_rounds = wire.TokenUsage(), 0
        asking = digest.copy()  # tries that were refused are asked about, and leave nothing in the state
        rounds = zip(asked.called, asked.answers, strict=False) if isinstance(asked.op, wire.Gen) else ()
        for called, texts in rounds:
            if not called.calls and not texts:
                break  # it was taken: this is the outcome
            entry = replace(entry, key=asking.key(question), after=after, parts=parts)
            said = (wire.Sample(called.text, called.finish_reason),)
            self._put(replace(entry, samples=said, usage=called.usage, calls=called.calls, **asked.told(called.round)))
            spent, n_rounds = add_usage(spent, called.usage), called.round + 1
            for piece in _between(asked.role, called, texts):
                asking.put(piece)
                if called.calls:
                    digest.put(piece)
            if called.calls:
                after, parts, entry = entry.key, (), replace(entry, answers=texts)
            else:
                entry = replace(entry, refused=(*entry.refused, (called.text, " ".join(texts))))
        asked.key = asking.key(question)
        entry = replace(entry, key=asked.key, after=after, parts=parts)
        match asked.outcome:
            case wire.Value(samples=samples, usage=usage, scores=scores):
                digest.put(samples[0].text)
                rest = add_usage(usage, spent, -1)
                self._put(replace(entry, samples=samples, usage=rest, scores=scores, **asked.told(n_rounds)))
            case BanyanError(code=code, message=message):
                asked.digest = None
                self._put(replace(entry, error=Failure(code, message)))
            case _:
                asked.digest = None


def _between(role: str | None, called: wire.Called, texts: tuple[str, ...]) -> tuple[Piece, ...]:
    """What stands in the prompt of a round behind that of the round before."""
    if called.calls:
        results = ToolResults(tuple(zip([call.id for call in called.calls], texts, strict=True)))
        return CallTurn(called.text, called.calls), results
    return Output(called.text), *correction(role, texts)
