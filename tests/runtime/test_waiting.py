"""Waits of the main thread hear a signal that came just before they slept."""

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


def promise(gone: threading.Event) -> None:
    kept = ValueFuture[int]()
    threading.Thread(target=lambda: (gone.wait(), kept.set_result(1))).start()
    kept.wait()


def feed(gone: threading.Event) -> None:
    heard = Feed[int]()
    threading.Thread(target=lambda: (gone.wait(), heard.close())).start()
    list(heard)


def batch(gone: threading.Event) -> None:
    @bn.function
    def idle(s: bn.State, i: int) -> None:
        gone.wait()

    idle.run_batch([(0,), (1,)], backend=bn.Mock())


def interrupted(wait: Callable[[threading.Event], None], gone: threading.Event) -> None:
    threading.Timer(0.2, _thread.interrupt_main).start()  # as a signal does, but no sleep ends by it
    wait(gone)


@pytest.mark.parametrize("wait", [promise, feed, batch])
def test_a_signal_that_wakes_nobody_is_heard(wait: Callable[[threading.Event], None]) -> None:
    gone = threading.Event()  # nobody waits for longer than this, whatever is heard
    end = threading.Timer(20.0, gone.set)
    end.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted(wait, gone)
        assert not gone.is_set(), "heard only when all was done"
    finally:
        end.cancel()
        gone.set()


def test_naps_add_up_to_the_timeout() -> None:
    event, start = threading.Event(), time.monotonic()
    assert not waiting.until(event, 0.5)
    assert time.monotonic() - start >= 0.5
    assert not waiting.until(event, 0.0)
    event.set()
    assert waiting.until(event, 0.0)
    assert waiting.until(event)
    assert waiting.until(event, -1.0)


def test_naps_are_for_the_thread_that_hears_signals() -> None:
    assert list(itertools.islice(waiting.naps(), 3)) == [waiting.NAP] * 3
    of_others: list[list[float | None]] = []
    thread = threading.Thread(target=lambda: of_others.extend([list(waiting.naps()), list(waiting.naps(7.0))]))
    thread.start()
    thread.join()
    assert of_others == [[None], [7.0]]
