"""What happens in a program while it runs, as events that any number of readers follow."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from banyan.execution.feed import Feed, Notice
from banyan.runtime.protocol import wire
from banyan.tools.toolbox import ToolCall
from banyan.views.usage import Usage

if TYPE_CHECKING:
    from banyan.lang.lazy_value import LazyValue


class Token(msgspec.Struct, frozen=True):
    """More text of the gen `name` ("" if it has none), as it comes. state: where; 0 is the program's own state.

    is_thought: it is of what the model thinks (see separate_reasoning). round: of a gen with tools or retries, which
    turn or output it is of, from 0; with retries, that of a round before the last does not count.
    """

    name: str
    text: str
    state: int = 0
    is_thought: bool = False
    round: int = 0


class VarDone(msgspec.Struct, frozen=True):
    """A gen or select is known. value: its text; with n > 1, a list of all n."""

    name: str
    value: Any
    state: int = 0


class ForkStart(msgspec.Struct, frozen=True):
    """State `state` has forked. children: its branches' states."""

    children: tuple[int, ...]
    state: int = 0


Event: TypeAlias = Token | VarDone | ForkStart | ToolCall | Usage
"""ToolCall: a tool was called, and gave its result. Usage: of all gens so far, behind each VarDone."""


class Events:
    """Those of one run, from its start to its end: `for event in events` or `async for`, any number of times.

    Where the run fails, its error is raised behind the last event.
    """

    __slots__ = ("_feed", "_lock", "_n_open", "_on_end")

    def __init__(self, notice: Notice) -> None:
        """For `stream` to make, not for users."""
        self._feed: Feed[Event] = Feed(notice)
        self._lock = threading.Lock()
        self._n_open = 1  # gens that are not known, and the body
        self._on_end: Callable[[], BaseException | None] = lambda: None

    def __iter__(self) -> Iterator[Event]:
        return iter(self._feed)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._feed.__aiter__()

    # ---- for the run ------------------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """`event` has happened."""
        self._feed.put(event)

    def heard(self, ref: LazyValue, put: Callable[[wire.Delta], None]) -> Callable[[wire.Delta], None]:
        """What hears the pieces of a gen, and gives them to `put` as well."""
        name, state = ref.name, ref.state

        def hear(delta: wire.Delta) -> None:
            put(delta)
            self._feed.put(Token(name, delta.text, state, delta.is_thought, delta.round))

        return hear

    def forked(self, state: int, children: tuple[int, ...]) -> None:
        """`state` has forked."""
        self._feed.put(ForkStart(children, state))

    def watch(self, ref: LazyValue, usage: Callable[[], Usage]) -> None:
        """`ref` is a gen or select of the run; usage(): of the whole run."""
        with self._lock:
            self._n_open += 1
        ref.future.add_done_callback(partial(self._known, [(ref, usage)], ref.state))

    def _known(self, held: list[tuple[LazyValue, Callable[[], Usage]]], state: int, _: object) -> None:
        ref, usage = held.pop()  # a future keeps what it called, and that would be a circle
        if ref.future.exception() is None:  # else the state raises it at the end
            self._feed.put(VarDone(ref.name, ref.read(), state))
            self._feed.put(usage())
        self._close_one()

    def end(self, error: Callable[[], BaseException | None]) -> None:
        """The body has ended, and nothing is on its way any more. error(): what went wrong; asked behind the last
        event."""
        self._on_end = error
        self._close_one()

    def _close_one(self) -> None:
        with self._lock:
            self._n_open -= 1
            is_last = self._n_open == 0
        if is_last:
            error, self._on_end = self._on_end, lambda: None  # it holds the state, which holds us
            self._feed.close(error())
