"""Waits that Ctrl-C interrupts.

A signal that arrives just before the main thread sleeps is only recorded, and its handler runs after the sleep (5 of
105 interrupts of a batch on a busy machine). So the main thread sleeps in short slices. asyncio loops do not need this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

NAP = 0.2
"""Seconds of one slice, which is the longest delay of Ctrl-C."""


def naps(timeout: float | None = None) -> Iterator[float | None]:
    """Durations to sleep, one after another, until `timeout` seconds have passed; None: forever. On threads other than
    the main thread, which get no signals, it is one duration."""
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
    """`event.wait(timeout)`, in slices."""
    return any(event.wait(nap) for nap in naps(timeout))
