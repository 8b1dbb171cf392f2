"""A backend without a model, for tests of programs: it does all that a program says, and answers by a script."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from typing import Any, NamedTuple, TypeAlias

from banyan.backends.base import Question
from banyan.runtime import wire
from banyan.runtime.errors import BadProgram, BanyanError, Cancelled, ProgramError

CHAT = wire.ChatMarkers(
    roles={name: (f"<|im_start|>{name}\n", "<|im_end|>\n") for name in ("system", "user", "assistant", "tool")},
    stop=("<|im_end|>",),
)
"""The markers that a Mock writes around turns."""

Answer: TypeAlias = "str | wire.Sample"
Script: TypeAlias = "str | Sequence[Answer] | Mapping[str, Answer | Sequence[Answer]] | Callable[[str, str], Answer]"


class Call(NamedTuple):
    """One gen or select that a Mock answered: the prompt it stood at, and what it asked for."""

    prompt: str
    name: str
    op: wire.Gen | wire.Select


class Mock:
    """Answers gens and selects by `script`:

    a function (prompt, name) -> answer; a dict from a gen's name to its answer, or to a list of them, one for each
    time; a list of answers in the order of calls; or one string, always the same. For n > 1 it is asked n times.

    An answer is what the model would say. Like a model's, it ends before the first of the gen's stop strings, or before
    the end of the turn. There are no tokens: what max_tokens, temperature and the other sampling options would do to an
    answer is for the script to say, which may give a `wire.Sample` with its finish_reason, n_tokens and logprobs;
    `calls` tells what was asked for. A select must be answered by one of its choices.

    An exception in the script fails that gen, and is the cause of the ProgramError that its reader gets.
    """

    def __init__(self, script: Script = "", *, chat: wire.ChatMarkers | None = CHAT) -> None:
        self.welcome = wire.Welcome(version=wire.VERSION, model="mock", max_context=1 << 31, chat=chat)
        self.calls: list[Call] = []
        """All gens and selects so far, in the order of their answers."""
        self.submits: list[tuple[wire.Op, ...]] = []
        """All messages so far."""
        self._script = script
        self._n_asked: dict[str, int] = {}
        self._lock = threading.Lock()

    def program(self, name: str = "") -> _Program:
        return _Program(self, name)

    def ask(self, what: Question) -> Any:
        """ "info" and "stats" tell the model's name and what was done; there is nothing to flush or to check."""
        return {"model": "mock", "n_calls": len(self.calls), "n_submits": len(self.submits)}

    def answer(self, prompt: str, name: str) -> Answer:
        """The script's next answer."""
        script: Any = self._script
        if callable(script):
            return script(prompt, name)  # type: ignore[no-any-return]
        key = ""
        if isinstance(script, Mapping):
            if name not in script:
                raise LookupError(f"it has no answer for {name!r}, only for {', '.join(script)}")
            key, script = name, script[name]
        if isinstance(script, str | wire.Sample):
            return script
        with self._lock:
            i = self._n_asked.get(key, 0)
            self._n_asked[key] = i + 1
        if i >= len(script):
            raise LookupError(
                f"it has only {len(script)} answers{f' for {key!r}' if key else ''}, and this is one more"
            )
        return script[i]  # type: ignore[no-any-return]


class _State:
    """A prompt in the making."""

    def __init__(self, text: str = "", role: str | None = None, error: BanyanError | None = None) -> None:
        self.text, self.role, self.error = text, role, error
        self.n_inherited = len(text)
        self.marks: dict[int, int] = {}


class _Program:
    """Does each op as it is submitted, in the caller's thread: the same program gives the same calls every time."""

    def __init__(self, mock: Mock, name: str) -> None:
        self._mock, self._name = mock, name
        self._states = {0: _State()}
        self._values: dict[int, str] = {}
        self._futures: dict[int, Future[wire.Value]] = {}
        self._listeners: dict[int, Callable[[str], None]] = {}
        self._is_cancelled = False
        self._lock = threading.Lock()

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        self._mock.submits.append(tuple(ops))
        for op in ops:
            state = self._states[op.state]
            try:
                if self._is_cancelled:
                    raise Cancelled("the program was cancelled", program=self._name)
                if state.error is not None:
                    raise copy(state.error) from state.error.__cause__
                self._do(state, op)
            except BanyanError as e:
                self._fail(state, op, e)

    def future(self, ref: int) -> Future[wire.Value]:
        with self._lock:
            return self._futures.setdefault(ref, Future())

    def on_delta(self, ref: int, callback: Callable[[str], None]) -> None:
        self._listeners[ref] = callback

    def cancel(self) -> None:
        self._is_cancelled = True

    # ---- ops -------------------------------------------------------------------------------------------------------

    def _do(self, state: _State, op: wire.Op) -> None:
        match op:
            case wire.Append(parts=parts):
                for part in parts:
                    self._append(state, part)
            case wire.Gen() | wire.Select():
                self._give(op.ref, self._generate(state, op))
                state.text += self._values[op.ref]
            case wire.Read(ref=ref, mark=mark):
                start = 0 if mark is None else state.marks[mark]
                self._give(ref, (wire.Sample(state.text[start:], "stop"),))
            case wire.Mark(mark=mark):
                state.marks[mark] = len(state.text)
            case wire.Fork(children=children):
                for child in children:
                    self._states[child] = _State(state.text, state.role)
                    self._states[child].marks = dict(state.marks)
            case wire.Join(children=children):
                for branch in map(self._states.__getitem__, children):
                    if branch.error is not None:
                        raise copy(branch.error) from branch.error.__cause__
                    state.text += branch.text[branch.n_inherited :]
            case wire.Drop():
                pass  # nothing runs on: all was done when it was submitted

    def _append(self, state: _State, part: wire.Part) -> None:
        match part:
            case str():
                state.text += part
            case wire.Raw(text=text):
                state.text += text
            case wire.Ref(ref=ref):
                if ref not in self._values:
                    raise BadProgram("a value that is spliced here failed", program=self._name)
                state.text += self._values[ref]
            case wire.Begin(role=role):
                state.text += self._markers(role)[0]
                state.role = role
            case wire.End():
                state.text += self._markers(state.role or "")[1]
                state.role = None

    def _markers(self, role: str) -> tuple[str, str]:
        chat = self._mock.welcome.chat
        if chat is None or role not in chat.roles:
            raise BadProgram(f"this Mock's chat markers know no role {role!r}", program=self._name)
        return chat.roles[role]

    def _generate(self, state: _State, op: wire.Gen | wire.Select) -> tuple[wire.Sample, ...]:
        mock = self._mock
        mock.calls.append(Call(state.text, op.name, op))
        try:
            if isinstance(op, wire.Gen):
                stops = (*op.sampling.stop, *(mock.welcome.chat.stop if mock.welcome.chat and state.role else ()))
                answers = [mock.answer(state.text, op.name) for _ in range(op.sampling.n)]
                samples = tuple(_sample(answer, stops) for answer in answers)
                if op.stream and (listener := self._listeners.get(op.ref)):
                    for piece in re.findall(r"\S+\s*|\s+", samples[0].text):
                        listener(piece)
                return samples
            sample = _sample(mock.answer(state.text, op.name), ())
            if sample.text not in op.choices:
                raise ValueError(f"{sample.text!r} is not among the choices: {', '.join(op.choices)}")
            return (sample,)
        except Exception as e:
            raise ProgramError(
                f"the script of the Mock raised {type(e).__name__}: {e}",
                program=self._name,
                gen=op.name,
                line=op.line,
                prompt_tail=state.text[-80:],
            ) from e

    def _give(self, ref: int, samples: tuple[wire.Sample, ...]) -> None:
        self._values[ref] = samples[0].text
        self.future(ref).set_result(wire.Value(0, 0, ref, samples))

    def _fail(self, state: _State, op: wire.Op, error: BanyanError) -> None:
        """What follows in the state fails too; other states go on."""
        state.error = state.error or error
        if isinstance(op, wire.Gen | wire.Select | wire.Read):
            self.future(op.ref).set_exception(error)
        elif isinstance(op, wire.Fork):
            for child in op.children:
                self._states[child] = _State(error=error)


def _sample(answer: Answer, stops: Sequence[str]) -> wire.Sample:
    """The answer, cut before the first stop string in it."""
    if isinstance(answer, wire.Sample):
        return answer
    if not isinstance(answer, str):
        raise TypeError(f"a script answers with a string or a wire.Sample, not {answer!r}")
    found = min(((at, stop) for stop in stops if (at := answer.find(stop)) >= 0), default=None)
    return wire.Sample(answer, "stop") if found is None else wire.Sample(answer[: found[0]], "stop", matched=found[1])
