"""Runs many items of one program on an event loop, with a bounded number of tasks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from banyan.execution.asyncio_bridge import on_thread
from banyan.execution.batch import BatchPlan, ItemReader, OnError, check
from banyan.execution.program_run import finished
from banyan.execution.thread_pool import item_threads
from banyan.lang.async_state import AsyncState
from banyan.runtime.errors import BadProgram, DeadlineExceeded, RuntimeLost

if TYPE_CHECKING:
    from banyan.execution.progress import Bar


class AsyncBatch:
    """What `run_batch_async` returns. It can be used once: either `await` it for the list of all states, in the order
    of the items, or iterate over the states with `async for` while other items still run."""

    def __init__(self, plan: BatchPlan, on_error: OnError, ordered: bool) -> None:
        self._plan, self._on_error, self._ordered = plan, on_error, ordered
        self._errors: dict[int, BaseException] = {}
        self._bar: Bar | None = None
        self._is_used = False

    def __await__(self) -> Generator[Any, None, list[AsyncState]]:
        return self._all().__await__()

    async def _all(self) -> list[AsyncState]:
        self._plan = self._plan._replace(items=[*self._plan.items])  # an invalid item is refused before any run
        async with aclosing(self._as_finished()) as finished:
            found = {i: state async for i, state in finished}
        states = [found[i] for i in range(len(found))]
        if self._on_error == "raise":
            check(dict(sorted(self._errors.items())), len(states), states)
        return states

    async def __aiter__(self) -> AsyncIterator[AsyncState]:
        """Yields finished states; if ordered, in the order of the items. Closing the iterator stops the other runs."""
        found: dict[int, AsyncState] = {}
        n_yielded = 0
        async with aclosing(self._as_finished()) as finished:
            async for i, state in finished:
                found[i] = state
                while (i := n_yielded if self._ordered else i) in found:
                    state = found.pop(i)
                    if self._on_error == "raise" and i in self._errors:
                        raise self._errors[i]
                    n_yielded += 1
                    yield state
                    self._kept.release()

    async def _as_finished(self) -> AsyncGenerator[tuple[int, AsyncState], None]:
        """Start the runs. Yields (index, state) of each run when it has finished. BadProgram: the batch was used
        before."""
        if self._is_used:
            raise BadProgram("this batch was used already: await it once, or iterate once; call run_batch_async again")
        self._is_used = True
        process = os.getpid()
        self._limits, self._reader = self._plan.limits(), ItemReader(self._plan)
        self._kept, self._reading = asyncio.Semaphore(self._plan.n_kept), asyncio.Lock()
        self._finished: asyncio.Queue[tuple[int, AsyncState | BaseException] | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        n_seen = 0
        with self._plan.bar(self._plan.n) as self._bar:
            try:
                self._start_task()
                while n_seen != self._reader.n:
                    RuntimeLost.unless_in(process, "the batch")
                    if (found := await self._finished.get()) is None:
                        continue
                    i, state = found
                    if isinstance(state, BaseException):  # a run could not start
                        raise state
                    n_seen += 1
                    yield i, state
                if self._reader.error is not None:
                    raise self._reader.error
            finally:
                if process == os.getpid():  # a fork has no loop that runs the tasks
                    for task in self._tasks:
                        task.cancel()
                    await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_task(self) -> None:
        self._tasks.append(asyncio.create_task(self._work()))

    async def _work(self) -> None:
        while (found := await self._next()) is not None:
            i, item = found
            if len(self._tasks) < self._plan.n_running:
                self._start_task()
            try:
                run = self._plan.start(item, self._limits)
            except Exception as e:
                self._finished.put_nowait((i, e))
                return
            if self._bar is not None:
                self._bar.begin(run.record)
            try:
                await finished(run)
            except Exception as e:
                self._errors[i] = e
                run.record.error_flag.is_seen = self._on_error == "raise"
            except asyncio.CancelledError as e:
                if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # a task runs this
                    raise
                self._errors[i] = run.record.error or e  # the body cancelled itself
            if self._bar is not None:
                self._bar.end(failed=i in self._errors)
            self._finished.put_nowait((i, run.state._view(AsyncState)))
            await asyncio.sleep(0)  # a run on a Mock may not have waited; the loop takes its state before the next one
        self._finished.put_nowait(None)

    async def _next(self) -> tuple[int, Any] | None:
        """Returns (number, item) of the next item; None: there is none, or the time of items without a length is up.
        Such items are read on a thread, because the next one may come late: the loop must not wait for it."""
        await self._kept.acquire()
        if self._plan.n is not None:
            return self._reader.read()
        found: list[tuple[int, Any]] = []
        async with self._reading:  # tasks that wait here need no thread
            if self._reader.n is None:
                end = self._limits.end
                try:
                    async with asyncio.timeout(None if end is None else end.at - time.monotonic()):
                        await on_thread(item_threads(), lambda: self._reader.read_to(found))
                except TimeoutError:
                    assert end is not None
                    self._reader.end(DeadlineExceeded.of("batch", end.timeout))
                except Exception as e:  # no thread could start; the reader keeps the errors of the items itself
                    self._reader.end(e)
        return found[0] if found else None
