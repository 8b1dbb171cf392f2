"""Runs many items of one program on an event loop, with a bounded number of tasks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from banyan.execution.batch import BatchPlan, OnError, check
from banyan.execution.program_run import finished
from banyan.execution.run_limits import Limits
from banyan.lang.async_state import AsyncState
from banyan.runtime.errors import BadProgram, RuntimeLost

if TYPE_CHECKING:
    from banyan.execution.progress import Bar


class AsyncBatch:
    """What `run_batch_async` returns. It can be used once: either `await` it for the list of all states, in the order
    of the items, or iterate over the states with `async for` while other items still run."""

    def __init__(self, plan: BatchPlan, on_error: OnError, ordered: bool) -> None:
        self._plan, self._on_error, self._ordered = plan, on_error, ordered
        self._indices = iter(range(plan.n))
        self._errors: dict[int, BaseException] = {}
        self._bar: Bar | None = None
        self._is_used = False

    def __await__(self) -> Generator[Any, None, list[AsyncState]]:
        return self._all().__await__()

    async def _all(self) -> list[AsyncState]:
        async with aclosing(self._as_finished()) as finished:
            found = {i: state async for i, state in finished}
        states = [found[i] for i in range(self._plan.n)]
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

    async def _as_finished(self) -> AsyncGenerator[tuple[int, AsyncState], None]:
        """Start the runs. Yields (index, state) of each run when it has finished. BadProgram: the batch was used
        before."""
        if self._is_used:
            raise BadProgram("this batch was used already: await it once, or iterate once; call run_batch_async again")
        self._is_used = True
        process = os.getpid()
        limits = self._plan.limits()
        queue: asyncio.Queue[tuple[int, AsyncState | BaseException]] = asyncio.Queue()
        with self._plan.bar as self._bar:
            tasks = [
                asyncio.create_task(self._work(limits, queue)) for _ in range(min(self._plan.n, self._plan.n_running))
            ]
            try:
                for _ in range(self._plan.n):
                    RuntimeLost.unless_in(process, "the batch")
                    i, state = await queue.get()
                    if isinstance(state, BaseException):  # a run could not start
                        raise state
                    yield i, state
            finally:
                if process == os.getpid():  # a fork has no loop that runs the tasks
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, limits: Limits, queue: asyncio.Queue[tuple[int, AsyncState | BaseException]]) -> None:
        for i in self._indices:
            try:
                run = self._plan.start(i, limits)
            except Exception as e:
                queue.put_nowait((i, e))
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
            queue.put_nowait((i, run.state._view(AsyncState)))
