"""Runs what a model calls, in this process, and sends back what it gave.

One thread per process looks after all calls: it starts them, watches their time, and sends the results of a round when
all are there. Sync tools run on a bounded number of other threads; async tools on the event loop of the program that
appended the gen, or, where that is a `def`, on the thread that looks after them.

What goes wrong in a tool is text for the model, which may try again: an unknown name, arguments that do not fit, what
the tool raises, its time that is up. Only what is no `Exception` ends the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, NamedTuple

import msgspec

from banyan.execution.feed import Feed
from banyan.execution.program_record import ProgramRecord
from banyan.execution.run_trace import TimeSpan
from banyan.execution.thread_pool import ThreadPool
from banyan.lang import fstring
from banyan.runtime.errors import ToolError
from banyan.runtime.protocol import wire
from banyan.tools.toolbox import Tool, Toolbox, ToolCall

N_THREADS = 32
"""Sync tools that run at once at most. One that is called from inside another comes on top, and so does a place for
each whose time is up and which runs on all the same: nothing in Python ends a thread."""


class Round(NamedTuple):
    """One turn in which the model called. text: the whole of it. usage: of this turn alone."""

    text: str
    calls: tuple[ToolCall, ...]
    usage: wire.TokenUsage


class Caller:
    """Makes the calls of one gen."""

    def __init__(self, record: ProgramRecord, state: int, ref: int, line: str, tools: Toolbox) -> None:
        """state, ref: of the gen, as the server numbers them."""
        self._record = weakref.ref(record)  # whoever waits for the gen holds it; a program that nobody holds ends
        self._state, self._ref, self._line, self._tools = state, ref, line, tools
        self._context = copy_context()
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self._running: asyncio.Task[None] | None = None
        self._n_streamed = 0  # characters of this round that went into `whole`
        self.rounds: list[Round] = []
        """Those that have ended."""
        self.whole: Feed[str] | None = None
        """All that the gen puts into the prompt, as it comes, where the program streams."""
        record.program.on_call(ref, self._called)
        record.program.future(ref).add_done_callback(self._ended)

    def usages(self, total: wire.TokenUsage) -> list[dict[str, int]]:
        """The tokens of each turn; `total`: of all."""
        turns = [turn.usage for turn in self.rounds]
        last = wire.TokenUsage(
            total.prompt - sum(u.prompt for u in turns),
            total.cached - sum(u.cached for u in turns),
            total.generated - sum(u.generated for u in turns),
        )
        return [
            {"prompt_tokens": u.prompt, "cached_tokens": u.cached, "completion_tokens": u.generated}
            for u in (*turns, last)
        ]

    # ---- called by the backend, on its thread ----------------------------------------------------------------------

    def stream(self, heard: Feed[wire.Delta]) -> Callable[[wire.Delta], None]:
        """What hears the pieces of the stream, and puts them into `heard`."""
        whole = self.whole = Feed[str]()

        def hear(delta: wire.Delta) -> None:
            heard.put(delta)
            if not delta.is_thought:
                self._n_streamed += len(delta.text)
                whole.put(delta.text)

        return hear

    def _called(self, called: wire.Called) -> None:
        if self.whole is not None:
            self.whole.put(called.text[self._n_streamed :])
            self._n_streamed = 0
        loop = _loop()
        loop.call_soon_threadsafe(self._begin, loop, called)

    def _ended(self, _: object) -> None:
        """The gen is known, or will never be: nothing is called for it any more."""
        if self.whole is not None:
            self.whole.close()
        if self._running is not None:
            _loop().call_soon_threadsafe(self._running.cancel)

    # ---- on the thread that looks after calls ----------------------------------------------------------------------

    def _begin(self, loop: asyncio.AbstractEventLoop, called: wire.Called) -> None:
        self._running = loop.create_task(self._round(called))
        if (record := self._record()) is None or record.program.future(self._ref).done():
            self._running.cancel()

    async def _round(self, called: wire.Called) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._call(called.round, call)) for call in called.calls]
        except ExceptionGroup as e:  # a tool ended the program, or this file has a fault: nobody may wait for it
            (first, *_) = e.exceptions
            error = ToolError(str(first), line=self._line)
            error.__cause__ = first.__cause__ or first
            if (record := self._record()) is not None:
                record.stop(error)
            return
        calls = tuple(task.result() for task in tasks)
        self.rounds.append(Round(called.text, calls, called.usage))
        if (record := self._record()) is None:
            return
        if self.whole is not None and record.backend.welcome.chat is not None:
            self.whole.put(_turns(record.backend.welcome.chat, calls))
        results = wire.Results(self._state, self._ref, called.round, tuple(call.result for call in calls))
        with contextlib.suppress(Exception):  # the record keeps it for those who observe
            record.add(results)
            record.flush()

    async def _call(self, number: int, call: wire.WireToolCall) -> ToolCall:
        start = time.monotonic()
        result, is_error = await self._result(call)
        end = time.monotonic()
        if (record := self._record()) is not None:
            span = TimeSpan("tool", call.name, start, end, self._state, self._line, result if is_error else "")
            record.trace.spans.append(span)
        made = ToolCall(
            round=number,
            name=call.name,
            arguments=_parsed(call.arguments),
            result=_cut(result, self._tools.max_output),
            is_error=is_error,
            seconds=end - start,
        )
        if record is not None and record.events is not None:
            record.events.put(made)
        return made

    async def _result(self, call: wire.WireToolCall) -> tuple[str, bool]:
        """(the result as text, whether it is an error)"""
        tool, limit = self._tools.tools.get(call.name), self._tools.timeout
        if call.error:
            return f"error: {call.error}", True
        if tool is None:
            return f"error: there is no tool {call.name!r}; there are: {', '.join(self._tools.tools)}", True
        try:
            arguments = tool.arguments(call.arguments)
        except ValueError as e:
            return f"error: the arguments of {tool.name} do not fit: {e}", True
        make = self._awaited if tool.is_async else self._on_thread
        try:
            async with asyncio.timeout(limit):
                value, error = await make(tool, arguments)
        except TimeoutError:  # ours: what the tool raises comes as a value
            return f"error: {tool.name} took longer than {limit:g} s", True
        if error is None:
            try:
                return _text(value), False
            except Exception as e:  # an object that cannot even be printed
                error = e
        if isinstance(error, asyncio.CancelledError):
            return f"error: {tool.name} was cancelled", True
        if not isinstance(error, Exception):  # SystemExit and the like are meant for the program
            raise _Fatal(f"tool {tool.name} raised {_reason(error)}") from error
        return f"error: {_reason(error)}", True

    async def _awaited(self, tool: Tool, arguments: dict[str, Any]) -> _Outcome:
        here = asyncio.get_running_loop()
        loop = here if self._loop is None or self._loop.is_closed() else self._loop
        done: Future[_Outcome] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            try:
                outcome = _Outcome(await tool.func(**arguments))
            except BaseException as e:  # a task that raises what is no Exception ends its loop
                outcome = _Outcome(error=e)
            done.set_result(outcome)

        def start() -> None:  # on the loop: a coroutine that is made here, for a loop that ends first, is never awaited
            tasks.append(loop.create_task(run()))

        def stop() -> None:
            for task in tasks:
                task.cancel()

        loop.call_soon_threadsafe(start, context=self._context.copy())
        return await _shielded(done, lambda: loop.is_closed() or loop.call_soon_threadsafe(stop))

    async def _on_thread(self, tool: Tool, arguments: dict[str, Any]) -> _Outcome:
        done: Future[_Outcome] = Future()

        def work() -> None:
            try:
                outcome = _Outcome(tool.func(**arguments))
            except BaseException as e:
                outcome = _Outcome(error=e)
            done.set_result(outcome)

        def replace() -> None:
            """It runs on; another thread takes its place until it is done."""
            _threads.lend(1)
            done.add_done_callback(lambda _: _threads.lend(-1))

        self._context.copy().run(_threads.run, work)
        return await _shielded(done, replace)


async def _shielded(done: Future[_Outcome], give_up: Callable[[], object]) -> _Outcome:
    """Wait for what is made elsewhere. Who stops to wait is let go at once, and `give_up` is called."""
    try:
        return await asyncio.shield(asyncio.wrap_future(done))
    except asyncio.CancelledError:
        if not done.done():
            give_up()
        raise


class _Outcome(NamedTuple):
    """What a tool gave. Errors travel as values: futures refuse some of them, and loops end of others."""

    value: Any = None
    error: BaseException | None = None


class _Fatal(Exception):
    """A tool ended the program."""


def _turns(chat: wire.ChatMarkers, calls: Sequence[ToolCall]) -> str:
    """What stands between a turn that calls and the next."""

    def pieces() -> Iterator[str]:
        begin, end = chat.roles.get("assistant", ("", ""))
        yield end
        for call in calls:
            before, after = chat.roles.get("tool", ("", ""))
            yield f"{before}{call.result}{after}"
        yield begin

    return "".join(pieces())


def _text(value: Any) -> str:
    """A result as the model reads it: what is a string in JSON (a date, an Enum) as it is, all else as JSON."""
    if hasattr(value, "model_dump_json"):  # pydantic's
        return str(value.model_dump_json())
    plain = msgspec.to_builtins(value, enc_hook=str)
    text = plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
    fstring.refuse(text, "the result holds an expression, such as a gen; a tool gives text")
    return text


def _cut(text: str, n_most: int) -> str:
    return text if len(text) <= n_most else f"{text[:n_most]}\n[cut here; {len(text) - n_most} more characters]"


def _reason(error: BaseException) -> str:
    words = str(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _parsed(arguments: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


# ---- the thread that looks after calls -----------------------------------------------------------------------------


def _loop() -> asyncio.AbstractEventLoop:
    """Its event loop; started by the first call."""
    global _looking
    with _starting:
        if _looking is None:
            _looking = asyncio.new_event_loop()
            threading.Thread(target=_looking.run_forever, name="banyan-tools", daemon=True).start()
        return _looking


def _renew() -> None:
    global _looking, _starting, _threads
    _looking, _starting, _threads = None, threading.Lock(), ThreadPool(N_THREADS, "banyan-tool")


_looking: asyncio.AbstractEventLoop | None
_starting: threading.Lock
_threads: ThreadPool
_renew()
os.register_at_fork(after_in_child=_renew)  # threads do not follow into a forked child
