"""Events of a running program, for any number of readers. `bn.stream(...).events()` returns them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import msgspec

from banyan.execution.feed import ErrorFlag, Feed
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from banyan.tools.toolbox import ToolCall
from banyan.views.usage import Usage


class Token(msgspec.Struct, frozen=True):
    """New text of a streaming gen. name: the variable of the gen, or "". state: the number of its branch; 0: the state
    of the program itself.

    is_thought: the text is reasoning (see separate_reasoning). round: for a gen with tools or retries, the number of
    the turn or attempt, from 0. With retries, only the text of the last attempt becomes the value.
    """

    name: str
    text: str
    state: int = 0
    is_thought: bool = False
    round: int = 0


class VarDone(msgspec.Struct, frozen=True):
    """A gen or select has finished. value: its text; with n > 1, a list of n texts."""

    name: str
    value: Any
    state: int = 0


class ForkStart(msgspec.Struct, frozen=True):
    """State `state` was forked. children: the numbers of the new states."""

    children: tuple[int, ...]
    state: int = 0


Event: TypeAlias = Token | VarDone | ForkStart | ToolCall | Usage
"""ToolCall: a tool call has returned. Usage: the token counts of the run so far; it follows each VarDone."""


class Events(Feed[Event]):
    """The events of one run, from its start to its end. Iterate with `for` or `async for`, any number of times.

    If the run fails, its error is raised after the last event.
    """

    __slots__ = ("_get_error", "_lock", "_n_open")

    def __init__(self, error_flag: ErrorFlag) -> None:
        """error_flag: set when a reader receives the error of the run, which ends the events."""
        super().__init__(error_flag)
        self._lock = threading.Lock()
        self._n_open = 1  # unfinished gens, plus one for the body
        self._get_error: Callable[[], BaseException | None] | None = None

    def add_tokens(self, name: str, state: int, callback: Callable[[wire.Delta], None]) -> Callable[[wire.Delta], None]:
        """Wrap the delta callback of a gen. The result calls `callback` and reports each delta as a Token."""

        def on_delta(delta: wire.Delta) -> None:
            callback(delta)
            self.put(Token(name, delta.text, state, delta.is_thought, delta.round))

        return on_delta

    def watch(self, name: str, state: int, future: ValueFuture[wire.Value], usage: Callable[[], Usage]) -> None:
        """Report a gen or select when its `future` is done. usage: returns the token counts of the run so far."""
        with self._lock:
            self._n_open += 1
        future.add_done_callback(partial(self._finished, name, state, usage))

    def _finished(self, name: str, state: int, usage: Callable[[], Usage], future: ValueFuture[wire.Value]) -> None:
        if future.exception() is None:  # an error is raised at the end
            texts = [sample.text for sample in future.result().samples]
            self.put(VarDone(name, texts[0] if len(texts) == 1 else texts, state))
            self.put(usage())
        self._close_one()

    def end(self, get_error: Callable[[], BaseException | None]) -> None:
        """Note that the body of the program has ended. The events end once the body and all watched gens and selects
        are done. Then `get_error` is called; it returns the error of the run, or None."""
        self._get_error = get_error
        self._close_one()

    def _close_one(self) -> None:
        with self._lock:
            self._n_open -= 1
            if self._n_open:
                return
        get_error, self._get_error = self._get_error, None  # breaks a reference cycle: it holds the state
        self.close(None if get_error is None else get_error())
