"""Durable programs whose server is gone: found a new place where it comes back.

A thread of its own tries the door again and again, as a handshake waits; all else happens on the I/O thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from banyan.runtime.client.program_futures import ProgramFutures
from banyan.runtime.errors import BanyanError, RuntimeLost

PATIENCE = 120.0
"""Seconds that durable programs wait for their server to come back."""
_PAUSE = 0.2  # seconds between two tries


def start(
    enter: Callable[[], None], call: Callable[[Callable[[], None]], None], inboxes: Sequence[ProgramFutures], why: str
) -> None:
    """Have `inboxes` enter a server. enter: tries once, and brings them in; BanyanError: not yet. call: runs something
    on the I/O thread. Where nothing comes of it they fail, with `why`."""

    def run() -> None:
        end = time.monotonic() + PATIENCE
        last = ""
        while time.monotonic() < end and not all(inbox.is_over for inbox in inboxes):
            try:
                enter()
            except BanyanError as e:
                last = e.message
                time.sleep(_PAUSE)
            else:
                return
        gone = f"{why}, and did not come back within {PATIENCE:g} s ({last})"
        for inbox in inboxes:
            call(lambda inbox=inbox: inbox.fail_all(lambda gen, line: RuntimeLost(gone)))  # type: ignore[misc]

    threading.Thread(target=run, name="banyan-rejoin", daemon=True).start()
