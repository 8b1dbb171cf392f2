"""Functions by which an event loop waits for threads. This file is imported only when an event loop is used, because
importing asyncio takes longer than importing the rest of the package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

from banyan.execution.program_record import ProgramRecord
from banyan.execution.thread_pool import ThreadPool
from banyan.runtime.future import ValueFuture


async def wait_done(future: ValueFuture[Any] | Future[Any]) -> None:
    """Wait for `future` without blocking the loop. Does not raise its error, and never cancels it."""
    if future.done():
        return
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(lambda _: _call_on(loop, wake))
    await waiter


async def on_thread(threads: ThreadPool, work: Callable[[], None]) -> None:
    """Run `work` on one of the threads and raise what it raises. Cancelling the wait does not stop `work`."""
    done: Future[None] = Future()

    def body() -> None:
        try:
            work()
        except BaseException as e:
            done.set_exception(e)
        else:
            done.set_result(None)

    threads.run(body)
    await wait_done(done)
    done.result()


class UntilStopped:
    """An `async with` block for code that must not outlast the program of `record`. When the program is stopped, the
    code is cancelled, and the block raises the error that stopped the program.

    This is a class to save memory, because each waiting async program holds an instance: a generator with
    `asynccontextmanager` would take 0.8 KB.
    """

    __slots__ = ("_record", "_scope")

    def __init__(self, record: ProgramRecord) -> None:
        self._record, self._scope = record, asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        loop = asyncio.get_running_loop()
        self._record.on_stop(partial(_call_on, loop, partial(_expire, self._scope, loop)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._scope.__aexit__(kind, error, traceback)
        except TimeoutError:
            self._record.check()  # raises what stopped the program
            raise


def _expire(scope: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # the block has ended
        scope.reschedule(loop.time())


def _call_on(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(action)
