"""The executor of Mock, OpenAI and Replay agrees with a reference interpreter, with answers in any order."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import banyan as bn
from banyan.backends.job import CHATML, Job, LocalPrompt
from banyan.backends.local import LocalProgram
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.executor.piece_list import PieceList
from banyan.runtime.protocol import wire
from forms import examples

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def reference(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """Random programs and their reference interpreter, from the test of the server."""
    return module_at(ROOT / "tests/runtime/server/programs/test_any_program.py")


class ManualBackend:
    """Holds jobs until the test answers one."""

    welcome = wire.Welcome(version=wire.VERSION, model="manual", max_context=1, chat=CHATML)

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.jobs: list[Job] = []
        self.n_stopped = 0
        self._answer = answer

    def program(self, name: str = "") -> LocalProgram:
        return LocalProgram(self, name)

    def ask(self, what: str) -> Any:
        return {}

    def start(self, job: Job) -> None:
        self.jobs.append(job)
        job.on_stop(lambda: self._record_stop(job))

    def _record_stop(self, job: Job) -> None:
        self.n_stopped += 1
        self.jobs.remove(job)

    def answer_job(self, i: int) -> None:
        job = self.jobs.pop(i)
        text = job.op.choices[0] if isinstance(job.op, wire.Select) else self._answer(job.text)
        if isinstance(job.op, wire.Gen) and job.op.stream:
            for character in text:
                job.deliver(character)
        job.finish(GenOutcome((wire.Sample(text, "stop"),)))


def run_ops(
    backend: ManualBackend,
    ops: list[wire.Op],
    data: st.DataObject,
    on_delta: Callable[[wire.Delta], None] = lambda delta: None,
) -> LocalProgram:
    program = LocalProgram(backend, "test")
    for op in ops:
        if isinstance(op, wire.Gen) and op.stream:
            program.on_delta(op.ref, on_delta)
    while ops:
        n = data.draw(st.integers(1, len(ops)), label="ops in this message")
        program.submit(ops[:n])
        ops = ops[n:]
        for _ in range(data.draw(st.integers(0, 3), label="answers")):
            if backend.jobs:
                backend.answer_job(data.draw(st.integers(0, len(backend.jobs) - 1)))
    return program


def finish(backend: ManualBackend) -> None:
    while backend.jobs:
        backend.answer_job(0)


def refs_of(ops: list[wire.Op]) -> list[int]:
    return [op.ref for op in ops if isinstance(op, wire.Gen | wire.Select | wire.Read)]


def outcomes(program: LocalProgram, ops: list[wire.Op]) -> dict[int, Any]:
    futures = {ref: program.future(ref) for ref in refs_of(ops)}
    assert all(future.done() for future in futures.values())
    return {ref: f.exception() or f.result().samples[0].text for ref, f in futures.items()}


@examples(15, 100, given(data=st.data()), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_and_streams_agree_with_the_reference(reference: ModuleType, data: st.DataObject) -> None:
    ops = data.draw(reference.program(may_drop=False))
    backend, streamed = ManualBackend(reference.answer), defaultdict[int, str](str)

    def add(delta: wire.Delta) -> None:
        streamed[delta.ref] += delta.text

    program = run_ops(backend, ops, data, add)
    finish(backend)
    values = outcomes(program, ops)
    assert values == reference.interpret(ops, chosen=lambda ref: values[ref])
    assert streamed == {op.ref: values[op.ref] for op in ops if isinstance(op, wire.Gen) and op.stream}


@examples(
    15,
    100,
    given(data=st.data(), may_cancel=st.booleans()),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_value_resolves_when_states_are_dropped_or_cancelled(
    reference: ModuleType, data: st.DataObject, may_cancel: bool
) -> None:
    ops = data.draw(reference.program(may_drop=True))
    backend = ManualBackend(reference.answer)
    program = run_ops(backend, ops, data)
    if may_cancel:
        program.cancel()
        assert not backend.jobs
        program.submit([wire.Append(0, ("more",)), wire.Read(0, 999)])
        assert isinstance(program.future(999).exception(), bn.Cancelled)
    finish(backend)
    values = outcomes(program, ops)
    assert {type(value) for value in values.values()} <= {str, bn.Cancelled}
    if not any(isinstance(op, wire.Select) for op in ops):
        expected = reference.interpret(ops, chosen=lambda ref: "")
        assert all(value == expected[ref] for ref, value in values.items() if isinstance(value, str))


def test_answers_from_other_threads_give_the_same_text() -> None:
    class Threaded(ManualBackend):
        def start(self, job: Job) -> None:
            text = f"<{len(job.text)}>"
            threading.Thread(target=lambda: job.finish(GenOutcome((wire.Sample(text, "stop"),)))).start()

    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(10)
        for fork in forks:
            for _ in range(5):
                fork += "x" + bn.gen("a")
        forks.join("concate_and_append")

    expected = program.run(backend=bn.Mock(lambda prompt, name: f"<{len(prompt)}>")).text()
    for _ in range(20):
        assert program.run(backend=Threaded(str)).text() == expected


class CountedPieces(PieceList[Any]):
    """Counts the pieces that are read."""

    n_read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.n_read += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Iterator[Any]:
        for piece in super().__iter__():
            self.n_read += 1
            yield piece


def test_prompt_reads_each_piece_once() -> None:
    prompt = LocalPrompt(CHATML, "program")
    prompt.pieces = pieces = CountedPieces()
    prompt.append_part(wire.BeginTurn("user"))
    for i in range(400):
        prompt.append_part(f"{i}")
        prompt.append_output(GenOutcome((wire.Sample("x", "stop"),)))
        child = prompt.copy()
        for part in (wire.EndTurn(), wire.BeginTurn("user"), f"{i}"):
            child.append_part(part)
        prompt.join(child, child.n_inherited, len(child.pieces))
        assert prompt.role == "user"
        assert prompt.text.endswith(f"{i}x<|im_end|>\n<|im_start|>user\n{i}")
    assert prompt.text == prompt.render(0)
    assert pieces.n_read <= 3 * len(pieces)


def test_exception_in_a_backend_fails_the_gen() -> None:
    class Broken(ManualBackend):
        def start(self, job: Job) -> None:
            raise OSError("no connection")

    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("a") + bn.gen("b")

    with pytest.raises(bn.ProgramError, match="OSError: no connection") as raised:
        program.run(backend=Broken(str))["b"]
    assert isinstance(raised.value.__cause__, OSError)
    assert (raised.value.gen, raised.value.prompt_tail) == ("a", "Q")


def test_stop_callback_after_cancel_is_called_at_once() -> None:
    backend = ManualBackend(str)
    program = LocalProgram(backend, "")
    program.submit([wire.Gen(0, 0)])
    (job,) = backend.jobs
    program.cancel()
    assert backend.n_stopped == 1
    stops: list[bool] = []
    job.on_stop(lambda: stops.append(True))
    assert stops == [True], "a callback registered after the stop"
    job.finish(GenOutcome((wire.Sample("late", "stop"),)))
    assert isinstance(program.future(0).exception(), bn.Cancelled)


def test_exception_in_a_callback_fails_the_gen() -> None:
    mock = bn.Mock("x")
    program = mock.program()
    program.on_call(0, lambda called: 1 / 0)
    program.submit([wire.Gen(0, 0, retries=1), wire.Read(0, 1)])
    assert isinstance(program.future(0).exception(), bn.ProgramError)
    assert isinstance(program.future(0).exception().__cause__, ZeroDivisionError)  # type: ignore[union-attr]
    assert program.future(1).done()


def test_cyclic_references_fail() -> None:
    program = bn.Mock("x").program()
    program.submit([wire.Fork(0, (1,)), wire.Append(0, (wire.Ref(1),)), wire.Gen(0, 0)])
    program.submit([wire.Append(1, (wire.Ref(0),)), wire.Gen(1, 1)], last=True)
    assert all(isinstance(program.future(ref).exception(0), bn.BadProgram) for ref in (0, 1))
