"""Finds the line of user code that called into this package, for error messages."""

from __future__ import annotations

import os
import sys
from functools import cache

_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep


@cache
def _user_file(filename: str) -> str:
    """The base name of a user's file; "" for a file of this package."""
    return "" if filename.startswith(_HERE) else os.path.basename(filename)


def source_line() -> str:
    """The nearest caller outside this package, as "file.py:12"."""
    frame = sys._getframe(1)
    while not (name := _user_file(frame.f_code.co_filename)) and frame.f_back is not None:
        frame = frame.f_back
    return f"{name}:{frame.f_lineno}"
