"""What is made on threads, awaited on an event loop.

Loaded with the first program that is awaited: asyncio costs more than all of `import banyan`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from banyan.execution.program_record import ProgramRecord
from banyan.execution.thread_pool import bodies
from banyan.runtime.errors import BadProgram
from banyan.runtime.future import ValueFuture


async def arrived(future: ValueFuture[Any] | Future[Any]) -> None:
    """Wait until `future` is done, whatever it holds, without holding up the loop.

    Who stops to wait cancels nothing (`asyncio.wrap_future` would pass that on to the future).
    """
    if future.done():
        return
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(lambda _: _from_outside(loop, wake))
    await waiter


def task(body: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run `body` as a task of the running loop. BadProgram: there is none."""
    try:
        return asyncio.get_running_loop().create_task(body, name=f"banyan-{name}")
    except RuntimeError:
        body.close()
        raise BadProgram(f"{name} is an `async def`: it needs a running event loop, and there is none here") from None


async def on_thread(work: Callable[[], None]) -> None:
    """Run `work` on a thread of the pool, and raise what it raises. Who stops to wait leaves it running."""
    done: Future[None] = Future()

    def body() -> None:
        try:
            work()
        except BaseException as e:
            done.set_exception(e)
        else:
            done.set_result(None)

    bodies().run(body)
    await arrived(done)
    done.result()


class until_stopped:
    """Run a block of this task until `record` is stopped: then it is cancelled, and raises what stopped the program."""

    __slots__ = ("_record", "_scope")

    def __init__(self, record: ProgramRecord) -> None:
        self._record, self._scope = record, asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        loop = asyncio.get_running_loop()
        self._record.on_stop(partial(_from_outside, loop, partial(_end, loop, self._scope)))

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._scope.__aexit__(*raised)
        except TimeoutError:
            if self._scope.expired():
                self._record.check()  # raises why
            raise


def _end(loop: asyncio.AbstractEventLoop, scope: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # the block has ended by itself
        scope.reschedule(loop.time())


def _from_outside(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nothing runs on it any more
        loop.call_soon_threadsafe(action)
