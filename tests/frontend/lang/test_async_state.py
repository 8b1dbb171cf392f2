"""Async programs: awaiting, cancelling, many at once, and never blocking the event loop."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import banyan as bn
from banyan.execution import async_body, thread_pool
from banyan.runtime.protocol import wire
from waits import wait_until, wait_until_async


@bn.function
async def chat(s: bn.AsyncState, question: str) -> str:
    """Answers."""
    s += bn.user(question)
    s += bn.assistant(bn.gen("a", max_tokens=8))
    return f"{await s.value('a')}!"


@bn.function
def plain(s: bn.State, question: str) -> str:
    s += question + bn.gen("a")
    return f"{s['a']}!"


@pytest.fixture
def slow_mock() -> bn.Mock:
    """Answers after a delay; the default backend of the test."""
    backend = bn.Mock(lambda prompt, name: f"<{name}>", latency=0.05)
    bn.set_default_backend(backend)
    return backend


@pytest.mark.parametrize("program", [chat, plain])
def test_run_async_returns_the_finished_state(run_loop: Any, slow_mock: bn.Mock, program: bn.Program) -> None:
    async def main() -> None:
        state = await program.run_async("hi", temperature=0)
        assert isinstance(state, bn.AsyncState)
        assert (state.ret_value, state["a"], await state.value("a")) == ("<a>!", "<a>", "<a>")
        assert (await state.text()).endswith("<a>" + "<|im_end|>\n" * (program is chat))
        assert await state.error() is None
        assert (await state.get_meta_info("a"))["finish_reason"] == {"type": "stop"}
        assert state.usage.prompt == 0

    run_loop(main())
    assert isinstance(op := slow_mock.calls[0].op, wire.Gen)
    assert op.sampling.temperature == 0


def test_calling_an_async_program_returns_an_awaitable(run_loop: Any, slow_mock: bn.Mock) -> None:
    @bn.function
    async def panel(s: bn.AsyncState) -> list[str]:
        children = await asyncio.gather(*(chat(topic) for topic in "abc"))
        for child in children:
            s += child["a"]
        return [child.ret_value for child in children]

    async def main() -> None:
        state = await panel()
        assert state.ret_value == ["<a>!"] * 3
        assert await state.text() == "<a>" * 3

    run_loop(main())


def test_async_state_has_messages_variables_and_branches(run_loop: Any, slow_mock: bn.Mock) -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> None:
        with s.user():
            s += "U"
        with s.var_scope("block"):
            s += bn.assistant(bn.gen("a"))
        forks = s.fork(2)
        forks += lambda i: bn.user(str(i)) + bn.assistant(bn.gen("b"))
        forks.join()
        assert await s.value("b") == ["<b>"] * 2
        assert s["b"] == ["<b>"] * 2
        s["own"] = 7
        assert await s.value("own") == s["own"] == 7
        assert await s.value("block") == "<|im_start|>assistant\n<a><|im_end|>\n"
        assert [turn["role"] for turn in await forks[1].messages()] == ["user", "assistant", "user", "assistant"]
        await s.sync()

    async def main() -> None:
        state = await program()
        assert "own" in state
        with pytest.raises(bn.UnknownVariable, match="'c'; the variables are: 'a', 'block', 'b', 'own'"):
            state["c"]
        with pytest.raises(bn.UnknownVariable):
            await state.value("c")

    run_loop(main())


def test_blocking_calls_in_async_programs_are_refused(run_loop: Any, slow_mock: bn.Mock) -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> None:
        s += bn.gen("a")
        with pytest.raises(bn.BadProgram, match=r"write `await s.value\('a'\)`"):
            s["a"]
        with pytest.raises(bn.BadProgram, match=r"write `await s.text\(\)`"):
            s += f"So far: {s}"
        assert str(s) == repr(s)
        with pytest.raises(bn.BadProgram, match=r"coroutine cannot be appended.*await it, in an `async def`"):
            s += (value := s.value("a"))
        value.close()
        await s.value("a")
        assert s["a"] == "<a>"

    assert str(run_loop(program.run_async())) == "<a>"
    with pytest.raises(bn.BadProgram, match=r"`await chat.run_async\(...\)`"):
        chat.run("q")
    with pytest.raises(bn.BadProgram, match=r"`asyncio.run\(chat.run_batch_async\(...\)\)`"):
        chat.run_batch([("q",)])


def test_str_of_an_async_state_is_its_whole_text(run_loop: Any) -> None:
    @bn.tool
    def add(a: int, b: int) -> int:
        "Add."
        return a + b

    @bn.function
    async def program(s: bn.AsyncState) -> None:
        with s.var_scope("block"):
            s += bn.user("q") + bn.assistant("So " + bn.gen("a", tools=[add]) + ".")
        branches = s.fork(2)
        branches += bn.assistant(bn.gen("b", tools=[add]))
        branches.join("concat")
        s += bn.user(s.ref("block") + s.ref("a"))
        s.adopt(s.fork(1)[0])

    def answer(prompt: str, name: str) -> Any:
        return "3" if prompt.endswith("3<|im_end|>\n<|im_start|>assistant\n") else {"add": {"a": 1, "b": 2}}

    async def main() -> None:
        state = await program.run_async(backend=bn.Mock(answer))
        assert str(state) == f"{state}" == await state.text()
        assert re.search("tool\n3.*tool\n3.*tool\n3", re.sub("<[^>]*>", "", state._repr_html_()), re.DOTALL)
        assert len(state._record.trace.rounds) == 3

    run_loop(main())


def test_methods_and_bound_programs_can_be_async(run_loop: Any, slow_mock: bn.Mock) -> None:
    class Agent:
        @bn.function
        async def ask(self, s: bn.AsyncState, question: str) -> str:
            s += question + bn.gen("a")
            return await s.value("a")  # type: ignore[no-any-return]

    assert run_loop(Agent().ask.run_async("q")).ret_value == "<a>"
    assert run_loop(chat.bind(question="b").run_async()).ret_value == "<a>!"
    assert (chat.__doc__, repr(chat)) == ("Answers.", "<program chat>")


def test_unawaited_coroutine_is_an_error(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> Any:
        async def inner() -> None: ...

        return inner()

    with pytest.raises(bn.BadProgram, match="nobody awaits"):
        program.run()


def test_text_is_streamed_while_the_body_runs(run_loop: Any) -> None:
    backend = bn.Mock("one two three", latency=0.05)
    pieces: list[str] = []

    @bn.function
    async def program(s: bn.AsyncState) -> None:
        s += "say: " + bn.gen("a")
        async for piece in s.text_iter("a"):
            pieces.append(piece)

    async def main() -> None:
        state = await program.run_async(backend=backend, stream=True)
        assert [piece async for piece in state.text_iter()] == ["say: ", *pieces]

    run_loop(main())
    assert pieces == ["one ", "two ", "three"]


# ---- concurrency -------------------------------------------------------------------------------------------------


def test_many_async_programs_need_no_threads(run_loop: Any, slow_mock: bn.Mock) -> None:
    before = threading.active_count()
    max_threads = 0

    async def main() -> None:
        nonlocal max_threads
        tasks = [asyncio.create_task(chat(str(i))) for i in range(200)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.001)
            max_threads = max(max_threads, threading.active_count())
        assert {task.result().ret_value for task in tasks} == {"<a>!"}

    run_loop(main())
    assert max_threads <= before + 1, "one more for the Mock's clock"


def test_sync_bodies_share_a_bounded_pool(run_loop: Any, monkeypatch: pytest.MonkeyPatch, slow_mock: bn.Mock) -> None:
    monkeypatch.setattr(thread_pool, "_body_threads", thread_pool.ThreadPool(n_threads=3))
    max_running, n, lock = 0, 0, threading.Lock()

    @bn.function
    def program(s: bn.State, x: int) -> int:
        nonlocal max_running, n
        with lock:
            n += 1
            max_running = max(max_running, n)
        s += bn.gen("a")
        assert s["a"] == "<a>"
        with lock:
            n -= 1
        return x

    async def main() -> None:
        states = await asyncio.gather(*(program.run_async(i) for i in range(20)))
        assert [state.ret_value for state in states] == list(range(20))

    run_loop(main())
    assert max_running == 3


def test_nested_sync_programs_do_not_exhaust_the_pool(
    run_loop: Any, monkeypatch: pytest.MonkeyPatch, slow_mock: bn.Mock
) -> None:
    monkeypatch.setattr(thread_pool, "_body_threads", thread_pool.ThreadPool(n_threads=2))

    @bn.function
    def deep(s: bn.State, depth: int) -> str:
        s += bn.gen("a")
        if depth:
            return "".join(deep.run(depth - 1, stream=True).text_iter()) + str(depth)
        return s["a"]  # type: ignore[no-any-return]

    async def main() -> None:
        states = await asyncio.gather(*(deep.run_async(3) for _ in range(4)))
        assert [state.ret_value for state in states] == ["<a>3"] * 4

    run_loop(main())


def test_idle_pool_threads_end(run_loop: Any, monkeypatch: pytest.MonkeyPatch, slow_mock: bn.Mock) -> None:
    monkeypatch.setattr(thread_pool, "LINGER", 0.05)
    monkeypatch.setattr(thread_pool, "_body_threads", thread_pool.ThreadPool(name="test-body"))
    run_loop(plain.run_async("q"))
    wait_until(
        lambda: all(thread.name != "test-body" for thread in threading.enumerate()),
        "the end of the threads",
        seen=threading.enumerate,
    )
    assert run_loop(plain.run_async("q")).ret_value == "<a>!"


# ---- errors and cancellation -------------------------------------------------------------------------------------


def test_body_errors_are_raised(run_loop: Any, slow_mock: bn.Mock) -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> None:
        s += bn.gen("a")
        await s.value("a")
        s += bn.gen("b")
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run_loop(program.run_async())
    assert [call.name for call in slow_mock.calls] == ["a"], "unsent gens are never sent"


@pytest.mark.parametrize("is_async", [True, False])
def test_gen_error_is_raised_where_the_run_is_awaited(run_loop: Any, is_async: bool) -> None:
    def body(s: bn.State) -> None:
        s += "the prompt" + bn.gen("bad")

    async def async_body(s: bn.AsyncState) -> None:
        body(s)  # type: ignore[arg-type]

    program = bn.function(async_body if is_async else body)
    with pytest.raises(bn.ProgramError, match="no luck") as raised:
        run_loop(program.run_async(backend=bn.Mock(OSError("no luck"))))
    assert (raised.value.gen, raised.value.prompt_tail) == ("bad", "the prompt")


def test_cancelling_the_task_stops_its_program(run_loop: Any) -> None:
    backend = bn.Mock("late", latency=30)
    states: list[bn.AsyncState] = []

    @bn.function
    async def program(s: bn.AsyncState) -> None:
        states.append(s)
        s += bn.gen("a")
        await s.value("a")

    async def main() -> None:
        for body in (program, chat.bind(question="q"), plain.bind(question="q")):
            task = asyncio.create_task(body.run_async(backend=backend))
            await wait_until_async(lambda: backend.calls, "a call", alive=lambda: not task.done())  # noqa: B023
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(asyncio.shield(task), 20)  # before the answer arrives
            backend.calls.clear()
        with pytest.raises(bn.Cancelled):
            await states[0].value("a")

    run_loop(main())


def test_asyncio_timeout_stops_the_program(run_loop: Any) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await chat.run_async("q", backend=bn.Mock("late", latency=30))

    start = time.monotonic()
    run_loop(main())
    assert time.monotonic() - start < 5


def test_state_can_be_cancelled_by_a_loop_callback(run_loop: Any) -> None:
    backend = bn.Mock("late", latency=30)

    @bn.function
    async def program(s: bn.AsyncState) -> None:
        s += bn.gen("a")
        asyncio.get_running_loop().call_later(0.02, s.cancel)
        await s.value("a")

    with pytest.raises(bn.Cancelled):
        run_loop(program.run_async(backend=backend))


# ---- backends ----------------------------------------------------------------------------------------------------


def test_using_applies_to_its_task_only(run_loop: Any) -> None:
    async def ask(name: str) -> str:
        with bn.using(bn.Mock(name, latency=0.01)) as backend:
            state = await chat.run_async("q")
            assert len(backend.calls) == 1  # type: ignore[attr-defined]
            return state["a"]  # type: ignore[no-any-return]

    async def main() -> None:
        assert await asyncio.gather(*map(ask, "abc")) == ["a", "b", "c"]
        with pytest.raises(bn.ConfigError):
            await chat.run_async("q")

    run_loop(main())
    with bn.using(bn.Mock("outer")):
        with bn.using(bn.Mock("inner")):
            assert plain.run("q").ret_value == "inner!"
        assert plain.run("q").ret_value == "outer!"


# ---- `def` programs inside an `async def` --------------------------------------------------------------------------


@bn.function
def whole(s: bn.State) -> None:
    s += bn.gen("a")


@bn.function
def halves(s: bn.State) -> None:
    branches = s.fork(2)
    branches += bn.gen("a")
    branches.join(on_error="collect")


@bn.function
def first_half(s: bn.State) -> None:
    branches = s.fork(2)
    branches += bn.gen("a")
    s.adopt(branches.first())


READS: list[Callable[[], Any]] = [
    lambda: plain("q"),
    lambda: halves()["a"],
    lambda: halves().error(),
    lambda: halves().sync(),
    lambda: halves().tool_calls("a"),
    lambda: whole().text(),
    lambda: halves(use_thread=False),
    lambda: first_half(),
    lambda: list(halves.run(stream=True).text_iter()),
    lambda: halves().show(),
    lambda: halves().usage,
    lambda: halves.run(stream=True).timeline(),
    lambda: halves.run_batch([(), ()]),
    lambda: next(halves.run_batch([(), ()], generator_style=True)),
]


@pytest.mark.parametrize("read", READS)
def test_reading_a_def_program_never_blocks_the_loop_of_an_async_def(
    run_loop: Any, slow_mock: bn.Mock, read: Callable[[], Any]
) -> None:
    @bn.function
    async def outer(s: bn.AsyncState) -> None:
        with pytest.raises(
            bn.BadProgram, match=r"not known yet, .* block the event loop of outer.*run_(batch_)?async"
        ) as raised:
            read()
        assert "test_async_state.py:" in str(raised.value)
        await asyncio.gather(asyncio.to_thread(read), plain.run_async("q"))

    run_loop(outer())


def test_def_program_whose_values_are_known_is_read_in_an_async_def(run_loop: Any, slow_mock: bn.Mock) -> None:
    @bn.function
    async def outer(s: bn.AsyncState) -> str:
        return str(halves(backend=bn.Mock("now"))["a"][0]) + str((await plain.run_async("q"))["a"])

    run_loop(outer())

    async def main() -> None:
        state = await outer()
        assert state.ret_value == "now<a>"

    run_loop(main())


@pytest.mark.parametrize("read", READS)
def test_read_that_blocks_the_loop_of_no_program_warns_except_in_a_notebook(
    run_loop: Any, slow_mock: bn.Mock, monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any]
) -> None:
    async def main() -> None:
        with pytest.warns(UserWarning, match=r"blocks the event loop.*`await \w+.run_(batch_)?async") as warned:
            read()
        assert {warning.filename for warning in warned} == {__file__}
        monkeypatch.setattr(async_body, "in_notebook", lambda: True)
        read()
        monkeypatch.undo()
        monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: True))
        read()

    run_loop(main())


@pytest.mark.parametrize(
    "read",
    [
        lambda: plain("q"),
        lambda: halves()["a"],
        lambda: halves().error(),
        lambda: halves().sync(),
        lambda: whole().text(),
        lambda: str(halves()),
        lambda: halves().show(),
        lambda: halves.run_batch([]),
        lambda: list(halves.run_batch([], generator_style=True)),
    ],
)
def test_read_that_needs_no_wait_does_not_warn(run_loop: Any, read: Callable[[], Any]) -> None:
    async def main() -> None:
        read()

    with bn.using(bn.Mock("x")):
        run_loop(main())


def test_mock_is_as_strict_as_a_server_in_an_async_def(run_loop: Any) -> None:
    @bn.function
    async def outer(s: bn.AsyncState) -> None:
        assert halves.run_batch([]) == []
        with pytest.raises(bn.BadProgram, match="'a' is not known yet"):
            plain("q")["a"]

    with bn.using(bn.Mock("x")):
        run_loop(outer())


def test_read_outside_a_task_of_the_loop_does_not_warn(run_loop: Any, slow_mock: bn.Mock) -> None:
    async def main() -> None:  # `python -m asyncio` runs the lines of its user as callbacks
        asyncio.get_running_loop().call_soon(lambda: answers.append(plain("q")["a"]))
        await asyncio.sleep(0)

    answers: list[str] = []
    run_loop(main())
    assert answers == ["<a>"]


def test_warning_of_a_read_that_blocks_the_loop_comes_once_per_line(run_loop: Any, slow_mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State, name: str) -> None:
        s += bn.gen(name)

    async def main() -> None:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("default")
            for name in ("a", "b"):
                program(name)[name]
        assert [warning.category for warning in warned] == [UserWarning]

    run_loop(main())
