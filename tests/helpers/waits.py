"""Waiting in tests. Every wait here ends: with success, with the end of what it depends on, or with a deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PAUSE = 0.01
"""Seconds between two looks."""


def _always() -> bool:
    return True


def wait_until(
    condition: Callable[[], T],
    what: str,
    *,
    alive: Callable[[], object] = _always,
    seen: Callable[[], Any] | None = None,
    seconds: float = 60.0,
) -> T:
    """Call `condition` until it returns something true, and return that.

    what: what is waited for, for the message of a failure
    alive: what has to stay true for the wait to make sense: a process that runs, a server that was not replaced
    seen: what the message shows besides
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        _go_on(deadline, what, alive, seen)
        time.sleep(PAUSE)
    return found


async def wait_until_async(
    condition: Callable[[], T],
    what: str,
    *,
    alive: Callable[[], object] = _always,
    seen: Callable[[], Any] | None = None,
    seconds: float = 60.0,
) -> T:
    """`wait_until` on an event loop."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        _go_on(deadline, what, alive, seen)
        await asyncio.sleep(PAUSE)
    return found


def _go_on(deadline: float, what: str, alive: Callable[[], object], seen: Callable[[], Any] | None) -> None:
    """AssertionError where there is nothing to wait for any more."""
    why = "it can no longer come" if not alive() else "the time is up" if time.monotonic() > deadline else ""
    if why:
        raise AssertionError(f"waited for {what}: {why}" + ("" if seen is None else f"; seen: {seen()!r}"))


def join(*threads: threading.Thread, seconds: float = 60.0) -> None:
    """Wait for the end of `threads`, and fail if one still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"thread {thread.name} still runs after {seconds:g} s"
