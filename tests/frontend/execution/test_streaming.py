"""`bn.stream`: events for any number of readers, and the end of a stream."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import banyan as bn
from waits import wait_until


@bn.function
async def chat(s: bn.AsyncState, question: str) -> str:
    s += bn.user(question)
    s += bn.assistant("So: " + bn.gen("a"))
    return await s.value("a")  # type: ignore[no-any-return]


@bn.function
def plain(s: bn.State, question: str) -> str:
    s += bn.user(question)
    s += bn.assistant("So: " + bn.gen("a"))
    return s["a"]  # type: ignore[no-any-return]


def words(latency: float = 0.03) -> bn.Mock:
    return bn.Mock("one two three", latency=latency)


TOKENS = [bn.Token("a", "one "), bn.Token("a", "two "), bn.Token("a", "three")]


def without_usage(events: list[Any]) -> list[Any]:
    """Drop usage events: they contain times and line numbers."""
    return [event for event in events if not isinstance(event, bn.Usage)]


def test_with_block_yields_all_events() -> None:
    with bn.stream(plain, "hi", backend=words(), temperature=0) as st:
        assert isinstance(st.state, bn.State)
        events = list(st.events())
        assert without_usage(events) == [*TOKENS, bn.VarDone("a", "one two three")]
        assert isinstance(events[-1], bn.Usage)
        assert events[-1].gens[0].name == "a"
        assert (st.state["a"], st.state.ret_value) == ("one two three", "one two three")
    assert repr(st) == "<Stream of program plain>"


@pytest.mark.parametrize("program", [chat, plain], ids=["async", "sync"])
def test_async_with_block_yields_all_events(run_loop: Any, program: bn.Program) -> None:
    async def main() -> None:
        async with bn.stream(program, "hi", backend=words()) as st:
            events = [event async for event in st.events()]
            assert without_usage(events) == [*TOKENS, bn.VarDone("a", "one two three")]
            assert st.state["a"] == "one two three"

    run_loop(main())


def test_events_arrive_while_the_program_runs() -> None:
    release = threading.Event()

    def script(prompt: str, name: str) -> str:
        if name == "b":
            assert release.wait(10)
        return name

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a")
        s["a"]
        s += bn.gen("b")

    with bn.stream(program, backend=bn.Mock(script)) as st:
        events = iter(st.events())
        assert next(events) == bn.Token("a", "a")
        assert next(events) == bn.VarDone("a", "a")
        release.set()
        assert without_usage(list(events)) == [bn.Token("b", "b"), bn.VarDone("b", "b")]


def test_every_reader_gets_all_events(run_loop: Any) -> None:
    async def main() -> None:
        async with bn.stream(chat, "hi", backend=words()) as st:

            async def read() -> list[Any]:
                return [event async for event in st.events()]

            first, second = await asyncio.gather(read(), read())
            assert first == second == await read() == list(st.events())

    run_loop(main())


def test_forks_tools_and_samples_have_events() -> None:
    @bn.tool
    def add(x: int, y: int) -> int:
        """Add."""
        return x + y

    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks[1].assistant(bn.gen("sum", tools=[add]))
        forks[0].assistant(bn.gen("many", n=2))
        forks.join()

    backend = bn.Mock({"sum": [{"add": {"x": 1, "y": 2}}, "three"], "many": ["x", "y"]})
    with bn.stream(program, backend=backend) as st:
        events = without_usage(list(st.events()))
    assert events[0] == bn.ForkStart((1, 2))
    (call,) = [event for event in events if isinstance(event, bn.ToolCall)]
    assert (call.name, call.result) == ("add", "3")
    done = {event.name: event for event in events if isinstance(event, bn.VarDone)}
    assert done == {"sum": bn.VarDone("sum", "three", 2), "many": bn.VarDone("many", ["x", "y"], 1)}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_stream_ends_after_the_last_scope_is_read(is_async: bool) -> None:
    """The text of a scope is read after the last gen, on the thread that delivers values."""

    latencies = {"x": 0.2, "y": 0.1}  # a branch is last, long after the body
    backend = bn.Mock(lambda prompt, name: f"<{name}>", latency=lambda call: latencies[call.name])

    def body(s: Any) -> None:
        forks = s.fork(2)
        for branch in forks:
            with branch.var_scope("scope"):
                branch += "text " + bn.gen("x")
        forks.join()
        with s.var_scope("own"):
            s += "and " + bn.gen("y")

    @bn.function
    def program(s: bn.State) -> None:
        body(s)

    @bn.function
    async def program_async(s: bn.AsyncState) -> None:
        body(s)

    if is_async:

        async def main() -> Any:
            async with bn.stream(program_async, backend=backend) as st:
                names = [event.name async for event in st.events() if isinstance(event, bn.VarDone)]
                return names, await st.state.value("scope"), await st.state.value("own")

        names, scope, own = asyncio.run(main())
    else:
        with bn.stream(program, backend=backend) as st:
            names = [event.name for event in st.events() if isinstance(event, bn.VarDone)]
            scope, own = st.state["scope"], st.state["own"]
    assert names == ["y", "x", "x"]
    assert (scope, own) == (["text <x>"] * 2, "and <y>")


# ---- end of a stream ---------------------------------------------------------------------------------------------


def failing(prompt: str, name: str) -> str:
    raise OSError("no luck")


@pytest.mark.parametrize("program", [chat, plain], ids=["async", "sync"])
def test_failure_is_raised_after_the_last_event(run_loop: Any, program: bn.Program) -> None:
    async def main() -> None:
        async with bn.stream(program, "hi", backend=bn.Mock(failing)) as st:
            for _ in range(2):
                with pytest.raises(bn.ProgramError, match="no luck"):
                    async for _ in st.events():
                        pass

    run_loop(main())


def test_body_error_is_raised_after_the_last_event() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a")
        s["a"]
        raise ZeroDivisionError

    with bn.stream(program, backend=bn.Mock("x")) as st:
        events = iter(st.events())
        assert [next(events), next(events)] == [bn.Token("a", "x"), bn.VarDone("a", "x")]
        with pytest.raises(ZeroDivisionError):
            list(events)


def test_failure_of_an_unread_gen_is_raised() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a")

    with bn.stream(program, backend=bn.Mock(failing)) as st, pytest.raises(bn.ProgramError, match="no luck"):
        list(st.events())


@pytest.mark.parametrize("program", [chat, plain], ids=["async", "sync"])
def test_leaving_the_block_cancels_the_program(run_loop: Any, program: bn.Program) -> None:
    async def main() -> None:
        start = time.monotonic()
        async with bn.stream(program, "hi", backend=words(latency=60)) as st:
            pass
        with pytest.raises(bn.Cancelled):
            async for _ in st.events():
                pass
        assert time.monotonic() - start < 5

    run_loop(main())


def test_cancel_ends_the_events() -> None:
    with bn.stream(plain, "hi", backend=words(latency=60)) as st:
        threading.Timer(0.05, st.cancel).start()
        with pytest.raises(bn.Cancelled):
            list(st.events())


def test_run_timeout_applies_to_a_stream() -> None:
    with bn.stream(plain, "hi", backend=words(latency=60), timeout=0.1) as st, pytest.raises(bn.DeadlineExceeded):
        list(st.events())


def test_dropped_stream_cancels_the_program() -> None:
    backend = words(latency=60)
    st = bn.stream(plain, "hi", backend=backend)
    wait_until(lambda: backend.calls, "a call")
    events = st.events()
    del st
    with pytest.raises(bn.Cancelled):
        list(events)


def test_invalid_arguments_are_refused_immediately(run_loop: Any) -> None:
    with pytest.raises(TypeError, match="missing"):
        bn.stream(plain, backend=words())
    with pytest.raises(bn.BadProgram, match="needs a running event loop"):
        bn.stream(chat, "hi", backend=words())

    async def main() -> None:
        with pytest.raises(bn.BadProgram, match="async with"), bn.stream(chat, "hi", backend=words()):
            pass

    run_loop(main())


# ---- unread failures ---------------------------------------------------------------------------------------------


def log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()  # the traceback of a raising script references its frames
    return [record.getMessage() for record in caplog.records if record.name == "banyan"]


@bn.function
def endless(s: bn.State) -> None:
    s += bn.gen("a") + bn.gen("b")


@pytest.mark.parametrize("program", [endless, bn.function(lambda s: s.__iadd__(bn.user("q") + bn.gen("a")))])
def test_dropped_stream_that_nobody_read_is_reported(program: Any, caplog: pytest.LogCaptureFixture) -> None:
    mock = bn.Mock("x", latency=60)
    program.run(backend=mock, stream=True)
    wait_until(lambda: log_lines(caplog), "the message")
    (message,) = log_lines(caplog)
    assert f"program {program.name} was stopped with " in message
    assert "keep what run(stream=True) returns" in message


def test_dropped_stream_is_not_reported_if_it_was_read_cancelled_or_done(caplog: pytest.LogCaptureFixture) -> None:
    state = endless.run(backend=bn.Mock("x", latency=60), stream=True)
    state.cancel()
    del state
    state = endless.run(backend=bn.Mock("x"), stream=True)
    assert next(state.text_iter()) == "x"
    del state
    with bn.stream(endless, backend=bn.Mock("x", latency=60)) as st:
        pass
    del st
    assert log_lines(caplog) == []


@pytest.mark.parametrize("read", [
    lambda state: [*state.text_iter("a")],
    lambda state: [*state.partials("a")],
    lambda state: state["a"],
    lambda state: state["never set"],
])  # fmt: skip
def test_error_of_a_body_that_a_reader_received_is_not_logged(
    read: Callable[[bn.State], Any], caplog: pytest.LogCaptureFixture
) -> None:
    @bn.function
    def raises(s: bn.State) -> None:
        s += bn.gen("a", type=int)
        raise ValueError("my bug")

    state = raises.run(backend=bn.Mock("1", latency=60), stream=True)
    wait_until(partial(getattr, state._record.ended, "is_closed"), "the end of the body")
    with pytest.raises(ValueError, match="my bug") as raised:
        read(state)
    del state, raised
    gc.collect()
    assert log_lines(caplog) == []


def test_error_of_a_body_that_nobody_received_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @bn.function
    def raises(s: bn.State) -> None:
        s += bn.gen("a")
        raise ValueError("my bug")

    state = raises.run(backend=bn.Mock("1", latency=60), stream=True)
    wait_until(partial(getattr, state._record.ended, "is_closed"), "the end of the body")
    state._record.flush_late()
    del state
    gc.collect()
    assert log_lines(caplog) == ["program raises failed unnoticed: ValueError: my bug"]


@bn.function
def careless(s: bn.State) -> None:
    s += bn.gen("a")


def test_end_of_the_process_is_no_failure_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    careless.run(backend=bn.Mock(bn.RuntimeLost(bn.RuntimeLost.AT_EXIT)))
    gc.collect()
    assert log_lines(caplog) == []


def test_unread_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    careless.run(backend=bn.Mock(failing))
    (message,) = log_lines(caplog)
    assert message.startswith("program careless failed unnoticed: ProgramError: ")
    assert "no luck" in message
    assert caplog.records[0].levelno == logging.ERROR
    st = bn.stream(careless, backend=bn.Mock(failing))
    wait_until(partial(getattr, st._record, "is_settled"), "the end of the program")
    del st
    wait_until(lambda: len(log_lines(caplog)) > 1, "the second line", seen=lambda: log_lines(caplog))
    careless.run_batch([()] * 2, backend=bn.Mock(failing), on_error="return")
    wait_until(lambda: len(log_lines(caplog)) > 3, "two more lines", seen=lambda: log_lines(caplog))
    assert len(log_lines(caplog)) == 4


READS: list[Any] = [lambda s: s["a"], lambda s: s.sync(), lambda s: s.text(), lambda s: list(s.text_iter())]


@pytest.mark.parametrize("read", READS)
def test_read_failure_is_not_logged(caplog: pytest.LogCaptureFixture, read: Any) -> None:
    state = careless.run(backend=bn.Mock(failing))
    with pytest.raises(bn.ProgramError):
        read(state)
    del state
    assert log_lines(caplog) == []


def test_failure_reported_in_another_way_is_not_logged(run_loop: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert careless.run(backend=bn.Mock(failing)).error() is not None
    with pytest.raises(bn.BatchError):
        careless.run_batch([()] * 3, backend=bn.Mock(failing))
    with pytest.raises(bn.ProgramError):
        run_loop(careless.run_async(backend=bn.Mock(failing)))

    async def batch() -> None:
        with pytest.raises(bn.BatchError):
            await careless.run_batch_async([()] * 3, backend=bn.Mock(failing))

    run_loop(batch())
    with bn.stream(careless, backend=bn.Mock(failing)) as st, pytest.raises(bn.ProgramError):
        list(st.events())
    del st

    @bn.function
    def raises(s: bn.State) -> None:
        s += bn.gen("a")
        s["a"]

    with pytest.raises(bn.ProgramError):
        raises.run(backend=bn.Mock(failing))
    cancelled = careless.run(backend=words(latency=60))
    cancelled.cancel()
    careless.run(backend=words(latency=60))
    del cancelled
    assert log_lines(caplog) == []
