"""When gens are sent that nobody has looked at: once their body is away, and not before, however slow it is."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import banyan as bn
from banyan.execution import auto_flush as tickers
from banyan.execution.auto_flush import AWAY, ROUND, SURE, AutoFlush
from banyan.execution.program_record import ProgramRecord
from banyan.lang.sampling import Options
from banyan.runtime.protocol import wire
from waits import join, wait_until

AWHILE = 3 * ROUND * AWAY
"""Seconds by which a body that is away has long been noticed."""


@pytest.fixture
def ticker(monkeypatch: pytest.MonkeyPatch) -> AutoFlush:
    """A real one, for all records."""
    made = AutoFlush()
    monkeypatch.setattr(tickers, "_ticker", made)
    return made


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@contextmanager
def crowd(n: int) -> Iterator[None]:
    """`n` threads that never give the interpreter away before they must."""
    is_over = threading.Event()

    def spin() -> None:
        while not is_over.is_set():
            pass

    threads = [threading.Thread(target=spin) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        join(*threads)


@bn.function
def straight(s: bn.State, k: int, seconds: float) -> None:
    for i in range(k):
        s += f"{i}" + bn.gen("x")
        compute(seconds)


@pytest.mark.parametrize("seconds", [0.0, 0.002, ROUND])
def test_a_straight_line_is_one_message_however_slow_its_body_is(
    mock: bn.Mock, ticker: AutoFlush, seconds: float
) -> None:
    straight.run(20, seconds).sync()
    assert len(mock.calls) == 20
    assert len(mock.submits) == 1


def test_a_straight_line_is_one_message_in_a_crowd(mock: bn.Mock, ticker: AutoFlush) -> None:
    """Its thread waits for the interpreter far longer than ROUND between two gens."""
    with crowd(6):
        states = straight.run_batch([(5, 0.001)] * 4, num_threads=4)
    assert all(state.text() == "0<x>1<x>2<x>3<x>4<x>" for state in states)
    assert [sum(isinstance(op, wire.Gen) for op in submit) for submit in mock.submits if len(submit) > 1] == [5] * 4


@pytest.mark.parametrize("is_computing", [False, True])
def test_gens_of_a_body_that_is_away_are_sent(mock: bn.Mock, ticker: AutoFlush, is_computing: bool) -> None:
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


def test_a_body_that_waits_is_known_sooner_than_one_that_computes(ticker: AutoFlush) -> None:
    assert SURE * 3 < AWAY <= SURE * 4
    asleep, is_over = [], threading.Event()

    def sleeps() -> None:
        asleep.append(threading.get_native_id())
        is_over.wait(10)

    thread = threading.Thread(target=sleeps)
    thread.start()
    wait_until(lambda: asleep and tickers._is_asleep(asleep[0]), "the thread to sleep", alive=thread.is_alive)
    assert not tickers._is_asleep(threading.get_native_id()), "this one runs"
    is_over.set()
    join(thread)
    wait_until(lambda: tickers._is_asleep(asleep[0]), "the thread to be gone")


def test_text_alone_is_not_sent_before_it_is_needed(mock: bn.Mock, ticker: AutoFlush) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "text"
        time.sleep(AWHILE)
        assert mock.submits == []

    program.run()


def test_each_record_is_sent_in_its_time_and_none_is_kept_alive(mock: bn.Mock, ticker: AutoFlush) -> None:
    kept, lost = ProgramRecord("kept", mock, Options()), ProgramRecord("lost", mock, Options())
    for one in (kept, lost):
        one.add(wire.Gen(0, one.new_ref()))
    gone = weakref.ref(lost)
    del lost, one
    wait_until(lambda: mock.submits and gone() is None, "one record sent and the other collected")
    kept.add(wire.Gen(0, kept.new_ref()))
    wait_until(lambda: len(mock.submits) > 1, "the second message")


class Waits:
    """A sender whose flush fails with an error that it keeps, as a record does."""

    def __init__(self) -> None:
        self.is_due, self.n_waiting = True, 1
        self.error: BaseException | None = None

    def flush(self, why: str = "") -> None:
        self.is_due = False
        try:
            raise bn.RuntimeLost("gone")
        except bn.RuntimeLost as error:
            self.error = error
            raise


def test_an_error_that_one_sender_keeps_holds_no_other() -> None:
    """Its traceback holds the frames it went through: with another's record in one of them, that program stays open."""
    ticker = AutoFlush()
    fails, other = Waits(), Waits()
    for one in (fails, other):
        ticker._entries.append(tickers._Entry(one))
    ticker._entries[0].left, other.is_due = 1, False
    ticker._look(is_late=True)
    assert fails.error is not None
    gone = weakref.ref(other)
    gc.disable()
    try:
        del one, other
        assert gone() is None
    finally:
        gc.enable()


def test_an_error_on_the_way_is_told_to_who_looks(mock: bn.Mock, ticker: AutoFlush) -> None:
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
    one.add(wire.Gen(0, one.new_ref()))
    assert asked.wait(10)
    for _ in range(2):
        with pytest.raises(bn.RuntimeLost, match="gone") as raised:
            one.flush()
        assert raised.value.__notes__ == ["while program p was sent to its backend"], "said once, however often"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_a_ticker_of_its_own() -> None:
    before = tickers.ticker()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if tickers.ticker() is not before and tickers.ticker()._thread is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
