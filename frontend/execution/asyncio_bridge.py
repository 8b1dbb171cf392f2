"""Waits for work of threads on an event loop. Imported late, because asyncio takes longer to import than the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from banyan.execution.program_record import ProgramRecord
from banyan.execution.thread_pool import body_threads
from banyan.runtime.future import ValueFuture


async def wait_done(future: ValueFuture[Any] | Future[Any]) -> None:
    """Wait for `future` without blocking the loop. Its outcome is left alone, also if the waiter is cancelled."""
    if future.done():
        return
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(lambda _: _call_on(loop, wake))
    await waiter


async def on_thread(work: Callable[[], None]) -> None:
    """Run `work` on a thread of the pool and raise what it raises. Cancelling the waiter does not stop it."""
    done: Future[None] = Future()

    def body() -> None:
        try:
            work()
        except BaseException as e:
            done.set_exception(e)
        else:
            done.set_result(None)

    body_threads().run(body)
    await wait_done(done)
    done.result()


@asynccontextmanager
async def until_stopped(record: ProgramRecord) -> AsyncIterator[None]:
    """A block that is cancelled when `record` is stopped, and then raises what stopped it."""
    loop, scope = asyncio.get_running_loop(), asyncio.timeout(None)

    def expire() -> None:
        with suppress(RuntimeError):  # the block has ended
            scope.reschedule(loop.time())

    try:
        async with scope:
            record.on_stop(partial(_call_on, loop, expire))
            yield
    except TimeoutError:
        if scope.expired():
            record.check()  # raises what stopped the program
        raise


def _call_on(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(action)
