"""Gens that call tools, on a Mock that writes a call as {"tool": {arguments}}."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import enum
import functools
import gc
import inspect
import math
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pydantic
import pytest

import banyan as bn
from banyan.execution.thread_pool import ThreadPool
from banyan.runtime.protocol import wire
from banyan.tools import caller
from banyan.tools.toolbox import Toolbox
from waits import wait_until


@bn.tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


@bn.tool
async def shout(text: str, sign: str = "!") -> str:
    "Say it louder."
    await asyncio.sleep(0)
    return text.upper() + sign


def run_with_tools(*answers: Any, tools: Any = (add, shout), next_question: str = "", **options: Any) -> bn.State:
    """Run a program with one gen with tools, whose outputs are `answers`."""

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("q") + bn.assistant(bn.gen("a", tools=list(tools), **options))
        if next_question:
            s += bn.user(next_question) + bn.assistant(bn.gen("b"))

    return program.run(backend=bn.Mock({"a": list(answers), "b": "B"}))


def single_call(call: dict[str, Any], **options: Any) -> bn.ToolCall:
    """Run one call and return it."""
    (tool_call,) = run_with_tools(call, "done", **options).tool_calls("a")
    return tool_call


class Colour(enum.Enum):
    red = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Model(pydantic.BaseModel):
    size: int
    tags: list[str] = []


class Length(pydantic.BaseModel):
    """A model that writes its JSON itself."""

    cm: float

    def model_dump_json(self, **options: Any) -> str:
        return '{"cm":"long"}'


class Order:
    """An object with a repr that ends with an address."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"<Order {self.number}: paid at 0x7f>"


class Cursor:
    """An iterator with its own text."""

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> int:
        return 1

    def __str__(self) -> str:
        return "row 3 of 9"


# ---- calls and results ---------------------------------------------------------------------------------------------


def test_calls_and_answer_are_recorded() -> None:
    state = run_with_tools(
        ({"add": {"a": 1, "b": 2}}, {"shout": {"text": "hi"}}), {"add": {"a": 3, "b": 4}}, "It is 7."
    )
    assert state["a"] == "It is 7."
    assert [(c.round, c.name, c.arguments, c.result, c.is_error) for c in state.tool_calls("a")] == [
        (0, "add", {"a": 1, "b": 2}, "3", False),
        (0, "shout", {"text": "hi"}, "HI!", False),
        (1, "add", {"a": 3, "b": 4}, "7", False),
    ]
    assert [turn["content"] for turn in state.messages() if turn["role"] == "tool"] == ["3", "HI!", "7"]
    assert state.messages()[-1] == {"role": "assistant", "content": "It is 7."}
    assert len(state.get_meta_info("a")["rounds"]) == 3


def test_gen_without_calls_is_a_plain_gen() -> None:
    state = run_with_tools("42")
    assert (state["a"], state.tool_calls("a")) == ("42", [])
    assert len(state.messages()) == 2


def test_ops_after_the_gen_are_sent_with_it() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("q") + bn.assistant("So: " + bn.gen("a", tools=[add]) + " Done.") + bn.user("more")
        forks = s.fork(2)
        forks += bn.assistant(bn.gen("b"))
        forks.join()

    mock = bn.Mock({"a": [{"add": {"a": 1, "b": 2}}, "3!"], "b": "B"})
    state = program.run(backend=mock)
    assert state["b"] == ["B", "B"]
    assert state["a"] == "3!"
    assert [type(op).__name__ for op in mock.submits[0]].count("Gen") == 3
    assert mock.submits[1:] == [(wire.Results(0, 0, 0, ("3",)),)], "a round costs one message"
    assert state.messages()[-2]["content"] == "3! Done."


def test_program_inside_a_tool_uses_the_callers_backend() -> None:
    @bn.function
    def inner(s: bn.State, x: int) -> str:
        s += bn.user(f"inner {x}") + bn.assistant(bn.gen("in", tools=[add]))
        return s["in"]

    @bn.tool
    def think(x: int) -> str:
        "Think."
        return inner.run(x).ret_value

    @bn.function
    def outer(s: bn.State) -> None:
        s += bn.user("outer") + bn.assistant(bn.gen("a", tools=[think]))

    n = caller.N_THREADS + 2  # more than the thread limit: each tool holds a thread while its inner program waits
    answers = ({"think": {"x": 1}},) * n
    script = {"a": [answers, "end"], "in": [{"add": {"a": 1, "b": 1}}, "two"] * n}
    state = outer.run(backend=bn.Mock(lambda prompt, name: _answer_by_round(script, prompt, name)))
    assert [call.result for call in state.tool_calls("a")] == ["two"] * n


def _answer_by_round(script: dict[str, Any], prompt: str, name: str) -> Any:
    return script[name][1 if "<|im_start|>tool" in prompt else 0]


def test_tools_run_in_the_context_of_the_append() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")

    @bn.tool
    def who() -> str:
        "Who asks."
        return user.get()

    @bn.tool
    async def who_async() -> str:
        "Who asks."
        return user.get()

    user.set("Ada")
    state = run_with_tools(({"who": {}}, {"who_async": {}}), "done", tools=[who, who_async])
    assert [call.result for call in state.tool_calls("a")] == ["Ada", "Ada"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ({"a": [1, 2.5, True]}, '{"a":[1,2.5,true]}'),
        (Point(1, 2), '{"x":1,"y":2}'),
        (Model(size=1), '{"size":1,"tags":[]}'),
        ([Model(size=1)], '[{"size":1,"tags":[]}]'),
        ({"a": (Model(size=2, tags=["b"]), complex(1, 2))}, '{"a":[{"size":2,"tags":["b"]},"(1+2j)"]}'),
        (Colour.red, "red"),
        (complex(1, 2), "(1+2j)"),
        ("name\udcff", "name\\udcff"),
        ([datetime.date(2027, 3, 6)], '["2027-03-06"]'),
        (datetime.date(2027, 3, 6), "2027-03-06"),
        (Cursor(), "row 3 of 9"),
        ([Order(17)], '["<Order 17: paid at 0x7f>"]'),
        (-math.inf, "-Infinity"),
        (math.nan, "NaN"),
        ({"a": [math.nan, None]}, '{"a":[NaN,null]}'),
        ([Length(cm=math.inf)], '[{"cm":Infinity}]'),
        (Length(cm=math.inf), '{"cm":"long"}'),
        ([2**70, "name\udcff"], '[1180591620717411303424,"name\\udcff"]'),
    ],
)
def test_result_is_converted_to_text(value: Any, text: str) -> None:
    @bn.tool
    def give() -> Any:
        "Give."
        return value

    assert single_call({"give": {}}, tools=[give]).result == text


class Opaque:
    """A class without its own text."""


@bn.function
def ask(s: bn.State, question: str) -> None:
    s += bn.user(question) + bn.assistant(bn.gen("x"))


async def numbers() -> AsyncIterator[int]:
    yield 1


NO_TEXT = ", which has no text; make it a str or a dict"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: map(str, [1]), "an iterator of class map; return a list of its items"),
        (lambda: (x for x in [1]), "an iterator of class generator; return a list of its items"),
        (lambda: {"rows": iter([1])}, "an iterator of class list_iterator; return a list of its items"),
        (numbers, "an iterator of class async_generator; return a list of its items"),
        (Opaque, f"an object of class Opaque{NO_TEXT}"),
        (lambda: [{"a": Opaque()}], f"an object of class Opaque{NO_TEXT}"),
        (lambda: ask.run("q"), "State; return the text of a variable, such as state['x']"),
        (lambda: b"text", "bytes; return a str, such as value.decode()"),
        (lambda: {"a": [bytearray(1)]}, "bytearray; return a str, such as value.decode()"),
        (lambda: numbers, f"an object of class function{NO_TEXT}"),
        (lambda: Cursor().__iter__, f"an object of class method{NO_TEXT}"),
        (threading.Lock, f"an object of class lock{NO_TEXT}"),
        (lambda: lambda: 1, f"an object of class function{NO_TEXT}"),
        (lambda: Opaque().__str__, f"an object of class method-wrapper{NO_TEXT}"),
    ],
)
def test_result_without_a_text_is_an_error(make: Callable[[], Any], text: str) -> None:
    @bn.tool
    def give() -> Any:
        "Give."
        return make()

    call = single_call({"give": {}}, tools=[give])
    assert (call.result, call.is_error) == (f"error: TypeError: the result holds {text}", True)


def test_expression_in_a_result_is_an_error() -> None:
    @bn.tool
    def give() -> str:
        "Give."
        return f"and {bn.gen('x')}"

    assert single_call({"give": {}}, tools=[give]).result == (
        "error: BadProgram: the result holds an expression, such as a gen; a tool must return text"
    )


def test_long_result_is_truncated() -> None:
    @bn.tool
    def long() -> str:
        "Long."
        return "x" * 100

    assert (
        single_call({"long": {}}, tools=[long], max_tool_output=10).result
        == "x" * 10 + "\n[cut here; 90 more characters]"
    )
    assert single_call({"long": {}}, tools=[long]).result == "x" * 100


# ---- errors --------------------------------------------------------------------------------------------------------


@bn.tool
def fail(kind: str) -> str:
    "Fail."
    raise {"value": ValueError("no luck"), "stop": StopIteration(3), "time": TimeoutError(), "key": KeyError("k")}[kind]


@bn.tool
async def fail_async(kind: str) -> str:
    "Fail."
    if kind == "cancel":
        raise asyncio.CancelledError
    return fail(kind)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({"fail": {"kind": "value"}}, "error: ValueError: no luck"),
        ({"fail": {"kind": "stop"}}, "error: StopIteration: 3"),
        ({"fail": {"kind": "time"}}, "error: TimeoutError"),
        ({"fail_async": {"kind": "value"}}, "error: ValueError: no luck"),
        ({"fail_async": {"kind": "time"}}, "error: TimeoutError"),
        ({"fail_async": {"kind": "cancel"}}, "error: fail_async was cancelled"),
        ({"nothing": {}}, "error: there is no tool 'nothing'; the tools are: fail, fail_async"),
        ({"fail": {}}, "error: the arguments of fail are not valid: Object missing required field `kind`"),
    ],
)
def test_tool_error_becomes_text_for_the_model(call: dict[str, Any], text: str) -> None:
    actual = single_call(call, tools=[fail, fail_async])
    assert (actual.result.partition(" - at")[0], actual.is_error) == (text, True)


@dataclasses.dataclass
class City:
    name: str

    def __post_init__(self) -> None:
        self.country = {"lima": "Peru"}[self.name]


def test_an_argument_that_its_own_check_refuses_is_an_error_for_the_model() -> None:
    @bn.tool
    def visit(city: City) -> str:
        "Visit."
        return city.country

    actual = single_call({"visit": {"city": {"name": "Paris"}}}, tools=[visit])
    assert (actual.result, actual.is_error) == ("error: the arguments of visit are not valid: KeyError: 'Paris'", True)


@pytest.mark.parametrize("name", ["fail", "fail_async"])
def test_traceback_of_a_tool_is_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="banyan"):
        single_call({name: {"kind": "value"}}, tools=[fail, fail_async])
    (record,) = caplog.records
    assert record.getMessage().startswith(f"tool {name} raised an exception")
    assert ", in fail\n    raise {" in caplog.text


def test_coroutine_of_a_sync_tool_is_an_error() -> None:
    async def wave(text: str) -> str:
        "Wave."
        return text

    @bn.tool
    @functools.wraps(wave)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wave(*args, **kwargs)

    call = single_call({"wave": {"text": "hi"}}, tools=[wrapped])
    assert call.is_error
    assert "put @bn.tool on the `async def` itself" in call.result


def test_model_can_retry_a_failed_call() -> None:
    state = run_with_tools({"add": {"a": 1}}, {"add": {"a": 1, "b": 2}}, "3")
    assert [call.is_error for call in state.tool_calls("a")] == [True, False]
    assert state["a"] == "3"


@pytest.mark.parametrize("is_async", [False, True])
def test_call_times_out(is_async: bool) -> None:
    release = threading.Event()

    @bn.tool
    def stuck() -> None:
        "Stuck."
        release.wait(30)

    @bn.tool
    async def stuck_async() -> None:
        "Stuck."
        await asyncio.sleep(30)

    name = "stuck_async" if is_async else "stuck"
    start = time.monotonic()
    actual = single_call({name: {}}, tools=[stuck, stuck_async], tool_timeout=0.05)
    release.set()
    assert actual.result == f"error: {name} took longer than 0.05 s"
    assert time.monotonic() - start < 10


def test_stuck_tools_do_not_exhaust_the_threads() -> None:
    release = threading.Event()

    @bn.tool
    def stuck() -> None:
        "Stuck."
        release.wait(60)

    n = caller.N_THREADS
    state = run_with_tools(({"stuck": {}},) * n, {"add": {"a": 1, "b": 2}}, "3", tools=[stuck, add], tool_timeout=1.0)
    assert [call.result for call in state.tool_calls("a")] == ["error: stuck took longer than 1 s"] * n + ["3"]
    release.set()


def test_time_that_a_call_waits_for_a_thread_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "_threads", ThreadPool(2, "few"))
    begun: list[int] = []

    @bn.tool
    def send(i: int) -> int:
        "Send."
        begun.append(i)
        time.sleep(0.8)
        return i

    calls = tuple({"send": {"i": i}} for i in range(8))
    actual = run_with_tools(calls, "done", tools=[send], tool_timeout=2.8)
    assert sorted(call.result for call in actual.tool_calls("a")) == list("01234567")
    assert sorted(begun) == list(range(8))


def test_calls_of_one_round_run_in_parallel() -> None:
    barrier = threading.Barrier(4, timeout=20)

    @bn.tool
    def meet() -> str:
        "Meet."
        barrier.wait()
        return "met"

    @bn.tool
    async def meet_async() -> str:
        "Meet."
        await asyncio.get_running_loop().run_in_executor(None, barrier.wait)
        return "met"

    state = run_with_tools(
        ({"meet": {}}, {"meet_async": {}}, {"meet": {}}, {"meet_async": {}}), "done", tools=[meet, meet_async]
    )
    assert [call.result for call in state.tool_calls("a")] == ["met"] * 4


# ---- end of a program ----------------------------------------------------------------------------------------------


def test_max_rounds_is_an_error_that_keeps_the_calls() -> None:
    state = run_with_tools(*[{"add": {"a": 1, "b": 2}}] * 3, max_rounds=2)
    with pytest.raises(bn.ToolError, match=r"still calls tools \(add\) after 2 rounds.*gen 'a'"):
        state["a"]
    assert [call.result for call in state.tool_calls("a")] == ["3", "3"]


def test_system_exit_in_a_tool_fails_the_program() -> None:
    @bn.tool
    def leave() -> None:
        "Leave."
        raise SystemExit("enough")

    with pytest.raises(bn.ToolError, match="tool leave raised SystemExit: enough") as e:
        run_with_tools({"leave": {}}, "never", tools=[leave])["a"]
    assert isinstance(e.value.__cause__, SystemExit)
    assert single_call({"add": {"a": 1, "b": 2}}).result == "3", "only that program failed"


def test_exit_in_an_async_tool_does_not_stop_the_loop() -> None:
    @bn.tool
    async def leave() -> None:
        "Leave."
        raise KeyboardInterrupt

    with pytest.raises(bn.ToolError, match="raised KeyboardInterrupt"):
        run_with_tools({"leave": {}}, "never", tools=[leave])["a"]
    assert single_call({"shout": {"text": "on"}}).result == "ON!"


def start_waiting_call() -> tuple[bn.State, threading.Event]:
    """Start a program whose tool call waits; return its state and an event that is set when the call ends."""
    began, ended = threading.Event(), threading.Event()

    @bn.tool
    async def wait() -> None:
        "Wait."
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    state = run_with_tools({"wait": {}}, "never", tools=[wait])
    assert began.wait(10)
    return state, ended


def test_cancelled_program_cancels_its_calls() -> None:
    state, ended = start_waiting_call()
    state.cancel()
    assert ended.wait(10)
    with pytest.raises(bn.Cancelled):
        state["a"]


def test_call_of_a_cancelled_program_that_waits_for_a_thread_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = ThreadPool(1, "one")
    monkeypatch.setattr(caller, "_threads", threads)
    began, release, sent = threading.Event(), threading.Event(), list[int]()

    @bn.tool
    def hold() -> None:
        "Hold."
        began.set()
        release.wait(30)

    @bn.tool
    def send() -> None:
        "Send."
        sent.append(1)

    holding = run_with_tools({"hold": {}}, "held", tools=[hold])
    assert began.wait(10)
    waiting = run_with_tools({"send": {}}, "never", tools=[send])
    wait_until(lambda: len(threads._queue) == 1, "the call waits for a thread")
    waiting.cancel()
    wait_until(waiting._values["a"].caller._running.done, "the call is cancelled")
    release.set()
    assert holding["a"] == "held"
    assert single_call({"add": {"a": 1, "b": 2}}).result == "3", "the only thread is free again"
    assert threads._max_threads == 1
    assert not sent


def test_dropped_program_cancels_its_calls() -> None:
    state, ended = start_waiting_call()
    del state
    gc.collect()
    assert ended.wait(10)


def test_gen_with_tools_outside_an_assistant_turn_is_refused() -> None:
    def body(s: bn.State) -> None:
        with pytest.raises(bn.BadProgram, match="must be in an assistant's turn"):
            s += bn.user(bn.gen("a", tools=[add]))
        with pytest.raises(bn.BadProgram, match="must be in an assistant's turn"):
            s += bn.gen("a", tools=[add])
        assert s.text() == ""

    bn.function(body).run(backend=bn.Mock())


def test_model_without_tool_support_is_refused() -> None:
    chat = msgspec.structs.replace(bn.Mock().welcome.chat, no_calls="its template writes no tools")

    def body(s: bn.State) -> None:
        with pytest.raises(bn.ToolError, match="its template writes no tools"):
            s += bn.assistant(bn.gen("a", tools=[add]))

    bn.function(body).run(backend=bn.Mock(chat=chat))


# ---- async programs, streams, batches ------------------------------------------------------------------------------


def test_async_tools_run_on_the_programs_loop() -> None:
    loops: list[Any] = []

    @bn.tool
    async def where() -> str:
        "Where."
        loops.append(asyncio.get_running_loop())
        return "here"

    @bn.tool
    def thread() -> str:
        "Which thread."
        return threading.current_thread().name

    @bn.function
    async def program(s: bn.AsyncState) -> list[bn.ToolCall]:
        loops.append(asyncio.get_running_loop())
        s += bn.user("q") + bn.assistant(bn.gen("a", tools=[where, thread]))
        assert await s.value("a") == "done"
        return await s.tool_calls("a")

    mock = bn.Mock({"a": [({"where": {}}, {"thread": {}}), "done"]})
    state = asyncio.run(program.run_async(backend=mock))
    assert loops[0] is loops[1]
    assert [call.result for call in state.ret_value] == ["here", "banyan-tool"]


@pytest.mark.filterwarnings("error")
def test_loop_that_ends_before_the_first_step_of_an_async_tool_leaves_no_warning() -> None:
    loop = asyncio.new_event_loop()
    of_gen: Any = SimpleNamespace(_loop=loop, _context=contextvars.copy_context())
    tool = Toolbox([shout]).tools["shout"]

    async def call() -> None:
        waits = asyncio.create_task(caller.Caller._on_loop(of_gen, tool, {"text": "a"}, lambda: None))
        await asyncio.sleep(0)
        loop.stop()  # after one round, which creates the tool's task
        await asyncio.to_thread(loop.run_forever)
        states = [inspect.getcoroutinestate(task.get_coro()) for task in asyncio.all_tasks(loop)]  # type: ignore[arg-type]
        assert states == [inspect.CORO_CREATED]
        loop.close()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits

    asyncio.run(call())
    gc.collect()


def test_async_tools_run_while_a_sync_program_blocks_the_callers_loop() -> None:
    @bn.tool
    async def look(what: str) -> str:
        "Look."
        await asyncio.sleep(0)
        return f"found {what}"

    async def main() -> bn.ToolCall:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a read that has to wait warns; the tool may have ended before
            return single_call({"look": {"what": "a"}}, tools=[look], tool_timeout=2)

    call = asyncio.run(main())
    assert (call.result, call.is_error) == ("found a", False)


def test_cancelled_async_program_cancels_its_calls() -> None:
    ended = threading.Event()

    @bn.tool
    async def wait() -> None:
        "Wait."
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    @bn.function
    async def program(s: bn.AsyncState) -> None:
        s += bn.assistant(bn.gen("a", tools=[wait]))
        await s.value("a")

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await program.run_async(backend=bn.Mock({"a": [{"wait": {}}]}))
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert ended.wait(10)


def test_stream_yields_the_answer_and_the_whole_prompt() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("q") + bn.assistant(bn.gen("a", tools=[add]) + ".") + bn.user("end")

    for _ in range(3):
        mock = bn.Mock({"a": [{"add": {"a": 1, "b": 2}}, "It is three"]})
        state = program.run(backend=mock, stream=True)
        assert list(state.text_iter("a")) == ["It ", "is ", "three"]
        assert "".join(state.text_iter()) == state.text()

    async def whole() -> str:
        return "".join([text async for text in state.text_async_iter()])

    assert asyncio.run(whole()) == state.text()


@pytest.mark.parametrize("stream", [False, True])
def test_spliced_answer_has_no_turns_of_tools(stream: bool) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("q") + bn.assistant(bn.gen("a", tools=[add]))
        s += bn.user(f"{s.ref('a')}?") + bn.assistant(["So ", s.ref("a")])
        (other,) = s.fork(1)
        other += bn.assistant(bn.gen("b", tools=[add]))
        s += bn.user(other.ref("b"))

    call = {"add": {"a": 1, "b": 2}}
    state = program.run(backend=bn.Mock({"a": [call, "three"], "b": [call, "3"]}), stream=stream)
    assert [turn["content"] for turn in state.messages()[-4:]] == ["three", "three?", "So three", "3"]
    assert [turn["role"] for turn in state.messages()].count("tool") == 1
    assert "".join(state.text_iter()) == state.text()
    assert len(state.tool_calls("a")) == 1

    async def whole() -> str:
        return "".join([text async for text in state.text_async_iter()])

    assert asyncio.run(whole()) == state.text()


def test_batch_items_call_their_own_tools() -> None:
    @bn.function
    def program(s: bn.State, k: int) -> None:
        s += bn.user(f"{k}") + bn.assistant(bn.gen("a", tools=[add]))

    def script(prompt: str, name: str) -> Any:
        k = int(prompt.partition("user\n")[2].partition("<")[0])
        return str(k + 1) if "<|im_start|>tool" in prompt else {"add": {"a": k, "b": 1}}

    states = program.run_batch([(k,) for k in range(50)], backend=bn.Mock(script))
    assert [state["a"] for state in states] == [str(k + 1) for k in range(50)]
    assert [state.tool_calls("a")[0].result for state in states] == [str(k + 1) for k in range(50)]


def test_gathered_branches_keep_their_calls() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks += bn.assistant(bn.gen("a", tools=[add]))
        forks.join()

    state = program.run(
        backend=bn.Mock(lambda prompt, name: "x" if "<|im_start|>tool" in prompt else {"add": {"a": 1, "b": 2}})
    )
    assert [[call.result for call in branch_calls] for branch_calls in state.tool_calls("a")] == [["3"], ["3"]]
    state["v"] = 1
    assert state.tool_calls("v") == []
