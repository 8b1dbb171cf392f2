"""A program that runs while others look on."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from banyan.execution.events import Events
from banyan.execution.program_record import ProgramRecord
from banyan.execution.program_run import ProgramRun, watched
from banyan.execution.thread_pool import bodies
from banyan.lang.async_state import AsyncState
from banyan.lang.state import State
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import BadProgram

if TYPE_CHECKING:
    import asyncio

    from banyan.lang.program import Program


def stream(program: Program, *args: Any, **kwargs: Any) -> Stream:
    """Run `program` with these arguments and options (those of `run`), and give at once what tells of it.

        async with bn.stream(chat, "Hello") as st:        # or `with`, for a program that is a `def`
            async for event in st.events():               # or `for`
                ...

    The block's end stops what still runs. Outside of a block, a Stream that nobody holds any more stops its program.

    The body of an `async def` runs as a task of its own on the event loop; BadProgram: there is none here. That of a
    `def` runs on one of a bounded number of threads.
    """
    run = program.prepare(args, kwargs)
    run.record.events = Events(run.record.notice)
    return Stream(run, _on_loop(run) if program.is_async else _on_thread(run))


class Stream:
    """A program on its way. `stream` makes it."""

    def __init__(self, run: ProgramRun[Any], end: Callable[[], Any]) -> None:
        """end: waits for the body, where that can be awaited. For `stream` to make, not for users."""
        self._record, self._end = run.record, end
        self.state: Any = watched(run.state)
        """The program's state, to be read while it runs: a State, or the AsyncState of an `async def`."""
        weakref.finalize(self, run.record.program.cancel).atexit = False

    def __repr__(self) -> str:
        return f"<Stream of program {self._record.name}>"

    def events(self) -> Events:
        """All events from the program's start to its end, for any number of readers, with `for` or `async for`.

        Token, VarDone, Usage, ForkStart and ToolCall, as they happen. Raises, behind the last one, what went wrong.
        """
        assert self._record.events is not None
        return self._record.events

    def cancel(self) -> None:
        """Stop the program, here and on the server. What is not finished raises Cancelled where it is read."""
        self.state.cancel()

    def __enter__(self) -> Self:
        if isinstance(self.state, AsyncState):
            raise BadProgram(f"{self._record.name} is an `async def`: write `async with`", program=self._record.name)
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()
        if (body := self._end()) is not None:
            await body

    def _leave(self) -> None:
        if not self._record.is_settled:
            self.cancel()


def _on_thread(run: ProgramRun[State]) -> Callable[[], None]:
    def body() -> None:
        with suppress(BaseException):  # the record has it, and raises it to whoever reads
            run.play()
        _ended(run.record, run.state)

    bodies().run(body)
    return lambda: None


def _on_loop(run: ProgramRun[AsyncState]) -> Callable[[], Any]:
    from banyan.execution.asyncio_bridge import task

    async def body() -> None:
        try:
            with suppress(Exception):
                await run.play_async()
        finally:
            _ended(run.record, run.state)

    running: asyncio.Task[None] = task(body(), run.record.name)
    return lambda: running


def _ended(record: ProgramRecord, state: StateBase) -> None:
    known, notice = state._as(State), record.notice

    def error() -> BaseException | None:
        was_given = notice.is_given
        found = known.error()
        notice.is_given = was_given  # nobody has heard of it: the events only hold it ready
        return found

    assert record.events is not None
    # Texts that are read come behind the last gen, on the thread that would wait for them in `error`.
    record.when_settled(partial(record.events.end, error))
