"""Gens with tools over a real socket, to a server whose engine speaks by a table: the path, and what breaks it."""

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
OPEN = "<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call>'
SAY = {f"ask{OPEN}": f"{CALL}<|im_end|>", f"saw 1{OPEN}": "It is one.<|im_end|>", f"more{OPEN}": "And more.<|im_end|>"}


@pytest.fixture
def connect(join_shared: Callable[..., Client]) -> Callable[..., bn.RuntimeEndpoint]:
    """`connect(say={...}) -> RuntimeEndpoint` of a server whose model knows tools."""
    return lambda **rule: bn.connect(join_shared(template=TEMPLATE, **({"say": SAY} | rule)).path)


class Waiting:
    """A tool that waits; async or not."""

    def __init__(self) -> None:
        self.began, self.ended, self.free = threading.Event(), threading.Event(), threading.Event()

    @bn.tool
    async def look(self, x: int) -> str:
        "Look."
        self.began.set()
        try:
            while not self.free.is_set():
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


def test_the_model_calls_and_goes_on(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
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


def test_a_stream_is_the_same_text(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    state = ask.run(look, backend=connect(), stream=True)
    assert "".join(state.text_iter("a")) == "It is one."
    assert "<|im_start|>system\nlook;<|im_end|>\n" + "".join(state.text_iter()) == state.text()


def test_an_async_program(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    waiting = Waiting()
    waiting.free.set()

    @bn.function
    async def program(s: bn.AsyncState) -> str:
        s += bn.user("ask") + bn.assistant(bn.gen("a", tools=[waiting.look], max_tokens=200))
        return await s.value("a")

    assert asyncio.run(program.run_async(backend=connect())).ret_value == "It is one."


def test_rounds_end(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    state = ask.run(look, backend=connect(say={OPEN: f"{CALL}<|im_end|>"}))
    with pytest.raises(bn.ToolError, match=r"still after 4 rounds.*gen 'a', test_tools.py"):
        state["a"]
    with pytest.raises(bn.ToolError):
        state["b"]
    assert len(state.tool_calls("a")) == 4


def test_a_model_without_tools_is_refused_at_the_append(serve: Callable[..., launch.ServerProcess]) -> None:
    backend = bn.connect(serve().socket)
    with pytest.raises(bn.ToolError, match="writes no tools"):
        ask.run(look, backend=backend)


def test_a_server_that_dies_under_a_call(
    serve: Callable[..., launch.ServerProcess], fake_model: Callable[..., Path]
) -> None:
    (fake_model() / "chat_template.jinja").write_text(TEMPLATE)
    backend, waiting = bn.connect(serve(say=SAY).socket), Waiting()
    state = ask.run(waiting.look, backend=backend)
    assert waiting.began.wait(20)
    os.kill(backend.ask("info")["pid"], signal.SIGKILL)
    with pytest.raises(bn.RuntimeLost):
        state["a"]
    assert waiting.ended.wait(20), "nobody wants its result any more"


def test_an_engine_that_dies_under_a_call_is_replaced(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    backend, waiting = connect(), Waiting()
    state = ask.run(waiting.look, backend=backend)
    assert waiting.began.wait(20)
    os.kill(backend.ask("info")["engine_pid"], signal.SIGKILL)
    waiting.free.set()
    assert state["a"] == "It is one."
    assert state["b"] == "And more."


def test_a_program_that_is_cancelled_under_a_call_leaves_nothing(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    backend, waiting = connect(), Waiting()
    state = ask.run(waiting.look, backend=backend)
    assert waiting.began.wait(20)
    state.cancel()
    with pytest.raises(bn.Cancelled):
        state["b"]
    assert waiting.ended.wait(20)
    wait_until(lambda: not backend.ask("stats")["server"]["programs"], "the end of the program")
    backend.ask("check")


def test_a_gens_time_counts_its_calls_too(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    waiting = Waiting()

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("ask") + bn.assistant(bn.gen("a", tools=[waiting.look], max_tokens=200, timeout=3.0))

    state = program.run(backend=connect())
    with pytest.raises(bn.DeadlineExceeded):
        state["a"]
    assert waiting.began.is_set()
    assert waiting.ended.wait(20)


def test_a_budget_counts_all_turns(connect: Callable[..., bn.RuntimeEndpoint]) -> None:
    @bn.function
    def program(s: bn.State, budget: int) -> None:
        s += bn.user("ask") + bn.assistant(bn.gen("a", tools=[look], max_tokens=200, budget=budget))

    backend = connect()
    whole = program.run(1000, backend=backend)
    assert whole["a"] == "It is one."
    rounds = whole.get_meta_info("a")["rounds"]
    spent = sum(one["completion_tokens"] for one in rounds)
    short = program.run(spent - 2, backend=backend)
    with pytest.raises(bn.BudgetExceeded):
        short["a"]
    assert [call.result for call in short.tool_calls("a")] == ["saw 1"]
