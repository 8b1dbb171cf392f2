"""Where the user's code stands, for errors."""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(__file__) + os.sep


def source_line() -> str:
    """Where the user's code stands: the nearest caller outside of this package, as "file.py:12"."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_HERE) and frame.f_back is not None:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
