"""The executor that Mock, OpenAI and Replay share, against a plain reading of the ops: answers in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import banyan as bn
from banyan.backends.job import CHATML, Job
from banyan.backends.local import LocalProgram
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def any_program(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """Random programs and what they say, as the server's own test has them."""
    return module_at(ROOT / "tests/runtime/server/programs/test_any_program.py")


class Slow:
    """Holds jobs until it is told to answer one."""

    welcome = wire.Welcome(version=wire.VERSION, model="slow", max_context=1, chat=CHATML)

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
        job.on_stop(lambda: self._stopped(job))

    def _stopped(self, job: Job) -> None:
        self.n_stopped += 1
        self.jobs.remove(job)

    def go_on(self, i: int) -> None:
        job = self.jobs.pop(i)
        text = job.op.choices[0] if isinstance(job.op, wire.Select) else self._answer(job.text)
        if isinstance(job.op, wire.Gen) and job.op.stream:
            for letter in text:
                job.deliver(letter)
        job.finish(GenOutcome((wire.Sample(text, "stop"),)))


def play(slow: Slow, ops: list[wire.Op], data: st.DataObject) -> LocalProgram:
    program = LocalProgram(slow, "test")
    while ops:
        n = data.draw(st.integers(1, len(ops)), label="ops in this message")
        program.submit(ops[:n])
        ops = ops[n:]
        for _ in range(data.draw(st.integers(0, 3), label="answers")):
            if slow.jobs:
                slow.go_on(data.draw(st.integers(0, len(slow.jobs) - 1)))
    return program


def finish(slow: Slow) -> None:
    while slow.jobs:
        slow.go_on(0)


def refs_of(ops: list[wire.Op]) -> list[int]:
    return [op.ref for op in ops if isinstance(op, wire.Gen | wire.Select | wire.Read)]


def outcomes(program: LocalProgram, ops: list[wire.Op]) -> dict[int, Any]:
    futures = {ref: program.future(ref) for ref in refs_of(ops)}
    assert all(future.done() for future in futures.values())
    return {ref: f.exception() or f.result().samples[0].text for ref, f in futures.items()}


checked = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@checked
@given(data=st.data())
def test_every_value_is_what_the_ops_say(any_program: ModuleType, data: st.DataObject) -> None:
    ops = data.draw(any_program.program(may_drop=False))
    slow = Slow(any_program.answer)
    program = play(slow, ops, data)
    heard: dict[int, str] = {}
    for op in ops:
        if isinstance(op, wire.Gen) and op.stream:
            program.on_delta(op.ref, lambda one: heard.__setitem__(one.ref, heard.get(one.ref, "") + one.text))
    finish(slow)
    values = outcomes(program, ops)
    assert values == any_program.plain(ops, chosen=lambda ref: values[ref])
    assert heard == {op.ref: values[op.ref] for op in ops if isinstance(op, wire.Gen) and op.stream}


@checked
@given(data=st.data(), may_cancel=st.booleans())
def test_every_value_resolves_also_where_states_are_dropped(
    any_program: ModuleType, data: st.DataObject, may_cancel: bool
) -> None:
    ops = data.draw(any_program.program(may_drop=True))
    slow = Slow(any_program.answer)
    program = play(slow, ops, data)
    if may_cancel:
        program.cancel()
        assert not slow.jobs
        program.submit([wire.Append(0, ("more",)), wire.Read(0, 999)])
        assert isinstance(program.future(999).exception(), bn.Cancelled)
    finish(slow)
    values = outcomes(program, ops)
    assert {type(value) for value in values.values()} <= {str, bn.Cancelled}
    if not any(isinstance(op, wire.Select) for op in ops):
        expected = any_program.plain(ops, chosen=lambda ref: "")
        assert all(value == expected[ref] for ref, value in values.items() if isinstance(value, str))


def test_answers_from_other_threads() -> None:
    class Threaded(Slow):
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

    alone = program.run(backend=bn.Mock(lambda prompt, name: f"<{len(prompt)}>")).text()
    for _ in range(20):
        assert program.run(backend=Threaded(str)).text() == alone


def test_a_backend_that_raises_fails_its_gen() -> None:
    class Broken(Slow):
        def start(self, job: Job) -> None:
            raise OSError("no wire")

    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("a") + bn.gen("b")

    with pytest.raises(bn.ProgramError, match="OSError: no wire") as raised:
        program.run(backend=Broken(str))["b"]
    assert isinstance(raised.value.__cause__, OSError)
    assert (raised.value.gen, raised.value.prompt_tail) == ("a", "Q")


def test_a_stop_that_comes_late_is_heard() -> None:
    slow = Slow(str)
    program = LocalProgram(slow, "")
    program.submit([wire.Gen(0, 0)])
    (job,) = slow.jobs
    program.cancel()
    assert slow.n_stopped == 1
    told: list[bool] = []
    job.on_stop(lambda: told.append(True))
    assert told == [True], "also one who asks afterwards"
    job.finish(GenOutcome((wire.Sample("late", "stop"),)))
    assert isinstance(program.future(0).exception(), bn.Cancelled)


def test_a_callback_that_raises_fails_its_gen() -> None:
    mock = bn.Mock("x")
    program = mock.program()
    program.on_call(0, lambda called: 1 / 0)
    program.submit([wire.Gen(0, 0, retries=1), wire.Read(0, 1)])
    assert isinstance(program.future(0).exception(), bn.ProgramError)
    assert isinstance(program.future(0).exception().__cause__, ZeroDivisionError)  # type: ignore[union-attr]
    assert program.future(1).done()


def test_ops_that_wait_for_each_other_fail() -> None:
    program = bn.Mock("x").program()
    program.submit([wire.Fork(0, (1,)), wire.Append(0, (wire.Ref(1),)), wire.Gen(0, 0)])
    program.submit([wire.Append(1, (wire.Ref(0),)), wire.Gen(1, 1)], last=True)
    assert all(isinstance(program.future(ref).exception(0), bn.BadProgram) for ref in (0, 1))
