"""Finds the line of user code that called into this package, for error messages and warnings."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from functools import cache

_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep


@cache
def _user_file(filename: str) -> str:
    """Returns the base name of a user's file; "" for a file of this package, or of contextlib, which calls the context
    managers of this package."""
    return "" if filename.startswith(_HERE) or filename == contextlib.__file__ else os.path.basename(filename)


def source_line() -> str:
    """The nearest caller outside this package, as "file.py:12"."""
    frame = sys._getframe(1)
    while not (name := _user_file(frame.f_code.co_filename)) and frame.f_back is not None:
        frame = frame.f_back
    return f"{name}:{frame.f_lineno}"


def raising_line(error: BaseException) -> str:
    """The first line outside this package that `error` passed, as "file.py:12": for the error of a run, a line of the
    body. "": there is none."""
    trace = error.__traceback__
    while trace is not None and not (name := _user_file(trace.tb_frame.f_code.co_filename)):
        trace = trace.tb_next
    return "" if trace is None else f"{name}:{trace.tb_lineno}"


def warn(text: str) -> None:
    """Issue a UserWarning at the nearest caller outside this package. Python shows it once for each line of code."""
    level, frame = 2, sys._getframe(1)
    while not _user_file(frame.f_code.co_filename) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
