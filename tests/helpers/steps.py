"""Counts what code does, which other load on the machine does not change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def n_calls(work: Callable[[], object]) -> int:
    """How many times `work()` calls a Python function or continues a generator."""
    n = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal n
        n += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return n
