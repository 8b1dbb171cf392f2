"""Waits that Ctrl-C interrupts.

If a signal arrives just before the main thread goes to sleep, Python only records it, and runs its handler after the
sleep. This happened to 5 of 105 interrupts of a batch on a busy machine. So the main thread sleeps in short slices.
asyncio loops do not need this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

NAP = 0.2
"""Length of one slice in seconds. Ctrl-C is delayed by at most this time."""


def naps(timeout: float | None = None) -> Iterator[float | None]:
    """Yields durations to sleep, in seconds, one after another, until `timeout` seconds have passed; None: without end.

    Only the main thread gets signals, and sleeps in short slices for them. On other threads the only duration is the
    whole timeout."""
    if threading.current_thread() is not threading.main_thread():
        yield timeout
        return
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = NAP if end is None else end - time.monotonic()
        yield max(0.0, min(NAP, left))
        if left < NAP:
            return


def until(event: threading.Event, timeout: float | None = None) -> bool:
    """Like `event.wait(timeout)`, but Ctrl-C interrupts the wait."""
    return any(event.wait(nap) for nap in naps(timeout))
