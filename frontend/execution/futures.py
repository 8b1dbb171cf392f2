"""Helpers for `ValueFuture`s and for errors that are raised more than once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from banyan.runtime.errors import BanyanError
from banyan.runtime.future import ValueFuture

E = TypeVar("E", bound=BanyanError)


def when_all_done(futures: Iterable[ValueFuture[Any]], callback: Callable[[], object]) -> None:
    """Call `callback` once all `futures` are done: at once, or on the thread that completes the last one."""
    pending = list(futures)
    callbacks = [callback]  # `check` refers to itself, so it is freed late, and must not keep the callback alive

    def check(_: object = None) -> None:
        while pending:
            if not pending[-1].done():
                pending[-1].add_done_callback(check)
                return
            pending.pop()
        callbacks.pop()()

    check()


def copy_of(error: E) -> E:
    """A copy of `error`, to be raised in another place. Raising one object twice would join the two tracebacks."""
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    if notes := getattr(error, "__notes__", None):
        fresh.__notes__ = list(notes)
    return fresh
