"""The flusher sends unread gens a moment after the first of them, whatever the body does."""

from __future__ import annotations

import os
import threading
import time
import weakref

import pytest

import banyan as bn
from banyan.execution import clock
from banyan.execution.program_record import ProgramRecord
from banyan.lang.sampling import Options
from banyan.runtime.protocol import wire


@pytest.fixture(autouse=True)
def _no_flusher() -> None:
    """Overrides the fixture of the other tests: here, the thread flushes."""


@bn.function
def straight(s: bn.State, k: int) -> None:
    for i in range(k):
        s += f"{i}" + bn.gen("x")


def test_straight_line_that_ends_before_the_flush_is_one_message(mock: bn.Mock, no_flusher: None) -> None:
    straight.run(20).sync()
    assert len(mock.calls) == 20
    assert len(mock.submits) == 1


@pytest.mark.parametrize("is_computing", [False, True])
def test_gens_are_sent_while_the_body_is_busy(mock: bn.Mock, is_computing: bool) -> None:
    began = threading.Event()

    def script(prompt: str, name: str) -> str:
        began.set()
        return name

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("x")
        deadline = time.monotonic() + 10
        while is_computing and not began.is_set():
            assert time.monotonic() < deadline
        assert began.wait(10)

    program.run(backend=bn.Mock(script))


def test_script_of_a_mock_does_not_run_on_the_flusher() -> None:
    began = threading.Event()

    def script(prompt: str, name: str) -> str:
        began.set()
        pytest.fail(f"on {threading.current_thread().name}")

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("x")
        assert began.wait(10)

    state = program.run(backend=bn.Mock(script))
    with pytest.raises(bn.ProgramError, match="on banyan-mock"):
        state["x"]


def test_text_alone_is_not_flushed(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "text"
        time.sleep(20 * clock.FLUSH_AFTER)
        assert mock.submits == []

    program.run()


def test_each_record_is_flushed_and_none_is_kept_alive(mock: bn.Mock) -> None:
    record, dropped = ProgramRecord("kept", mock, Options()), ProgramRecord("lost", mock, Options())
    for each in (record, dropped):
        each.add(wire.Gen(0, each.new_refs()))
    dropped_ref = weakref.ref(dropped)
    del dropped, each
    deadline = time.monotonic() + 10
    while not mock.submits or dropped_ref() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    record.add(wire.Gen(0, record.new_refs()))
    while len(mock.submits) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_flush_error_is_raised_at_every_flush(mock: bn.Mock) -> None:
    class LostMock(bn.Mock):
        def program(self, name: str = "") -> object:  # type: ignore[override]
            program = super().program(name)

            def submit(ops: object, last: bool = False) -> None:
                submitted.set()
                raise bn.RuntimeLost("gone")

            program.submit = submit  # type: ignore[method-assign]
            return program

    submitted = threading.Event()
    record = ProgramRecord("p", LostMock(), Options())
    record.add(wire.Gen(0, record.new_refs()))
    assert submitted.wait(10)
    for _ in range(2):
        with pytest.raises(bn.RuntimeLost, match="gone") as raised:
            record.flush()
        assert raised.value.__notes__ == ["while program p was sent to its backend"], "one note, however many flushes"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_process_has_its_own_flusher() -> None:
    parent_flusher = clock.flusher()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if clock.flusher() is not parent_flusher and clock.flusher()._thread is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
