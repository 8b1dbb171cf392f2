"""Memory of the user's process: programs of each kind leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.client.client import Client
from forms import in_short
from waits import wait_until

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }};{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURN_END = "<|im_end|>\n<|im_start|>assistant\n"
SAY = {
    f"ask{TURN_END}": '<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call><|im_end|>',
    f"fail{TURN_END}": '<tool_call>{"name": "break_down", "arguments": {}}</tool_call><|im_end|>',
    f"saw 1{TURN_END}": "It is one.<|im_end|>",
    "1+1=": "2",
}

Backend = bn.RuntimeEndpoint


@bn.tool
def look(x: int) -> str:
    "Look."
    return f"saw {x}"


@bn.tool
async def look_async(x: int) -> str:
    "Look."
    await asyncio.sleep(0)
    return f"saw {x}"


@bn.tool
def break_down() -> str:
    "Break down."
    raise ValueError("broken")


@bn.function
def sum_up(s: bn.State, i: int, **options: Any) -> None:
    s += f"case {i}: 1+1=" + bn.gen("x", max_tokens=8, **options)
    s += " and 1+1=" + bn.gen("y", max_tokens=8)


@bn.function
def talk(s: bn.State, i: int, text: str, *tools: Any) -> None:
    s += bn.user(f"{i} {text}") + bn.assistant(bn.gen("a", tools=tools or None, max_tokens=64))


@bn.function
def branches(s: bn.State, i: int) -> None:
    s += f"case {i}: "
    forks = s.fork(3)
    forks += lambda k: f"{k} 1+1=" + bn.gen("x", max_tokens=4)
    forks[1].drop()
    forks.join()
    with s.var_scope("scope"), s.copy() as t:
        t += "1+1=" + bn.gen("z", max_tokens=4)
    s += "1+1=" + bn.select("choice", ["2", "3"])


@bn.function
def raises(s: bn.State, i: int) -> None:
    s += f"case {i}: 1+1=" + bn.gen("x", max_tokens=8)
    raise ValueError(s["x"])


@bn.function
async def sum_up_async(s: bn.AsyncState, i: int) -> str:
    s += f"case {i}: 1+1=" + bn.gen("x", max_tokens=8)
    return str(await s.value("x"))


def stream(i: int, backend: Backend) -> None:
    assert "".join(sum_up.run(i, stream=True, backend=backend).text_iter("x")) == "2"
    with bn.stream(sum_up, i, backend=backend) as running:
        assert len(list(running.events())) > 1


def abandon_stream(i: int, backend: Backend) -> None:
    for _ in sum_up.run(i, stream=True, backend=backend).text_iter():
        break


def cancel(i: int, backend: Backend) -> None:
    state = sum_up.run(i, backend=backend)
    state.cancel()
    with contextlib.suppress(bn.Cancelled):
        state.text()


def fail(i: int, backend: Backend) -> None:
    with pytest.raises(ValueError, match="2"):
        raises.run(i, backend=backend)
    with pytest.raises(bn.PromptTooLong):
        talk.run(i, "long " * 1000, backend=backend).text()
    with pytest.raises(bn.BanyanError):
        sum_up.run(i, backend=backend, budget=1).text()


def limit(i: int, backend: Backend) -> None:
    assert sum_up.run(i, timeout=500.0, budget=100, priority=1, deadline=100.0, backend=backend)["y"] == "2"
    assert sum_up.bind(timeout=500.0).run(i, backend=backend)["x"] == "2"
    with contextlib.suppress(bn.DeadlineExceeded):
        sum_up.run(i, timeout=1e-4, backend=backend).text()


def run_batches(i: int, backend: Backend) -> None:
    assert [s["x"] for s in sum_up.run_batch([(i,), (i + 1,)], timeout=10.0, backend=backend)] == ["2", "2"]
    with pytest.raises(bn.BatchError):
        raises.run_batch([(i,), (i,)], backend=backend)


def run_async(i: int, backend: Backend) -> None:
    async def main() -> None:
        assert (await sum_up_async.run_async(i, backend=backend)).ret_value == "2"
        task = asyncio.create_task(sum_up_async.run_async(i, backend=backend))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        async for _ in sum_up_async.run_batch_async([(i,)] * 2, backend=backend):
            pass

    asyncio.run(main())


def compile_anew(i: int, backend: Backend) -> None:
    assert bn.compile(sum_up).run(i, backend=backend)["x"] == "2"


def view(i: int, backend: Backend) -> None:
    state = sum_up.run(i, backend=backend)
    state.sync()
    state.timeline(), state.messages(), state.usage


def connect_again(i: int, backend: Backend) -> None:
    with bn.connect(backend.client.path) as other:
        assert sum_up.run(i, backend=other)["x"] == "2"


KINDS: dict[str, Callable[[int, Backend], object]] = {
    "read": lambda i, backend: sum_up.run(i, backend=backend).text(),
    "dropped": lambda i, backend: sum_up.run(i, backend=backend),
    "options": lambda i, backend: sum_up.run(i, n=2, return_logprob=True, seed=i, stop=["!"], backend=backend).text(),
    "tools": lambda i, backend: talk.run(i, "ask", look, backend=backend).text(),
    "async tools": lambda i, backend: talk.run(i, "ask", look_async, backend=backend).text(),
    "broken tools": lambda i, backend: talk.run(i, "fail", break_down, backend=backend).text(),
    "forks": lambda i, backend: branches.run(i, backend=backend).text(),
    "streams": stream,
    "abandoned streams": abandon_stream,
    "cancelled": cancel,
    "failed": fail,
    "limited": limit,
    "batches": run_batches,
    "async": run_async,
    "templates": compile_anew,
    "views": view,
    "connections": connect_again,
}


SHORT = ("read", "async tools", "cancelled", "batches", "connections")


def growth(kind: str, backend: Backend, n: int, most: float) -> float:
    """Traced bytes that a program of this kind leaves behind: the least growth of up to five rounds of `n` programs,
    after a first one; rounds end when it is below `most`. A leak grows in each round. A dict also stays large for some
    rounds if many programs happened to live at once."""
    least, before = float("inf"), 0
    for k in range(6):
        for i in range(n):
            KINDS[kind](k * n + i, backend)
        gc.collect()
        wait_until(lambda: not backend.client._programs, "the end of all programs")
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        if k:
            least = min(least, (size - before) / n)
        if least < most:
            break
        before = size
    return least


@pytest.fixture
def backend(join_shared: Callable[..., Client]) -> Iterator[Backend]:
    with bn.connect(join_shared(template=TEMPLATE, say=SAY).path) as backend:
        yield backend


@pytest.fixture(autouse=True)
def _traced(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL, "banyan")  # the errors that nobody reads are part of the test
    caplog.handler.setLevel(logging.CRITICAL)
    tracemalloc.start()
    yield
    tracemalloc.stop()


MOST = 40.0
"""Traced bytes a program. Caches and numbers grow a little; a program that stays alive takes thousands."""


@pytest.mark.parametrize("kind", in_short(SHORT, KINDS))
def test_programs_leave_no_memory_behind(kind: str, backend: Backend) -> None:
    n = 7  # a few programs, and so a wide margin: a quarter of a kept program
    assert growth(kind, backend, n, 1000.0) < 1000.0


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many_programs_leave_no_memory_behind(kind: str, backend: Backend) -> None:
    assert growth(kind, backend, 350, MOST) < MOST
