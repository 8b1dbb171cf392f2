"""One program inside another, on the same state."""

from __future__ import annotations

from typing import Any

from banyan.lang.expr import Seq
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import BadProgram


class Inlined(Seq, frozen=True):
    """A program that was inlined: all has been appended, so `s += prog.inline(s)` adds nothing more."""

    ret_value: Any = None
    """What its body returned."""


def checked(state: object, name: str) -> None:
    """BadProgram: `state` is none, or takes no text."""
    if not isinstance(state, StateBase):
        raise BadProgram(f"{name}.inline takes the state that it goes on with, not a {type(state).__name__}")
    state._check_open()
