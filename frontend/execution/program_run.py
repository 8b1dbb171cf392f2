"""Runs the body of a program on a new state: on the caller's thread, in the caller's task, or on a pool thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from types import CoroutineType
from typing import Any, Generic, TypeVar

from banyan.backends.base import Backend
from banyan.backends.default import CURRENT
from banyan.execution.async_body import ASYNC_BODY
from banyan.execution.program_record import CALLER, SEEDS, ProgramRecord, Seeds
from banyan.execution.run_limits import Limits
from banyan.execution.thread_pool import body_threads
from banyan.lang.async_state import AsyncState
from banyan.lang.sampling import Options, mix
from banyan.lang.state import State
from banyan.lang.state_base import StateBase, with_state
from banyan.runtime.errors import BadProgram
from banyan.sglang.global_config import global_config
from banyan.views.transcript import Transcript

P = TypeVar("P", bound=StateBase)


class _Playing:
    """A `with` block in which the body of a program runs. If the body raises, the program is stopped on the server."""

    __slots__ = ("_caller", "_record", "_seeds", "_token")

    def __init__(self, record: ProgramRecord) -> None:
        self._record = record

    def __enter__(self) -> None:
        self._token = CURRENT.set(self._record.backend)
        self._caller = CALLER.set(weakref.ref(self._record))
        self._seeds = SEEDS.set(Seeds(self._record.backend, self._record.seed, -1))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                self._record.flush("the body ended")
        except BaseException as e:
            self._record.end(e)
            raise
        else:
            self._record.end(error)
        finally:
            SEEDS.reset(self._seeds)
            CALLER.reset(self._caller)
            CURRENT.reset(self._token)


class ProgramRun(Generic[P]):
    """A body with its arguments bound, and the new state to which it will append."""

    __slots__ = ("_body", "record", "state")

    def __init__(
        self,
        name: str,
        body: Callable[[P], Any],
        backend: Backend,
        options: Options,
        state_class: type[P],
        batch: Limits | None = None,
        index: int | None = None,
    ) -> None:
        """index: the index of the batch item, from which the seed of the run is derived; None outside a batch."""
        self._body = body
        self.record = ProgramRecord(name, backend, options, batch)
        self.record.index = index
        self.record.seed = seed = options.seed if index is None else mix(options.seed, index)
        self.state = state_class(self.record, self.record.new_handle(), seed, Transcript())

    def play(self) -> None:
        """Run the body on this thread. Raises the body's error."""
        with _Playing(self.record):
            self.record.check()
            value = self._body(self.state)
            if isinstance(value, CoroutineType):
                value.close()
                raise BadProgram(
                    "the body returned a coroutine, which nobody awaits; decorate the `async def` itself",
                    program=self.record.name,
                )
            self.record.ret_value = value
        if global_config.verbosity >= 2 and isinstance(self.state, State):
            print(self.state.text())

    async def play_async(self) -> None:
        """Like `play`, for an `async def` body. If the program is stopped, the body is cancelled."""
        from asyncio import get_running_loop  # lazily: it takes longer to import than the rest of the package

        from banyan.execution.asyncio_bridge import UntilStopped

        token = ASYNC_BODY.set((get_running_loop(), self.record.name))
        try:
            with _Playing(self.record):
                self.record.check()
                async with UntilStopped(self.record):
                    self.record.ret_value = await self._body(self.state)
        finally:
            ASYNC_BODY.reset(token)


def unread_error(state: State) -> BaseException | None:
    """Returns `state.error()` without marking the error as seen: if no reader receives it later, it is logged."""
    error_flag = state._record.error_flag
    was_seen = error_flag.is_seen
    error = state.error()
    error_flag.is_seen = was_seen
    return error


async def finished(run: ProgramRun[Any]) -> AsyncState:
    """Run the body (an `async def` in this task, a `def` on a thread), and wait for its values. Returns the state, or
    raises the first error."""
    from banyan.execution.asyncio_bridge import UntilStopped, on_thread, wait_done  # lazily: it imports asyncio

    record = run.record
    state: AsyncState = run.state._view(AsyncState)
    try:
        if isinstance(run.state, AsyncState):
            await run.play_async()
        else:
            async with UntilStopped(record):
                await on_thread(body_threads(), run.play)
        for future in record.futures:
            await wait_done(future)
        await state.sync()
    except BaseException as e:
        if not record.ended.is_closed:  # the task was cancelled while the body runs on its thread
            record.end(e)
        record.cancel()
        record.error_flag.is_seen = True
        with_state(e, state)
        raise
    return state


def start_on_thread(run: ProgramRun[State], then: Callable[[], None] = lambda: None) -> None:
    """Run the body on a thread of the pool, without waiting for it. then: called when the body has ended."""

    def body() -> None:
        with suppress(BaseException):  # the record keeps the error and raises it where a value is read
            run.play()
        then()

    body_threads().run(body)


def read_only_view(state: P) -> P:
    """A view of the state of a running program, for code outside its body."""
    for feed in (state._names, state._transcript.own):
        state._record.close_at_end(feed)
    view = state._view(type(state))
    view._is_view = True
    return view
