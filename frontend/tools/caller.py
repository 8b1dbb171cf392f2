"""Executes the tool calls of a model in the user's process and sends the results to the server.

A round is one turn of the model that calls tools. One thread runs an event loop that starts the calls of a round, and
sends their results together. Sync tools run in a bounded thread pool. Async tools run on the program's event loop; for
a sync program, on the loop of this module. If a tool raises, the model gets the error as text. Only an exception that
is not an Exception, such as SystemExit, ends the program.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn

import msgspec

from banyan.execution.feed import Feed
from banyan.execution.program_record import ProgramRecord
from banyan.execution.run_trace import Round, TimeSpan
from banyan.execution.thread_pool import ThreadPool
from banyan.lang import fstring
from banyan.lang.json_types import plain
from banyan.runtime.errors import ToolError
from banyan.runtime.protocol import wire
from banyan.tools.checks import ServerCallback
from banyan.tools.toolbox import Tool, Toolbox, ToolCall

_logger = logging.getLogger("banyan")

N_THREADS = 32
"""The largest number of sync tools that run concurrently. A tool that another tool calls gets a thread beyond this
limit. Each tool that still runs after its timeout raises the limit by one, because Python cannot end a thread."""


class Caller(ServerCallback):
    """Executes the tool calls of one gen."""

    def __init__(
        self, record: ProgramRecord, state: int, ref: int, line: str, tools: Toolbox, *, is_async: bool
    ) -> None:
        """state, ref: the server's numbers for the state and for the value of the gen. line: the gen's source line, for
        errors. is_async: whether the program is an `async def`; its async tools then run on the current event loop."""
        self._line, self._tools = line, tools
        self._loop: asyncio.AbstractEventLoop | None = None
        if is_async:  # a sync program that is called on an event loop blocks that loop
            with suppress(RuntimeError):
                self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None
        self._n_streamed = 0  # characters of this round already in `full_text`
        self.rounds = record.trace.rounds[ref] = list[Round]()
        """The rounds that have ended."""
        self.full_text: Feed[str] | None = None
        """If the program streams: everything the gen appends to the prompt, tool results included."""
        super().__init__(record, state, ref)
        record.program.future(ref).add_done_callback(self._on_gen_done)

    # ---- callbacks on the backend's thread -------------------------------------------------------------------------

    def stream(self, deltas: Feed[wire.Delta]) -> Callable[[wire.Delta], None]:
        """Prepare for a program that streams. Returns a callback for each delta from the server. The callback puts the
        delta into `deltas`, and its text, unless it is reasoning, into `full_text`."""
        full_text = self.full_text = Feed[str]()

        def on_delta(delta: wire.Delta) -> None:
            deltas.put(delta)
            if not delta.is_thought:
                self._n_streamed += len(delta.text)
                full_text.put(delta.text)

        return on_delta

    def _on_called(self, called: wire.Called) -> None:
        if self.full_text is not None:
            self.full_text.put(called.text[self._n_streamed :])
            self._n_streamed = 0
        loop = tool_loop()
        loop.call_soon_threadsafe(self._start_round, loop, called)

    def _on_gen_done(self, _: object) -> None:
        """Cancel the calls that still run, because the gen has a value or has failed."""
        if self.full_text is not None:
            self.full_text.close()
        if self._running is not None:
            tool_loop().call_soon_threadsafe(self._running.cancel)

    # ---- on the event loop of this module --------------------------------------------------------------------------

    def _start_round(self, loop: asyncio.AbstractEventLoop, called: wire.Called) -> None:
        self._running = loop.create_task(self._round(called))
        if (record := self._record()) is None or record.program.future(self._ref).done():
            self._running.cancel()

    async def _round(self, called: wire.Called) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._call(called.round, k, call)) for k, call in enumerate(called.calls)]
        except ExceptionGroup as e:  # a tool ended the program, or this module has a bug: the gen must not hang
            (first, *_) = e.exceptions
            self._stop(ToolError(str(first), line=self._line), first.__cause__ or first)
            return
        ended = Round(called.text, tuple(task.result() for task in tasks))
        self.rounds.append(ended)
        record = self._record()
        if self.full_text is not None and record is not None and record.backend.welcome.chat is not None:
            self.full_text.put(ended.results(record.backend.welcome.chat))
        self._send(called.round, tuple(call.result for call in ended.calls))

    async def _call(self, round_: int, k: int, call: wire.WireToolCall) -> ToolCall:
        start = time.monotonic()
        result, is_error = await self._result(call, partial(self._seed_calls, round_, k))
        result = result.encode(errors="backslashreplace").decode()  # names of files may have lone surrogates
        end = time.monotonic()
        n_cut = len(result) - self._tools.max_output
        finished = ToolCall(
            round=round_,
            name=call.name,
            arguments=_parsed(call.arguments),
            result=result if n_cut <= 0 else f"{result[:-n_cut]}\n[cut here; {n_cut} more characters]",
            is_error=is_error,
            seconds=end - start,
        )
        if (record := self._record()) is not None:
            span = TimeSpan("tool", call.name, start, end, self._state, self._line, result if is_error else "")
            record.trace.spans.append(span)
            if record.events is not None:
                record.events.put(finished)
        return finished

    async def _result(self, call: wire.WireToolCall, enter: Callable[[], None]) -> tuple[str, bool]:
        """Execute a call. enter: called before the tool, on its thread. Returns the result as text, and whether it
        describes an error."""
        tool, timeout = self._tools.tools.get(call.name), self._tools.timeout
        if call.error:
            return f"error: {call.error}", True
        if tool is None:
            return f"error: there is no tool {call.name!r}; the tools are: {', '.join(self._tools.tools)}", True
        try:
            arguments = tool.arguments(call.arguments)
        except Exception as e:  # not only ValueError: a user's validator may raise anything
            why = e if isinstance(e, ValueError) else _reason(e)
            return f"error: the arguments of {tool.name} are not valid: {why}", True
        try:
            async with asyncio.timeout(None) as clock:

                def begin() -> None:
                    """Start the clock of the call: called when the call gets its thread, so that waiting for a thread
                    does not count."""
                    if timeout is not None:
                        with suppress(RuntimeError):  # the call was cancelled meanwhile
                            clock.reschedule(asyncio.get_running_loop().time() + timeout)

                if tool.is_async:
                    begin()
                    value, error = await self._on_loop(tool, arguments, enter)
                else:
                    value, error = await self._on_thread(tool, arguments, enter, begin)
        except TimeoutError:  # the timeout above: a TimeoutError of the tool itself arrives as `error`
            return f"error: {tool.name} took longer than {timeout:g} s", True
        if error is None:
            try:
                return _text(value), False
            except Exception as e:  # the value cannot be converted to text
                error = e
        if isinstance(error, asyncio.CancelledError):
            return f"error: {tool.name} was cancelled", True
        if not isinstance(error, Exception):  # such as SystemExit, which is meant for the program
            raise _Fatal(f"tool {tool.name} raised {_reason(error)}") from error
        _logger.debug("tool %s raised an exception, whose text the model gets", tool.name, exc_info=error)
        return f"error: {_reason(error)}", True

    async def _on_loop(self, tool: Tool, arguments: dict[str, Any], enter: Callable[[], None]) -> _Outcome:
        loop = asyncio.get_running_loop() if self._loop is None or self._loop.is_closed() else self._loop
        done: Future[_Outcome] = Future()
        tasks: list[asyncio.Task[None]] = []
        unstarted: list[weakref.finalize[Any, Any]] = []

        async def run() -> None:
            unstarted.pop().detach()
            enter()
            try:
                outcome = _Outcome(await tool.func(**arguments))
            except BaseException as e:  # a task that raises a BaseException would end its loop
                outcome = _Outcome(error=e)
            done.set_result(outcome)

        def start() -> None:  # creates the coroutine on the loop: if the loop ends first, it is never created
            coroutine = run()
            tasks.append(loop.create_task(coroutine))
            # If the loop ends before the task's first step, Python would warn that the coroutine was never awaited.
            unstarted.append(weakref.finalize(tasks[0], coroutine.close))

        def stop() -> None:
            for task in tasks:
                task.cancel()

        loop.call_soon_threadsafe(start, context=self._context.copy())
        return await _shielded(done, lambda: loop.is_closed() or loop.call_soon_threadsafe(stop))

    async def _on_thread(
        self, tool: Tool, arguments: dict[str, Any], enter: Callable[[], None], begin: Callable[[], None]
    ) -> _Outcome:
        """Run a sync tool on a thread of the pool, and wait for its result. begin: called on the event loop of this
        coroutine when a thread starts the tool."""
        loop, threads = asyncio.get_running_loop(), _threads
        done: Future[_Outcome] = Future()

        def work() -> None:
            if not done.set_running_or_notify_cancel():
                return
            loop.call_soon_threadsafe(begin)
            enter()
            try:
                value = tool.func(**arguments)
                if isinstance(value, Coroutine):  # of an `async def` behind a sync decorator
                    value.close()
                    raise TypeError("the tool returned a coroutine; put @bn.tool on the `async def` itself")
                outcome = _Outcome(value)
            except BaseException as e:
                outcome = _Outcome(error=e)
            done.set_result(outcome)

        def abandon() -> None:
            """Give up a call that was cancelled or has timed out. If the tool waits for a thread, it never runs. If it
            runs, it keeps its thread, so the thread pool may start one more thread until the tool ends."""
            if done.cancel():
                return
            threads.lend(1)
            done.add_done_callback(lambda _: threads.lend(-1))

        self._context.copy().run(threads.run, work)
        return await _shielded(done, abandon)


async def _shielded(done: Future[_Outcome], on_cancel: Callable[[], object]) -> _Outcome:
    """Wait for the outcome of a tool. If the waiting task is cancelled, call `on_cancel` and raise CancelledError at
    once, without waiting for the tool to end."""
    try:
        return await asyncio.shield(asyncio.wrap_future(done))
    except asyncio.CancelledError:
        if not done.done():
            on_cancel()
        raise


class _Outcome(NamedTuple):
    """What a tool returned or raised. The error is kept as a value, because futures do not accept every exception, and
    a BaseException in a task ends the event loop."""

    value: Any = None
    error: BaseException | None = None


class _Fatal(Exception):
    """A tool raised an exception that ends the program, such as SystemExit."""


def _text(value: Any) -> str:
    """A tool's result as text for the model: strings, dates and string enums as they are, other values as JSON, in
    which NaN and Infinity may occur. TypeError: a part of the result has no meaningful text."""
    if hasattr(value, "model_dump_json"):  # a pydantic model, which may have its own settings for JSON
        return str(value.model_dump_json())
    builtins = msgspec.to_builtins(value, builtin_types=_BYTES, enc_hook=_plain)
    text = builtins if isinstance(builtins, str) else _as_json(builtins)
    fstring.refuse(text, "the result holds an expression, such as a gen; a tool must return text")
    return text


_BYTES = (bytes, bytearray, memoryview)  # msgspec would write them in base64


def _refuse_bytes(value: Any) -> NoReturn:
    raise TypeError(f"the result holds {type(value).__qualname__}; return a str, such as value.decode()")


_as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_refuse_bytes).encode


def _plain(value: Any) -> Any:
    """Convert a value that msgspec cannot encode: a pydantic model to a dict, any other object to its `str`. TypeError:
    the value is a state, an iterator, or an object without a text."""
    kind: Any = type(value)
    if hasattr(kind, "_instead"):  # a state, whose text is the whole prompt, or branches
        raise TypeError(f"the result holds {kind.__name__}; return the text of a variable, such as state['x']")
    if isinstance(value, Iterator | AsyncIterator) and kind.__str__ is object.__str__:
        raise TypeError(f"the result holds an iterator of class {kind.__qualname__}; return a list of its items")
    return plain(value)


def _reason(error: BaseException) -> str:
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _parsed(arguments: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except msgspec.DecodeError:  # no JSON, or not an object
        return {}


# ---- the event loop and the threads of this process ----------------------------------------------------------------


def tool_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this module. The first call starts the loop on a new thread."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="banyan-tools", daemon=True).start()
        return _loop


def _reset() -> None:
    global _loop, _starting
    _loop, _starting = None, threading.Lock()


_loop: asyncio.AbstractEventLoop | None
_starting: threading.Lock
_reset()
os.register_at_fork(after_in_child=_reset)  # a forked child has no threads of its parent
_threads = ThreadPool(N_THREADS, "banyan-tool")
