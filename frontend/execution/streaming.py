"""`bn.stream`: runs a program and reports its events while it runs."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, Self

from banyan.execution.events import Events
from banyan.execution.program_record import abandon
from banyan.execution.program_run import ProgramRun, read_only_view, start_on_thread, unread_error
from banyan.lang.async_state import AsyncState
from banyan.lang.program import Program
from banyan.lang.state import State
from banyan.runtime.errors import BadProgram


def stream(program: Program, *args: Any, **kwargs: Any) -> Stream:
    """Start `program` with the arguments and options of `run`, and return at once.

        async with bn.stream(chat, "Hello") as st:        # or `with`, for a program that is a `def`
            async for event in st.events():               # or `for`
                ...

    The end of the block stops the program if it still runs. Without a block, the program stops when the Stream is
    garbage-collected. The body of an `async def` runs as a task of the running event loop. BadProgram: the
    program is an `async def`, and no event loop runs.
    """
    run = program.prepare(args, kwargs)
    run.record.events = Events(run.record.error_flag)
    if program.is_async:
        return Stream(run, _start_task(run))
    start_on_thread(run, partial(_end_events, run))
    return Stream(run)


class Stream:
    """A running program and its events. Created by `stream`."""

    def __init__(self, run: ProgramRun[Any], task: Awaitable[None] | None = None) -> None:
        """task: the task of an `async def` body."""
        self._record, self._task = run.record, task
        self.state: Any = read_only_view(run.state)
        """The program's state, to be read while it runs: a State, or the AsyncState of an `async def`."""
        run.record.has_reader = True
        weakref.finalize(self, abandon, weakref.ref(run.record), run.record.program).atexit = False

    def __repr__(self) -> str:
        return f"<Stream of program {self._record.name}>"

    def events(self) -> Events:
        """All events from start to end, for any number of readers, with `for` or `async for`.

        The events are Token, VarDone, Usage, ForkStart and ToolCall. If the run fails, its error is raised after
        them.
        """
        assert self._record.events is not None
        return self._record.events

    def cancel(self) -> None:
        """Stop the program, here and on the server. Reading an unfinished value raises Cancelled."""
        self.state.cancel()

    def __enter__(self) -> Self:
        if isinstance(self.state, AsyncState):
            raise BadProgram(f"{self._record.name} is an `async def`: write `async with`", program=self._record.name)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._record.is_settled:
            self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()
        if self._task is not None:
            await self._task


def _start_task(run: ProgramRun[AsyncState]) -> Awaitable[None]:
    import asyncio  # lazily: it takes longer to import than the rest of the package

    async def body() -> None:
        try:
            with suppress(Exception):
                await run.play_async()
        finally:
            _end_events(run)

    name = run.record.name
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise BadProgram(f"{name} is an `async def`: it needs a running event loop, and there is none here") from None
    return loop.create_task(body(), name=f"banyan-{name}")


def _end_events(run: ProgramRun[Any]) -> None:
    state: State = run.state._view(State)
    assert run.record.events is not None
    # Wait also for values of reads, which may be recorded after the last gen: `state.error` would block on them.
    run.record.when_settled(partial(run.record.events.end, partial(unread_error, state)))
