"""bn.mcp: the tools of MCP servers of this process, over HTTP, and of commands that hang or die."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import banyan as bn
from waits import join, wait_until, wait_until_async

if TYPE_CHECKING:  # it takes a second to import, in each worker that collects this file
    from mcp.server import MCPServer
if importlib.util.find_spec("mcp") is None:
    pytest.skip("the extra mcp is not installed", allow_module_level=True)

COMMAND = """
import json, sys, os
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("hang", "die", "pid", "environment.of")]
for line in sys.stdin:
    message = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    match message["method"], message.get("params", {}).get("name"):
        case "initialize", _:
            answer["result"] = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "x", "version": "1"},
            }
        case "tools/list", _:
            at = int(message["params"].get("cursor", 0)) if message.get("params") else 0
            answer["result"] = {"tools": TOOLS[at : at + 2]} | ({"nextCursor": "2"} if at == 0 else {})
        case "tools/call", "die":
            os._exit(1)
        case "tools/call", "hang":
            continue
        case "tools/call", name:
            text = str(os.getpid()) if name == "pid" else json.dumps(dict(os.environ))
            image = {"type": "image", "data": "", "mimeType": "a/b"}
            file = {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}
            answer["result"] = {"content": [{"type": "text", "text": one} for one in (text, "")] + [image, file]}
        case _ if "id" in message:
            answer["error"] = {"code": -32601, "message": "no such method"}
        case _:
            continue
    print(json.dumps(answer), flush=True)
"""
"""A server with few imports, because the package takes a second to start."""
PYTHON = [sys.executable, "-I", "-S", "-c"]


@pytest.fixture(scope="module")
def shop() -> MCPServer:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server = MCPServer("shop")

    @server.tool()
    def price(item: str) -> float:
        "The price of an item."
        if item not in {"lamp": 24.5}:
            raise ToolError(f"no {item} here")
        return 24.5

    @server.tool()
    async def everything() -> dict[str, list[int]]:
        "All."
        return {"all": [1, 2]}

    return server


@pytest.fixture
def url(shop: MCPServer) -> Iterator[str]:
    """The server over HTTP."""
    import uvicorn

    options = uvicorn.Config(shop.streamable_http_app(), port=0, log_level="error", ws="none", lifespan="on")
    server = uvicorn.Server(options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the HTTP server", alive=thread.is_alive)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        join(thread)


@bn.function
def ask(s: bn.State, tools: Any, **options: Any) -> None:
    s += bn.user("q") + bn.assistant(bn.gen("a", tools=tools, **options))


def call(tools: Any, name: str, **arguments: Any) -> bn.ToolCall:
    (made,) = ask.run(tools, backend=bn.Mock([{name: arguments}, "done"])).tool_calls("a")
    return made


def test_tools_of_a_server_run_beside_others_and_its_errors_go_to_the_model(shop: MCPServer) -> None:
    @bn.tool
    def add(a: int, b: int) -> int:
        "Add."
        return a + b

    with bn.mcp(shop, prefix="shop.") as tools:
        price, _ = tools
        assert (price.name, price.description) == ("shop_price", "The price of an item.")
        assert (price.schema["properties"]["item"]["type"], price.schema["required"]) == ("string", ["item"])
        first = ({"shop_price": {"item": "lamp"}}, {"shop_everything": {}}, {"add": {"a": 1, "b": 2}})
        state = ask.run([*tools, add], backend=bn.Mock([first, {"shop_price": {"item": "cat"}}, "done"]))
        assert [(one.result, one.is_error) for one in state.tool_calls("a")] == [
            ("24.5", False),
            ('{\n  "all": [\n    1,\n    2\n  ]\n}', False),
            ("3", False),
            ("error: RuntimeError: Error executing tool price: no cat here", True),
        ]
        assert "validation error" in call(tools, "shop_price", item=[1]).result
        assert asyncio.run(price(item="lamp")) == "24.5"  # from a loop of its own
    late = bn.Mock([{"shop_price": {"item": "lamp"}}, "done"])
    with pytest.raises(bn.ToolError, match="ConnectionClosed: MCP server MCPServer: read a program's values inside"):
        ask.run(tools, backend=late).value("a")


def test_an_async_program_uses_a_server_over_http(url: str, run_loop: Callable[[Awaitable[Any]], Any]) -> None:
    @bn.function
    async def program(s: bn.AsyncState, tools: Any) -> None:
        s += bn.user("q") + bn.assistant(bn.gen("a", tools=tools))

    async def main() -> None:
        async with bn.mcp(url) as tools:
            state = await program.run_async(tools, backend=bn.Mock([{"price": {"item": "lamp"}}, "done"]))
            assert [one.result for one in await state.tool_calls("a")] == ["24.5"]

    run_loop(main())


def test_a_command_gets_few_variables_and_ends_with_the_block() -> None:
    with bn.mcp([*PYTHON, COMMAND], env={"KEY": "1"}) as tools:
        assert [tool.name for tool in tools] == ["hang", "die", "pid", "environment_of"]  # from two pages
        text, _, left_out = call(tools, "environment_of").result.partition("\n")
        assert '"KEY": "1"' in text
        assert "PYTEST" not in text
        assert left_out == "\n[a part of type image, which is left out]\ninside"
        pid = int(call(tools, "pid").result.split()[0])
    assert not psutil.pid_exists(pid)


def test_a_call_that_hangs_or_whose_server_dies_is_an_error_for_the_model() -> None:
    with bn.mcp([*PYTHON, COMMAND]) as tools:
        backend = bn.Mock([{"hang": {}}, {"die": {}}, {"pid": {}}, "done"])
        hung, died, dead = ask.run(tools, tool_timeout=0.1, backend=backend).tool_calls("a")
    assert hung.result == "error: hang took longer than 0.1 s"
    assert "Connection closed" in died.result or "took longer" in died.result
    assert dead.is_error


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("no-such-command --fast", "MCP server no-such-command --fast: .*No such file"),
        ([*PYTHON, "pass"], "Connection closed"),
        ([*PYTHON, "input() and input()"], "no answer within 0.3 s"),
        ("http://127.0.0.1:9/mcp", "connection attempts failed"),
    ],
)
def test_a_server_that_does_not_answer_is_an_error(server: Any, why: str) -> None:
    with pytest.raises(bn.ConnectFailed, match=why), bn.mcp(server, timeout=0.3 if "within" in why else 60):
        pass


def test_a_wait_for_a_connection_can_be_cancelled(run_loop: Callable[[Awaitable[Any]], Any]) -> None:
    from mcp.shared.memory import create_client_server_memory_streams

    began, ended = threading.Event(), threading.Event()

    @asynccontextmanager
    async def silent() -> AsyncIterator[Any]:
        async with create_client_server_memory_streams() as (client, _):
            began.set()
            try:
                yield client
            finally:
                ended.set()

    async def main() -> None:
        entering = asyncio.create_task(bn.mcp(silent(), timeout=1000).__aenter__())
        await wait_until_async(began.is_set, "the connection")
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering

    run_loop(main())
    wait_until(ended.is_set, "the end of the transport")


def test_a_server_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp.server import MCPServer

    @asynccontextmanager
    async def endless(_: Any) -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    monkeypatch.setattr("banyan.tools.mcp.CLOSE_TIMEOUT", 0.1)
    with pytest.raises(bn.RuntimeLost, match="end of the block: no answer"), bn.mcp(MCPServer("x", lifespan=endless)):
        pass


def test_wrong_use_is_refused(shop: MCPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = bn.mcp(shop)
    with ExitStack() as stack:
        stack.enter_context(connection)
        with pytest.raises(bn.BadProgram, match="is open"):
            connection.__enter__()
    with connection as tools:  # but may be opened again
        assert len(tools) == 2
    for options in ({"server": ""}, {"server": shop, "env": {"A": "B"}}, {"server": shop, "timeout": 0}):
        with pytest.raises(bn.BadProgram):
            bn.mcp(**options)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(bn.ConfigError, match=r"pip install 'banyan\[mcp\]'"):
        bn.mcp(shop)
