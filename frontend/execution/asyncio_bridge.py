"""Waits for work of threads on an event loop.

Imported when the first program is awaited: asyncio takes longer to import than the rest of the package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from banyan.execution.program_record import ProgramRecord
from banyan.execution.thread_pool import body_threads
from banyan.runtime.errors import BadProgram
from banyan.runtime.future import ValueFuture


async def wait_done(future: ValueFuture[Any] | Future[Any]) -> None:
    """Wait until `future` is done, without blocking the loop. Its result and its error are left alone.

    Cancelling the waiter does not cancel the future, unlike with `asyncio.wrap_future`.
    """
    if future.done():
        return
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(lambda _: _call_on(loop, wake))
    await waiter


def start_task(body: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run `body` as a task of the running loop. BadProgram: there is no running loop."""
    try:
        return asyncio.get_running_loop().create_task(body, name=f"banyan-{name}")
    except RuntimeError:
        body.close()
        raise BadProgram(f"{name} is an `async def`: it needs a running event loop, and there is none here") from None


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


class until_stopped:
    """A block that is cancelled when `record` is stopped, and then raises what stopped it."""

    __slots__ = ("_record", "_scope")

    def __init__(self, record: ProgramRecord) -> None:
        self._record, self._scope = record, asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        loop = asyncio.get_running_loop()
        self._record.on_stop(partial(_call_on, loop, partial(_expire, loop, self._scope)))

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._scope.__aexit__(*raised)
        except TimeoutError:
            if self._scope.expired():
                self._record.check()  # raises what stopped the program
            raise


def _expire(loop: asyncio.AbstractEventLoop, scope: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # the block has ended
        scope.reschedule(loop.time())


def _call_on(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(action)
