"""Where the user's code stands, for errors."""

from __future__ import annotations

import os
import sys
from functools import cache

_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep


@cache
def _shown(filename: str) -> str:
    """A file by its name; "" for one of this package."""
    return "" if filename.startswith(_HERE) else os.path.basename(filename)


def source_line() -> str:
    """Where the user's code stands: the nearest caller outside of this package, as "file.py:12"."""
    frame = sys._getframe(1)
    while not (name := _shown(frame.f_code.co_filename)) and frame.f_back is not None:
        frame = frame.f_back
    return f"{name}:{frame.f_lineno}"
