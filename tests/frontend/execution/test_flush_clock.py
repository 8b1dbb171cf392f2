"""When gens are sent that nobody has read: a moment after the first of them, whatever the body does meanwhile."""

from __future__ import annotations

import os
import threading
import time
import weakref

import pytest

import banyan as bn
from banyan.execution import clock, program_record
from banyan.execution.clock import Clock
from banyan.execution.program_record import ProgramRecord
from banyan.lang.sampling import Options
from banyan.runtime.protocol import wire


@pytest.fixture(autouse=True)
def _real_clock(_no_clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_flush_clock", Clock("banyan-flush"))


@bn.function
def straight(s: bn.State, k: int) -> None:
    for i in range(k):
        s += f"{i}" + bn.gen("x")


def test_a_straight_line_that_ends_in_time_is_one_message(mock: bn.Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_record, "FLUSH_AFTER", 30.0)
    straight.run(20).sync()
    assert len(mock.calls) == 20
    assert len(mock.submits) == 1


@pytest.mark.parametrize("is_computing", [False, True])
def test_gens_of_a_body_that_is_away_are_sent(mock: bn.Mock, is_computing: bool) -> None:
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


def test_text_alone_is_not_sent_before_it_is_needed(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "text"
        time.sleep(20 * program_record.FLUSH_AFTER)
        assert mock.submits == []

    program.run()


def test_each_record_is_sent_in_its_time_and_none_is_kept_alive(mock: bn.Mock) -> None:
    kept, lost = ProgramRecord("kept", mock, Options()), ProgramRecord("lost", mock, Options())
    for one in (kept, lost):
        one.add(wire.Gen(0, one.new_refs()))
    gone = weakref.ref(lost)
    del lost, one
    deadline = time.monotonic() + 10
    while not mock.submits or gone() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    kept.add(wire.Gen(0, kept.new_refs()))
    while len(mock.submits) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_an_error_on_the_way_is_told_to_who_looks(mock: bn.Mock) -> None:
    class Lost(bn.Mock):
        def program(self, name: str = "") -> object:  # type: ignore[override]
            made = super().program(name)

            def submit(ops: object, last: bool = False) -> None:
                asked.set()
                raise bn.RuntimeLost("gone")

            made.submit = submit  # type: ignore[method-assign]
            return made

    asked = threading.Event()
    one = ProgramRecord("p", Lost(), Options())
    one.add(wire.Gen(0, one.new_refs()))
    assert asked.wait(10)
    for _ in range(2):
        with pytest.raises(bn.RuntimeLost, match="gone") as raised:
            one.flush()
        assert raised.value.__notes__ == ["while program p was sent to its backend"], "said once, however often"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_a_clock_of_its_own() -> None:
    before = clock.flush_clock()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if clock.flush_clock() is not before and clock.flush_clock()._thread is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
