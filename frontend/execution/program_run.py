"""One run of a program: the body that runs, the state that it writes, and how it ends."""

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
from banyan.execution.thread_pool import bodies
from banyan.lang.async_state import AsyncState
from banyan.lang.sampling import Options, mix
from banyan.lang.state import State
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import BadProgram
from banyan.sglang.global_config import global_config
from banyan.views.transcript import Transcript

P = TypeVar("P", bound=StateBase)


class ProgramRun(Generic[P]):
    """A body that was given its arguments, and a new state of `kind` for it.

    path: where the run stands among others of one seed (its index in a batch).
    """

    __slots__ = ("_body", "record", "state")

    def __init__(
        self,
        name: str,
        body: Callable[[P], Any],
        backend: Backend,
        options: Options,
        kind: type[P],
        batch: BatchLimits | None = None,
        *path: int,
    ) -> None:
        self._body = body
        self.record = ProgramRecord(name, backend, options, batch)
        self.record.index = path[-1] if path else None
        seed = mix(options.seed, *path) if path else options.seed
        self.state = kind(self.record, self.record.new_lane(), seed, Transcript())

    def play(self) -> None:
        """Run the body here. What it raises is raised, and what it started is stopped."""
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
        """`play`, for a body that is awaited; it ends where it stands when its program is stopped."""
        from banyan.execution.asyncio_bridge import until_stopped  # here: it loads asyncio

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
    """Run an `async def` body in this task; gives its state when all is done, and raises what went wrong."""
    try:
        await run.play_async()
        return await _settled(run, run.state)
    except BaseException:
        run.record.notice.is_given = True
        raise


async def finished_on_thread(run: ProgramRun[State]) -> AsyncState:
    """Run a `def` body on a thread of the pool. Nothing stops it there before its next look at a value."""
    from banyan.execution.asyncio_bridge import on_thread, until_stopped  # here: it loads asyncio

    try:
        async with until_stopped(run.record):
            await on_thread(run.play)
        return await _settled(run, run.state._as(AsyncState))
    except BaseException as e:
        run.record.end(e)
        run.record.notice.is_given = True
        raise


async def _settled(run: ProgramRun[Any], state: AsyncState) -> AsyncState:
    from banyan.execution.asyncio_bridge import arrived

    try:
        for number in range(run.record.n_refs):
            await arrived(run.record.program.future(number))
        await state.sync()
    except BaseException:
        run.record.program.cancel()
        raise
    return state


def aside(run: ProgramRun[State]) -> State:
    """Run the body on a thread, and give at once what those outside may look at."""
    handle = watched(run.state)
    # Nobody reads any more: the body's next look at a value, at the latest, ends it.
    weakref.finalize(handle, run.record.program.cancel).atexit = False

    def body() -> None:
        with suppress(BaseException):  # the record has it, and raises it to whoever reads
            run.play()

    bodies().run(body)
    return handle


def watched(state: P) -> P:
    """A handle for those outside on the state of a program that still runs."""
    for feed in (state._names, state._transcript.own):
        state._record.close_at_end(feed)
    handle = state._as(type(state))
    handle._is_handle = True
    return handle
