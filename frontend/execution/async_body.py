"""Refuses waits that would block the event loop on which the body of an `async def` program runs, and warns of waits
that block another loop."""

from __future__ import annotations

import sys
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from banyan.execution.source_line import source_line, warn
from banyan.runtime.errors import BadProgram
from banyan.views.notebook import in_notebook

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

ASYNC_BODY: ContextVar[tuple[AbstractEventLoop, str] | None] = ContextVar("banyan_async_body", default=None)
"""The event loop and the name of the `async def` program whose body runs here; None: no such body."""


def running_loop() -> AbstractEventLoop | None:
    """The event loop that runs on this thread; None: there is none."""
    if "asyncio" not in sys.modules:  # it takes longer to import than the rest of the package
        return None
    from asyncio import get_running_loop

    with suppress(RuntimeError):  # no loop runs on this thread
        return get_running_loop()
    return None


def program_on(loop: AbstractEventLoop) -> str | None:
    """The name of the `async def` program whose body runs here, on `loop`; None if it is no such body."""
    body = ASYNC_BODY.get()
    return body[1] if body is not None and body[0] is loop else None


def refuse_to_block(what: str, program: str = "", method: str = "run_async") -> None:
    """Called before this thread waits for `what`, a value of the `def` program named `program`. BadProgram: the thread
    runs the event loop of an `async def` program whose body waits here, so all tasks of the loop would wait. method:
    what to await instead. Warns if a task of any other event loop waits, except in a notebook, where a loop always runs
    and cells wait for their values."""
    if (loop := running_loop()) is None:
        return
    from asyncio import current_task

    if (body := program_on(loop)) is not None:
        raise BadProgram(
            f"{what} is not known yet, and waiting for it would block the event loop of {body}, an `async def`; "
            + _instead(program or "prog", method),
            program=program,
            line=source_line(),
        )
    if current_task() is not None and not (in_notebook() or _in_marimo()):  # no task: a prompt like `python -m asyncio`
        # The text names no value, because Python shows each text once for a line.
        warn(
            "waiting for a program blocks the event loop of this thread, with all its tasks; "
            + _instead("prog", method)
        )


def _in_marimo() -> bool:
    """Whether this code runs in a marimo notebook."""
    return getattr(sys.modules.get("marimo"), "running_in_notebook", bool)()


def _instead(program: str, method: str) -> str:
    return f"write `await {program}.{method}(...)`, or on a thread `await asyncio.to_thread(...)`"
