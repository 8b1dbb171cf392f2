"""Runs the body of a program on a new state, on this thread, in this task, or on a thread of the pool."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from types import CoroutineType
from typing import Any, Generic, TypeVar

from banyan.backends.base import Backend
from banyan.backends.default import CURRENT
from banyan.execution.program_record import ProgramRecord
from banyan.execution.run_limits import BatchLimits
from banyan.execution.thread_pool import body_threads
from banyan.lang.async_state import AsyncState
from banyan.lang.sampling import Options, mix
from banyan.lang.state import State
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import BadProgram
from banyan.sglang.global_config import global_config
from banyan.views.transcript import Transcript

P = TypeVar("P", bound=StateBase)


class ProgramRun(Generic[P]):
    """A body with its arguments bound, and the new state that it will write."""

    __slots__ = ("_body", "record", "state")

    def __init__(
        self,
        name: str,
        body: Callable[[P], Any],
        backend: Backend,
        options: Options,
        state_class: type[P],
        batch: BatchLimits | None = None,
        index: int | None = None,
    ) -> None:
        """index: of the batch item; the run's seed is derived from it."""
        self._body = body
        self.record = ProgramRecord(name, backend, options, batch)
        self.record.index = index
        seed = options.seed if index is None else mix(options.seed, index)
        self.state = state_class(self.record, self.record.new_handle(), seed, Transcript())

    def play(self) -> None:
        """Run the body on this thread. Raises what it raises, after stopping the program on the server."""
        token = CURRENT.set(self.record.backend)
        try:
            self.record.check()
            value = self._body(self.state)
            if isinstance(value, CoroutineType):
                value.close()
                raise BadProgram(
                    "the body returned a coroutine, which nobody awaits; make the program of the `async def` itself",
                    program=self.record.name,
                )
            self.record.ret_value = value
            self.record.flush("the body ended")
        except BaseException as e:
            self.record.end(e)
            raise
        finally:
            CURRENT.reset(token)
        self.record.end()
        if global_config.verbosity >= 2 and isinstance(self.state, State):
            print(self.state.text())

    async def play_async(self) -> None:
        """`play` for an `async def` body. If the program is stopped, the body is cancelled."""
        from banyan.execution.asyncio_bridge import until_stopped  # lazily: it imports asyncio

        token = CURRENT.set(self.record.backend)
        try:
            self.record.check()
            async with until_stopped(self.record):
                self.record.ret_value = await self._body(self.state)
            self.record.flush("the body ended")
        except BaseException as e:
            self.record.end(e)
            raise
        finally:
            CURRENT.reset(token)
        self.record.end()


async def finished(run: ProgramRun[AsyncState]) -> AsyncState:
    """Run an `async def` body in this task and wait for its values. Raises the first error."""
    try:
        await run.play_async()
        return await _settled(run.record, run.state)
    except BaseException:
        run.record.error_flag.is_seen = True
        raise


async def finished_on_thread(run: ProgramRun[State]) -> AsyncState:
    """Run a `def` body on a thread of the pool and wait for its values. A stop takes effect at its next read."""
    from banyan.execution.asyncio_bridge import on_thread, until_stopped

    try:
        async with until_stopped(run.record):
            await on_thread(run.play)
        return await _settled(run.record, run.state._view(AsyncState))
    except BaseException as e:
        run.record.end(e)
        run.record.error_flag.is_seen = True
        raise


async def _settled(record: ProgramRecord, state: AsyncState) -> AsyncState:
    from banyan.execution.asyncio_bridge import wait_done

    try:
        for future in record.futures:
            await wait_done(future)
        await state.sync()
    except BaseException:
        record.program.cancel()
        raise
    return state


def run_on_thread(run: ProgramRun[State]) -> State:
    """Run the body on a thread of the pool. Returns at once, with a read-only view of its state."""
    view = read_only_view(run.state)
    # When nobody can read the state any more, stop the program: the body ends at its next read.
    weakref.finalize(view, run.record.program.cancel).atexit = False

    def body() -> None:
        with suppress(BaseException):  # the record keeps it and raises it to readers
            run.play()

    body_threads().run(body)
    return view


def read_only_view(state: P) -> P:
    """A view of the state of a running program, for code outside its body."""
    for feed in (state._names, state._transcript.own):
        state._record.close_at_end(feed)
    view = state._view(type(state))
    view._is_view = True
    return view
