"""Waits of the main thread are interrupted by a signal that arrives just before they sleep."""

from __future__ import annotations

import _thread
import itertools
import threading
import time
from collections.abc import Callable

import pytest

import banyan as bn
from banyan.execution.feed import Feed
from banyan.runtime import waiting
from banyan.runtime.future import ValueFuture


def wait_for_future(released: threading.Event) -> None:
    future = ValueFuture[int]()
    threading.Thread(target=lambda: (released.wait(), future.set_result(1))).start()
    future.wait()


def wait_for_feed(released: threading.Event) -> None:
    values = Feed[int]()
    threading.Thread(target=lambda: (released.wait(), values.close())).start()
    list(values)


def wait_for_batch(released: threading.Event) -> None:
    @bn.function
    def idle(s: bn.State, i: int) -> None:
        released.wait()

    idle.run_batch([(0,), (1,)], backend=bn.Mock())


def interrupt(wait: Callable[[threading.Event], None], released: threading.Event) -> None:
    threading.Timer(0.2, _thread.interrupt_main).start()  # like a signal, but without waking a sleep
    wait(released)


@pytest.mark.parametrize("wait", [wait_for_future, wait_for_feed, wait_for_batch])
def test_signal_without_wakeup_interrupts_the_wait(wait: Callable[[threading.Event], None]) -> None:
    released = threading.Event()  # ends every wait, also if the interrupt is lost
    end = threading.Timer(20.0, released.set)
    end.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt(wait, released)
        assert not released.is_set(), "the wait was not interrupted"
    finally:
        end.cancel()
        released.set()


def test_naps_add_up_to_the_timeout() -> None:
    event, start = threading.Event(), time.monotonic()
    assert not waiting.until(event, 0.5)
    assert time.monotonic() - start >= 0.5
    assert not waiting.until(event, 0.0)
    event.set()
    assert waiting.until(event, 0.0)
    assert waiting.until(event)
    assert waiting.until(event, -1.0)


def test_only_the_main_thread_naps() -> None:
    assert list(itertools.islice(waiting.naps(), 3)) == [waiting.NAP] * 3
    naps: list[list[float | None]] = []
    thread = threading.Thread(target=lambda: naps.extend([list(waiting.naps()), list(waiting.naps(7.0))]))
    thread.start()
    thread.join()
    assert naps == [[None], [7.0]]
