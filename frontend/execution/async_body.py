"""Refuses waits that would block the event loop on which the body of an `async def` program runs."""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from banyan.execution.source_line import source_line
from banyan.runtime.errors import BadProgram

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

ASYNC_BODY: ContextVar[tuple[AbstractEventLoop, str] | None] = ContextVar("banyan_async_body", default=None)
"""The event loop and the name of the `async def` program whose body runs here; None: no such body."""


def refuse_to_block(what: str, program: str = "", method: str = "run_async") -> None:
    """Called before this thread waits for `what`, a value of the `def` program named `program`. BadProgram: the thread
    runs the event loop of an `async def` program whose body waits here, so all tasks of the loop would wait. method:
    what to await instead."""
    if (body := ASYNC_BODY.get()) is None:
        return
    from asyncio import get_running_loop  # lazily: it takes longer to import than the rest of the package

    with suppress(RuntimeError):  # no loop runs on this thread
        if get_running_loop() is body[0]:
            raise BadProgram(
                f"{what} is not known yet, and waiting for it would block the event loop of {body[1]}, an `async def`; "
                f"write `await {program or 'prog'}.{method}(...)`, or on a thread `await asyncio.to_thread(...)`",
                program=program,
                line=source_line(),
            )
