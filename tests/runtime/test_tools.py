"""Gens with tools over a real socket, with the fake engine: tool calls, their limits and failures."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from banyan.runtime import launch
from banyan.runtime.client.client import Client
from waits import wait_until

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }};{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURN_END = "<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call>'
SAY = {
    f"ask{TURN_END}": f"{CALL}<|im_end|>",
    f"saw 1{TURN_END}": "It is one.<|im_end|>",
    f"more{TURN_END}": "And more.<|im_end|>",
}


@pytest.fixture
def connect(join_shared: Callable[..., Client]) -> Callable[..., bn.RuntimeEndpoint]:
    """`connect(say={...}) -> RuntimeEndpoint` of a server whose model has tools."""
    return lambda **rule: bn.connect(join_shared(template=TEMPLATE, **({"say": SAY} | rule)).path)


class BlockingTool:
    """An async tool that waits until `release` is set."""

    def __init__(self) -> None:
        self.started, self.ended, self.release = threading.Event(), threading.Event(), threading.Event()

    @bn.tool
    async def look(self, x: int) -> str:
        "Look."
        self.started.set()
        try:
            while not self.release.is_set():
                await asyncio.sleep(0.01)
        finally:
            self.ended.set()
        return f"saw {x}"


@bn.function
def ask(s: bn.State, *tools: Any) -> None:
    s += bn.user("ask") + bn.assistant(bn.gen("a", tools=tools, max_tokens=200))
    s += bn.user("more") + bn.assistant(bn.gen("b", max_tokens=200))


@bn.tool
def look(x: int) -> str:
    "Look."
    return f"saw {x}"


def test_tool_result_is_given_to_the_model(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    backend = connect()
    assert backend.welcome.chat.calls == '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    state = ask.run(look, backend=backend)
    assert (state["a"], state["b"]) == ("It is one.", "And more.")
    (call,) = state.tool_calls("a")
    assert (call.name, call.arguments, call.result) == ("look", {"x": 1}, "saw 1")
    turns = [("system", "look;"), ("user", "ask"), ("assistant", CALL), ("tool", "saw 1"), ("assistant", "It is one.")]
    expected = [*turns, ("user", "more"), ("assistant", "And more.")]
    assert state.text() == "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in expected)
    assert state.messages() == [{"role": role, "content": content} for role, content in expected[1:]]


def test_streamed_text_with_tools_equals_the_states_text(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    state = ask.run(look, backend=connect(), stream=True)
    assert "".join(state.text_iter("a")) == "It is one."
    assert "<|im_start|>system\nlook;<|im_end|>\n" + "".join(state.text_iter()) == state.text()


def test_tools_in_an_async_program(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    tool = BlockingTool()
    tool.release.set()

    @bn.function
    async def program(s: bn.AsyncState) -> str:
        s += bn.user("ask") + bn.assistant(bn.gen("a", tools=[tool.look], max_tokens=200))
        return await s.value("a")

    assert asyncio.run(program.run_async(backend=connect())).ret_value == "It is one."


def test_tool_rounds_are_limited(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    state = ask.run(look, backend=connect(say={TURN_END: f"{CALL}<|im_end|>"}))
    with pytest.raises(bn.ToolError, match=r"still calls tools .* after 4 rounds.*gen 'a', test_tools.py"):
        state["a"]
    with pytest.raises(bn.ToolError):
        state["b"]
    assert len(state.tool_calls("a")) == 4


def test_model_without_tools_is_refused_at_the_append(serve: Callable[..., launch.ServerProcess]) -> None:
    backend = bn.connect(serve().socket)
    with pytest.raises(bn.ToolError, match="does not support tools"):
        ask.run(look, backend=backend)


def test_server_death_during_a_tool_call_cancels_the_tool(
    serve: Callable[..., launch.ServerProcess], fake_model: Callable[..., Path]
) -> None:
    (fake_model() / "chat_template.jinja").write_text(TEMPLATE)
    backend, tool = bn.connect(serve(say=SAY).socket), BlockingTool()
    state = ask.run(tool.look, backend=backend)
    assert tool.started.wait(20)
    os.kill(backend.ask("info")["pid"], signal.SIGKILL)
    with pytest.raises(bn.RuntimeLost):
        state["a"]
    assert tool.ended.wait(20), "the tool was not cancelled"


def test_engine_that_dies_during_a_tool_call_is_replaced(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    backend, tool = connect(), BlockingTool()
    state = ask.run(tool.look, backend=backend)
    assert tool.started.wait(20)
    os.kill(backend.ask("info")["engine_pid"], signal.SIGKILL)
    tool.release.set()
    assert state["a"] == "It is one."
    assert state["b"] == "And more."


def test_program_cancelled_during_a_tool_call_is_freed(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    backend, tool = connect(), BlockingTool()
    state = ask.run(tool.look, backend=backend)
    assert tool.started.wait(20)
    state.cancel()
    with pytest.raises(bn.Cancelled):
        state["b"]
    assert tool.ended.wait(20)
    wait_until(lambda: not backend.ask("stats")["server"]["programs"], "the end of the program")
    backend.ask("check")


def test_gen_timeout_includes_tool_calls(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    tool = BlockingTool()

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("ask") + bn.assistant(bn.gen("a", tools=[tool.look], max_tokens=200, timeout=3.0))

    state = program.run(backend=connect())
    with pytest.raises(bn.DeadlineExceeded):
        state["a"]
    assert tool.started.is_set()
    assert tool.ended.wait(20)


def test_gen_budget_counts_all_rounds(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    @bn.function
    def program(s: bn.State, budget: int) -> None:
        s += bn.user("ask") + bn.assistant(bn.gen("a", tools=[look], max_tokens=200, budget=budget))

    backend = connect()
    complete = program.run(1000, backend=backend)
    assert complete["a"] == "It is one."
    rounds = complete.get_meta_info("a")["rounds"]
    spent = sum(one["completion_tokens"] for one in rounds)
    limited = program.run(spent - 2, backend=backend)
    with pytest.raises(bn.BudgetExceeded):
        limited["a"]
    assert [call.result for call in limited.tool_calls("a")] == ["saw 1"]
