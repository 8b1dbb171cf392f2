"""Records the answers of a backend in a file, to replay them without the backend: for tests and demos of real runs."""

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
    """Runs programs on `backend`, and writes its answers to the file `path`, which is replaced.

    Each entry is written when its value is known, so a run that is interrupted leaves a file that can be replayed up to
    there. Close it, or use it in a `with` block, whose end waits for the open values of its programs (not on an event
    loop, and not after an exception). `backend` stays open. ConfigError: the file cannot be written.
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
                banyan="recording", version=VERSION, model=known.model, max_context=known.max_context, chat=known.chat
            )
        )

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
        program = _Recorded(self.backend.program(name), name, self._put)
        self._programs.add(program)
        return program

    def ask(self, what: Question) -> Any:
        return self.backend.ask(what)

    def close(self) -> None:
        """Stop writing. Idempotent."""
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
    """Whether this thread runs an event loop, which programs may wait for."""
    if (asyncio := sys.modules.get("asyncio")) is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _ShadowState:
    """What was appended to a state, with values as Refs.

    base: the ref of its last gen. since: the parts behind that. own: the parts since it was forked. start: how many
    parts the parent had then.
    """

    __slots__ = ("base", "own", "parent", "role", "since", "start")

    def __init__(self, parent: _ShadowState | None = None) -> None:
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

    def adopt(self, branch: _ShadowState) -> None:
        """Go on as a state forked from this one, at any depth."""
        self.base, self.since, self.role = branch.base, list(branch.since), branch.role
        own: list[wire.Part] = []
        one, end = branch, len(branch.own)
        while one is not self:
            own = one.own[:end] + own
            assert one.parent is not None
            one, end = one.parent, one.start
        self.own += own


class _RecordedQuestion:
    """A gen or select, and what is known of its answer."""

    __slots__ = ("after", "answers", "called", "deltas", "digest", "key", "op", "outcome", "parts", "role")

    def __init__(
        self, op: wire.Gen | wire.Select, after: int | None, parts: Sequence[wire.Part], role: str | None
    ) -> None:
        self.op, self.after, self.parts, self.role = op, after, tuple(parts), role
        self.outcome: wire.Value | BaseException | None = None
        self.digest: Digest | None = None
        """Of the prompt and the answer, once both are known and none is an error."""
        self.key = ""
        self.deltas: list[wire.Delta] = []
        self.called: list[wire.Called] = []
        self.answers: list[tuple[str, ...]] = []
        """The Results of each round."""

    def stream(self, number: int) -> dict[str, tuple[str, ...]]:
        """The stream of round `number`, as fields of a TapeEntry."""
        of_round = [delta for delta in self.deltas if delta.round == number]
        return {
            "pieces": tuple(delta.text for delta in of_round if not delta.is_thought),
            "thoughts": tuple(delta.text for delta in of_round if delta.is_thought),
        }

    def needs(self) -> Iterator[int]:
        """The refs whose values must be known before it can be written."""
        if self.after is not None:
            yield self.after
        yield from (part.ref for part in self.parts if isinstance(part, wire.Ref))


class _Recorded:
    """A program on the backend whose ops, streams and values are recorded."""

    def __init__(self, program: OpenProgram, name: str, put: Callable[[TapeEntry], None]) -> None:
        self._program, self._name, self._put = program, name, put
        self._lock = threading.RLock()
        self._written = threading.Condition(self._lock)
        self._states = {0: _ShadowState()}
        self._asked: dict[int, _RecordedQuestion] = {}
        self._pending: list[_RecordedQuestion] = []  # answered, but values before them are not known yet

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
        def record(delta: wire.Delta) -> None:
            with self._lock:
                if (asked := self._asked.get(ref)) is not None:
                    asked.deltas.append(delta)
            callback(delta)

        self._program.on_delta(ref, record)

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        def record(called: wire.Called) -> None:
            with self._lock:
                self._asked[ref].called.append(called)
            callback(called)

        self._program.on_call(ref, record)

    @property
    def first_error(self) -> BaseException | None:
        return self._program.first_error

    def settle(self) -> None:
        """Wait until all gens and selects so far are answered and written."""
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
                    self._states[child] = _ShadowState(state)
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
            while (ready := next(filter(self._is_ready, self._pending), None)) is not None:
                self._pending.remove(ready)
                self._write(ready)
            self._written.notify_all()

    def _is_ready(self, asked: _RecordedQuestion) -> bool:
        return all(self._asked[ref].outcome is not None for ref in asked.needs() if ref in self._asked)

    def _write(self, asked: _RecordedQuestion) -> None:
        """Errors of values that it depends on are not written: in a replay they occur again."""
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
        asking = digest.copy()  # has refused outputs too, which the state does not get
        rounds = zip(asked.called, asked.answers, strict=False) if isinstance(asked.op, wire.Gen) else ()
        for called, texts in rounds:
            if not called.calls and not texts:
                break  # the output was accepted
            entry = replace(entry, key=asking.key(question), after=after, parts=parts)
            sample = wire.Sample(called.text, called.finish_reason)
            self._put(
                replace(entry, samples=(sample,), usage=called.usage, calls=called.calls, **asked.stream(called.round))
            )
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
                self._put(replace(entry, samples=samples, usage=rest, scores=scores, **asked.stream(n_rounds)))
            case BanyanError(code=code, message=message):
                asked.digest = None
                self._put(replace(entry, error=Failure(code, message)))
            case _:
                asked.digest = None


def _between(role: str | None, called: wire.Called, texts: tuple[str, ...]) -> tuple[Piece, ...]:
    """What the prompt of a round has behind that of the round before."""
    if called.calls:
        results = ToolResults(tuple(zip([call.id for call in called.calls], texts, strict=True)))
        return CallTurn(called.text, called.calls), results
    return Output(called.text), *correction(role, texts)
