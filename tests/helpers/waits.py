"""Waits for tests. Every wait ends: on success, when success is no longer possible, or at a deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PAUSE = 0.01
"""Seconds between two polls."""


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
    """Poll `condition` until it returns a true value, and return that value.

    what: the awaited event, for the failure message
    alive: a condition without which success is impossible, such as a running process
    seen: further state for the failure message
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        _check_deadline(deadline, what, alive, seen)
        time.sleep(PAUSE)
    return value


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
    while not (value := condition()):
        _check_deadline(deadline, what, alive, seen)
        await asyncio.sleep(PAUSE)
    return value


def _check_deadline(deadline: float, what: str, alive: Callable[[], object], seen: Callable[[], Any] | None) -> None:
    """Raise AssertionError at the deadline or if success is no longer possible."""
    reason = "it can no longer come" if not alive() else "the time is up" if time.monotonic() > deadline else ""
    if reason:
        raise AssertionError(f"waited for {what}: {reason}" + ("" if seen is None else f"; seen: {seen()!r}"))


def join(*threads: threading.Thread, seconds: float = 60.0) -> None:
    """Join `threads` and fail if one still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"thread {thread.name} still runs after {seconds:g} s"
