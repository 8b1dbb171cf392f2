"""Waits that Ctrl-C ends.

A signal wakes a thread that sleeps. One that comes just before, when the main thread has let go of the interpreter's
lock and does not sleep yet, is only noted: its handler runs when the sleep ends, and that may be when all is done (of
105 interrupts of a batch on a busy machine, 5). Nothing can close that gap from within a sleep; so the main thread
takes naps. asyncio's loops need none: a signal writes to a socket that they poll.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

NAP = 0.2
"""Seconds that the main thread sleeps without a look at what was noted: how late an unlucky Ctrl-C is heard."""


def naps(timeout: float | None = None) -> Iterator[float | None]:
    """How long to sleep, nap after nap, until `timeout` seconds have passed; None: until woken up. On threads that hear
    no signals it is one sleep. At least one comes."""
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
    """`event.wait(timeout)`, in naps."""
    return any(event.wait(nap) for nap in naps(timeout))
