"""The tools of MCP servers. Needs the `mcp` package: the extra `mcp`.

A connection is one task on the event loop of `tools/caller.py`, because the package requires that the task that opened
a connection also closes it. All calls run on this loop too, whatever loop or thread their program runs on.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

from banyan.runtime.errors import BadProgram, ConfigError, ConnectFailed, RuntimeLost
from banyan.tools.caller import tool_loop
from banyan.tools.toolbox import Tool

CLOSE_TIMEOUT = 10.0
"""Seconds for closing a connection. The package waits 4.5 s for the server's process to end, and then kills it."""


def mcp(server: Any, *, env: Mapping[str, str] | None = None, prefix: str = "", timeout: float = 60.0) -> MCPConnection:
    """The tools of an MCP server: `with bn.mcp(server) as tools:`, or `async with`, and inside `gen(tools=tools)`.

    server: a command, as one text or as a list, which is started and used through its stdin and stdout; the URL of a
    server with streamable HTTP; or a transport or server object for the package's own `mcp.Client`. env: further
    environment variables for the command, which gets only PATH, HOME and the like from this process. prefix: put before
    the tools' names. timeout: seconds within which the server must list its tools. The end of the block closes the
    connection, and ends the command.

    ConfigError: the package `mcp` is missing. ConnectFailed: the server cannot be reached, or does not answer in time.
    """
    try:
        from mcp import Client, StdioServerParameters, stdio_client
    except ImportError:
        raise ConfigError("bn.mcp needs the package mcp, 2.0 or newer: pip install 'banyan[mcp]'") from None
    if not timeout > 0:
        raise BadProgram(f"timeout is {timeout!r}; it must be more than 0 seconds")
    label = server if isinstance(server, str) else type(server).__name__
    if isinstance(server, Sequence) and not (isinstance(server, str) and re.match("https?://", server)):
        command = shlex.split(server) if isinstance(server, str) else [os.fspath(word) for word in server]
        if not command:
            raise BadProgram("the command of the MCP server is empty")
        label = f"{' '.join(shlex.join(command).split()):.100}"
        parameters = StdioServerParameters(command=command[0], args=command[1:], env=dict(env or {}))
        # sys.stderr may be an object without a file, as in a notebook.
        return MCPConnection(lambda: Client(stdio_client(parameters, sys.__stderr__)), label, prefix, timeout)
    if env:
        raise BadProgram("env is for a server that is started by a command")
    return MCPConnection(lambda: Client(server), label, prefix, timeout)


class ConnectionClosed(BaseException):
    """Raised if a tool of an MCP server is called after its connection was closed, at the end of the `with` block.

    It is a BaseException, so it ends the program. An Exception would only tell the model, which cannot open the
    connection.
    """


class MCPConnection:
    """A connection to an MCP server, open inside `with` or `async with`. Entering it returns the tools."""

    def __init__(self, make_client: Callable[[], Any], label: str, prefix: str, timeout: float) -> None:
        """make_client: returns an `mcp.Client`. label: the server's name in messages."""
        self._make_client, self._label, self._prefix, self._timeout = make_client, label, prefix, timeout
        self._task: Future[None] | None = None

    def __repr__(self) -> str:
        return f"<MCP server {self._label}>"

    def __enter__(self) -> tuple[Tool, ...]:
        opened = self._start()
        try:
            return opened.result()
        except BaseException:
            self._end()
            raise

    def __exit__(self, *_: object) -> None:
        self._end().result()

    async def __aenter__(self) -> tuple[Tool, ...]:
        opened = self._start()
        try:
            return await asyncio.wrap_future(opened)
        except BaseException:
            self._end()
            raise

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wrap_future(self._end())

    def _start(self) -> Future[tuple[Tool, ...]]:
        if self._task is not None and not self._task.done():
            raise BadProgram(
                f"the connection to the MCP server {self._label} is open already; make another one with bn.mcp"
            )
        self._process, self._loop = os.getpid(), tool_loop()
        self._opened, self._closing = Future[tuple[Tool, ...]](), asyncio.Event()
        self._task = asyncio.run_coroutine_threadsafe(self._serve(self._opened, self._closing), self._loop)
        return self._opened

    def _end(self) -> Future[None]:
        """Close the connection, or stop opening it. Returns a future that is done when the connection is closed."""
        assert self._task is not None
        self._check_process()
        if self._opened.cancelled() or not self._opened.done():
            self._task.cancel()
        self._loop.call_soon_threadsafe(self._closing.set)
        return self._task

    def _check_process(self) -> None:
        RuntimeLost.unless_in(self._process, f"the connection to the MCP server {self._label}")

    # ---- on the event loop of tools/caller.py ----------------------------------------------------------------------

    async def _serve(self, opened: Future[tuple[Tool, ...]], closing: asyncio.Event) -> None:
        """Connect, set the tools as the result of `opened`, and close after `closing` is set."""
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(self._timeout) as limit, AsyncExitStack() as stack:
                client = await stack.enter_async_context(self._make_client())
                tools = await self._list_tools(client)
                limit.reschedule(None)
                opened.set_result(tools)
                await closing.wait()
                limit.reschedule(now() + CLOSE_TIMEOUT)
        except Exception as e:
            if opened.done():
                raise RuntimeLost(f"MCP server {self._label}, at the end of the block: {_reason(e)}") from e
            error = ConnectFailed(f"MCP server {self._label}: {_reason(e, self._timeout)}")
            error.__cause__ = e
            opened.set_exception(error)

    async def _list_tools(self, client: Any) -> tuple[Tool, ...]:
        tools: list[Tool] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += [self._tool(client, one) for one in page.tools]
            if not (cursor := page.next_cursor):
                return tuple(tools)

    def _tool(self, client: Any, described: Any) -> Tool:
        async def call(**arguments: Any) -> Any:
            self._check_process()
            if self._closing.is_set():
                raise ConnectionClosed(f"MCP server {self._label}: read a program's values inside the `with` block")
            calling = asyncio.run_coroutine_threadsafe(client.call_tool(described.name, arguments), self._loop)
            result = await asyncio.wrap_future(calling)
            text = "\n".join(map(_text, result.content))
            if result.is_error:
                raise RuntimeError(text)
            return text if result.content else result.structured_content

        name = re.sub("[^A-Za-z0-9_-]", "_", self._prefix + described.name)[:64]
        return Tool(call, name, described.description or described.title or name, described.input_schema)


def _text(block: Any) -> str:
    """The text of one part of a tool's result."""
    text = getattr(getattr(block, "resource", block), "text", None)
    return text if isinstance(text, str) else f"[a part of type {block.type}, which is left out]"


def _reason(error: BaseException, timeout: float = CLOSE_TIMEOUT) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"no answer within {timeout:g} s" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
