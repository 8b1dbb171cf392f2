"""Tests of tests/helpers/waits.py."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from waits import join, wait_until, wait_until_async


def wait_on_event_loop(*arguments: Any, **options: Any) -> Any:
    return asyncio.run(wait_until_async(*arguments, **options))


@pytest.mark.parametrize("wait", [wait_until, wait_on_event_loop])
def test_wait_ends_on_success_death_or_deadline(wait: Callable[..., Any]) -> None:
    counts = itertools.count()
    assert wait(lambda: next(counts) * (next(counts) > 2), "a count") == 2
    assert wait(lambda: 7, "success takes precedence over death", alive=lambda: False) == 7
    with pytest.raises(AssertionError, match=r"^waited for a step: it can no longer come; seen: \{'steps': 3\}$"):
        wait(lambda: 0, "a step", alive=lambda: False, seen=lambda: {"steps": 3})
    with pytest.raises(AssertionError, match=r"^waited for a step: the time is up$"):
        wait(lambda: 0, "a step", seconds=0.02)


def test_join_names_a_thread_that_does_not_end() -> None:
    released = threading.Event()
    thread = threading.Thread(target=released.wait, args=(60,), name="stuck")
    thread.start()
    with pytest.raises(AssertionError, match=r"thread stuck still runs after 0\.02 s"):
        join(thread, seconds=0.02)
    released.set()
    join(thread)
