"""Programs: arguments, when bodies and gens run, and one message for a straight line."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.protocol import wire


@bn.function
def qa(s: bn.State, question: str, style: str = "short") -> str:
    """Answers."""
    s += f"{style}: {question} " + bn.gen("a")
    return question


# ---- arguments -----------------------------------------------------------------------------------------------------


def test_run_and_call_are_equivalent(mock: bn.Mock) -> None:
    for state in (qa.run("q"), qa("q"), qa.run(question="q"), qa.run("q", "short")):
        assert state.text() == "short: q <a>"
        assert state.ret_value == "q"


def test_program_keeps_name_and_docstring_of_its_function() -> None:
    assert (qa.__name__, qa.__doc__, repr(qa)) == ("qa", "Answers.", "<program qa>")


def test_program_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(qa)) is copy.copy(qa) is qa
    assert pickle.loads(pickle.dumps(qa.run)) == qa.run


def test_decorator_accepts_parentheses(mock: bn.Mock) -> None:
    @bn.function()
    def program(state: bn.State) -> None:
        state += "x"

    assert program.run().text() == "x"


def test_methods_can_be_programs(mock: bn.Mock) -> None:
    class Agent:
        style = "long"

        @bn.function
        def ask(self, s: bn.State, question: str) -> None:
            s += f"{self.style} {question}"

        @staticmethod
        @bn.function
        def plain(s: bn.State) -> None:
            s += "plain"

    assert Agent().ask.run("q").text() == "long q"
    assert Agent().ask.bind(question="b").run().text() == "long b"
    assert [s.text() for s in Agent().ask.run_batch([("q",)])] == ["long q"]
    assert Agent.plain.run().text() == "plain"
    for call in (lambda: Agent.ask.run("q"), lambda: Agent.ask(Agent(), "q"), lambda: Agent.ask.run_batch([("q",)])):
        with pytest.raises(TypeError, match=r"Agent\.ask is a method; call it on an object: x\.ask\(\.\.\.\)"):
            call()


def test_all_parameter_kinds_are_supported(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State, a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> Any:
        return a, b, rest, c, more

    assert program.run(1, 2, 4, 5, c=6, d=7).ret_value == (1, 2, (4, 5), 6, {"d": 7})


NAMES = ["n", "stop", "stream", "backend", "temperature", "max_new_tokens", "regex", "use_thread", "on_error"]


@pytest.mark.parametrize("name", NAMES)
def test_parameter_takes_precedence_over_the_option_of_its_name(mock: bn.Mock, name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def body(s, {name}):\n    s += str({name})", scope)
    program = bn.function(scope["body"])
    value = object()
    assert program.run(**{name: value}).text() == str(value)
    assert program.bind(**{name: "bound"}).run().text() == "bound"
    assert program.run_batch([{name: "item"}])[0].text() == "item"


def test_opts_set_options_hidden_by_parameters(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State, n: int, temperature: str) -> None:
        s += bn.gen("x")

    state = program.run(n=3, temperature="warm", opts=bn.Options(n=2, temperature=0))
    assert state["x"] == ["<x>", "<x>"]
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert op.sampling.temperature == 0


@pytest.mark.parametrize(
    ("args", "kwargs", "match"),
    [
        ((), {}, "program qa: missing a required argument: 'question'"),
        (("q", "s", "x"), {}, "too many positional"),
        (("q",), {"question": "q"}, "multiple values"),
        (("q",), {"stile": "x"}, "no parameter 'stile'.*did you mean 'style'"),
        (("q",), {"temprature": 1}, "did you mean 'temperature'"),
        (("q",), {"runtime": bn.Mock("x")}, "no such option; the backend of a run is given as backend="),
        (("q",), {"runtime": "x"}, "no such option; the options of a run are adapter, backend, "),
    ],
)
def test_invalid_arguments_raise_type_error(
    mock: bn.Mock, args: tuple[Any], kwargs: dict[str, Any], match: str
) -> None:
    for stream in (False, True):
        with pytest.raises(TypeError, match=match):
            qa.run(*args, **kwargs, stream=stream)


def test_opts_must_be_options(mock: bn.Mock) -> None:
    with pytest.raises(TypeError, match="opts is a dict"):
        qa.run("q", opts={"temperature": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["stream", "durable", "use_thread"])
def test_a_run_can_take_back_an_option_of_bind(option: str) -> None:
    is_default = option == "use_thread"

    @bn.function
    def program(s: bn.State) -> None: ...

    bound = program.bind(opts=bn.Options(**{option: not is_default}))
    for run in ({option: is_default}, {"opts": bn.Options(**{option: is_default})}):
        assert getattr(bound.run(backend=bn.Mock({}), **run)._record.options, option) is is_default


def test_bind_sets_default_arguments(mock: bn.Mock) -> None:
    bound = qa.bind(question="bound", style="long")
    assert bound.run().text() == "long: bound <a>"
    assert bound.run("call").text() == "long: call <a>", "arguments of the call take precedence"
    assert bound.run(style="brief").text() == "brief: bound <a>"
    assert bound.bind(style="again").run().text() == "again: bound <a>"
    assert qa.run("q").text() == "short: q <a>", "bind does not change the program"
    items = [{"question": "i"}]
    assert bound.run_batch(items)[0].text() == "long: i <a>"
    assert items == [{"question": "i"}]
    with pytest.raises(TypeError, match="a batch has no option 'runtime'; the backend of a run is given as backend="):
        bound.run_batch(items, runtime=bn.Mock("x"))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="did you mean 'question'"):
        qa.bind(qestion="x")
    with pytest.raises(TypeError, match=r"no parameter 'temperature'; for an option, write opts=Options\(temperature"):
        qa.bind(temperature=0)
    by_place = bn.function(lambda s, x, /: s.__iadd__(x))
    with pytest.raises(TypeError, match="parameter 'x' of <lambda> is positional-only; it cannot be bound"):
        by_place.bind(x="1")


# ---- invalid functions ---------------------------------------------------------------------------------------------


async def _async_generator(s: bn.State) -> Any:
    yield


def _generator(s: bn.State) -> Any:
    yield


def _no_state() -> None: ...


def _keyword_state(*, s: bn.State) -> None: ...


def _opts(s: bn.State, opts: Any) -> None: ...


class _Holder:
    def method(s: bn.State, self: Any) -> None: ...


@pytest.mark.parametrize(
    ("func", "error", "match"),
    [
        (_async_generator, bn.BadProgram, "yield"),
        (_generator, bn.BadProgram, "yield"),
        (_no_state, bn.BadProgram, "first parameter"),
        (_keyword_state, bn.BadProgram, "first parameter"),
        (_opts, bn.BadProgram, "'opts'"),
        (_Holder.method, bn.BadProgram, r"self comes before the state: def method\(self, s, \.\.\.\)"),
    ],
)
def test_invalid_function_is_refused(func: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        bn.function(func)


def test_self_is_an_ordinary_parameter_outside_of_a_class() -> None:
    @bn.function
    def describe(s: bn.State, self: str) -> None:
        s += self

    assert describe.run("the object", backend=bn.Mock("")).text() == "the object"


# ---- order of execution --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 20])
def test_straight_line_is_one_message(mock: bn.Mock, k: int) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        for i in range(k):
            s += bn.user(str(i)) + bn.assistant(bn.gen(f"x{i}"))
        s += bn.select("c", ["<c>"])

    state = program.run()
    assert len(mock.submits) == 1
    assert [state[f"x{i}"] for i in range(k)] == [f"<x{i}>" for i in range(k)]
    assert len(mock.submits) == 1


def test_each_read_sends_one_message(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        for i in range(5):
            s += bn.gen("x")
            if s["x"]:
                s += f"{i}"

    program.run()
    assert len(mock.submits) == 6
    sent = [part for ops in mock.submits for op in ops if isinstance(op, wire.Append) for part in op.parts]
    assert sent == list("01234"), "nothing is sent twice"


def test_body_runs_once_per_item(mock: bn.Mock) -> None:
    calls = []

    @bn.function
    def program(s: bn.State, d: dict[str, int], key: str) -> None:
        calls.append(key)
        if key:
            s += f"{d[key]}" + bn.gen("x")

    program.run_batch([{"d": {"a": 1}, "key": "a"}, {"d": {"b": 2}, "key": "b"}])
    assert sorted(calls) == ["a", "b"]


def test_nothing_is_sent_before_a_read(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("x")
        s.ref("x")
        s.fork(2).join()
        assert "x" in s
        assert mock.calls == []

    program.run()


def test_nested_programs_start_immediately_and_use_the_callers_backend() -> None:
    started: list[str] = []
    backend = bn.Mock(lambda prompt, name: started.append(prompt) or prompt.upper())  # type: ignore[func-returns-value]

    @bn.function
    def expert(s: bn.State, topic: str) -> None:
        s += topic + bn.gen("x")

    @bn.function
    def panel(s: bn.State) -> None:
        children = [expert(topic) for topic in ("a", "b")]
        assert started == ["a", "b"], "sent at the end of each body"
        for child in children:
            s += child["x"]

    state = panel.run(backend=backend)
    assert state.text() == "AB"
    with pytest.raises(bn.ConfigError):
        expert.run("a")


def test_seed_of_a_program_gives_each_program_that_it_calls_a_seed(mock: bn.Mock) -> None:
    @bn.function
    def inner(s: bn.State) -> None:
        s += bn.gen("x")

    @bn.function
    def outer(s: bn.State) -> None:
        s += bn.gen("y")
        s.fork(2).join()
        inner.run()
        inner.run()
        inner.run_batch([()] * 3)
        list(inner.run_batch(iter([()] * 3), generator_style=True, num_threads=1))
        inner.run(seed=9)

    @bn.function
    async def outer_async(s: bn.AsyncState) -> None:
        await asyncio.gather(inner.run_async(), inner.run_async())
        await inner.run_batch_async([()] * 3)

    def seeds(run: Callable[[], Any]) -> set[int | None]:
        mock.calls.clear()
        run()
        return {call.op.sampling.seed for call in mock.calls if isinstance(call.op, wire.Gen)}

    first = seeds(lambda: outer.run(seed=3))
    assert len(first) == len(mock.calls) == 10, "no two of them draw alike"
    assert seeds(lambda: outer.run(seed=3)) == first
    assert seeds(lambda: outer.run(seed=4)) & first == seeds(lambda: inner.run(seed=9))
    assert len(seeds(outer.run)) == 2, "none, and that of the program with its own seed"
    first = seeds(lambda: asyncio.run(outer_async.run_async(seed=3)))
    assert len(first) == 5
    assert seeds(lambda: asyncio.run(outer_async.run_async(seed=3))) == first


def test_seeds_of_called_programs_do_not_depend_on_the_order_in_which_threads_arrive() -> None:
    @bn.function
    def inner(s: bn.State, x: int) -> None:
        s += f"{x}" + bn.gen("inner")

    orders = iter([(1, 2), (2, 1)])
    tools = [threading.Event(), threading.Event()]

    def look(x: int) -> str:
        """Call a program twice, when the calls of the tool before this one have ended."""
        assert tools[order.index(x)].wait(10)
        texts = [inner.run(x)["inner"] for _ in range(2)]
        tools[order.index(x) - 1].set()
        return ",".join(texts)

    async def look_async(x: int) -> str:
        """Call a program."""
        return (await inner.run_async(x))["inner"]

    def items() -> Iterator[tuple[int]]:
        yield (int(inner.run(5)["inner"]),)

    def outer(s: bn.State) -> None:
        s += bn.user("?") + bn.assistant(bn.gen("a", tools=[look, look_async]))
        s["a"]
        list(inner.run_batch(items(), generator_style=True))
        thread = threading.Thread(target=copy_context().run, args=(inner.run, 4))
        thread.start()
        thread.join()
        inner.run(6, backend=other)
        inner.run(7)

    def answer(prompt: str, name: str) -> Any:
        if name == "inner":
            return prompt[-1]
        return "end" if "tool" in prompt else ({"look": {"x": 1}}, {"look": {"x": 2}}, {"look_async": {"x": 3}})

    def seeds(run: Callable[[], Any]) -> dict[str, list[int | None]]:
        nonlocal order
        order = next(orders)
        tools[0].set(), tools[1].clear()
        mock.calls.clear(), other.calls.clear()
        run()
        found: dict[str, list[int | None]] = {}
        for call in mock.calls + other.calls:
            if isinstance(call.op, wire.Gen) and call.op.name == "inner":
                found.setdefault(call.prompt[-1], []).append(call.op.sampling.seed)
        return found

    order, other, mock = (0, 0), bn.Mock("x"), bn.Mock(answer)
    program = bn.function(outer)
    first = seeds(lambda: program.run(backend=mock, seed=3))
    assert seeds(lambda: program.run(backend=mock, seed=3)) == first
    assert sorted(first) == ["1", "2", "3", "4", "5", "6", "7"]
    assert first["4"] == first["6"] == [None]
    assert first["5"][0] is None
    seeded = [seed for x in "12357" for seed in first[x] if seed is not None]
    assert len(seeded) == len(set(seeded)) == 7, "two calls of two tools each, the third tool, the batch, and 7"


# ---- errors --------------------------------------------------------------------------------------------------------


def test_body_error_is_raised(mock: bn.Mock) -> None:
    states: list[bn.State] = []

    @bn.function
    def program(s: bn.State) -> None:
        states.append(s)
        s += bn.gen("x")
        s.sync()
        s += bn.gen("y")
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        program.run()
    (state,) = states
    assert state["x"] == "<x>", "finished values stay readable"
    with pytest.raises(ZeroDivisionError):
        state["y"]
    assert state.error() is raised.value
    assert [call.name for call in mock.calls] == ["x"], "unsent gens are never sent"


def failing(prompt: str, name: str) -> str:
    if name == "bad":
        raise OSError("no luck")
    return name


@bn.function
def fails(s: bn.State) -> None:
    s += "the prompt" + bn.gen("good")
    s += bn.gen("bad")  # errors name this line
    s += bn.gen("after")


FAILING_LINE = f"test_program.py:{fails.func.__code__.co_firstlineno + 3}"
READS = {
    "bad": lambda s: s["bad"],
    "a later gen": lambda s: s["after"],
    "get_var": lambda s: s.get_var("bad"),
    "get_meta_info": lambda s: s.get_meta_info("after"),
    "text": lambda s: s.text(),
    "sync": lambda s: s.sync(),
    "text_iter": lambda s: list(s.text_iter()),
    "text_iter of a gen": lambda s: list(s.text_iter("after")),
    "append and read": lambda s: s.__iadd__(bn.gen("x"))["x"],
    "fork and read": lambda s: s.fork(2)[1].text(),
}


@pytest.mark.parametrize("read", READS)
def test_failure_is_raised_by_every_read(read: str) -> None:
    state = fails.run(backend=bn.Mock(failing))
    assert state["good"] == "good"
    for _ in range(2):
        with pytest.raises(bn.ProgramError) as raised:
            READS[read](state)
        error = raised.value
        assert (error.program, error.gen, error.line) == ("fails", "bad", FAILING_LINE)
        assert error.prompt_tail == "the promptgood"
        assert isinstance(error.__cause__, OSError)
        assert "no luck" in str(error)
        assert FAILING_LINE in str(error)
    assert isinstance(state.error(), bn.ProgramError)
    assert state.usage.prompt == 0


def test_failed_branch_is_raised_where_it_is_read(mock: bn.Mock) -> None:
    """Two-stage fork: one branch fails and the body continues with the other."""

    def script(prompt: str, name: str) -> str:
        if prompt.endswith("1"):
            raise OSError("no luck")
        return name

    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks += lambda i: str(i)
        forks += bn.gen("plan")
        assert forks[0]["plan"] == "plan"
        forks += bn.gen("work")
        forks.join()
        assert s.text() == "", "the parent has not failed"

    state = program.run(backend=bn.Mock(script))
    for name in ("plan", "work"):
        with pytest.raises(bn.ProgramError) as raised:
            state[name]
        assert raised.value.gen == "plan"


def test_concat_fails_with_its_branch() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks += bn.gen("bad")
        forks.join("concate_and_append")
        s += bn.gen("after")

    with pytest.raises(bn.ProgramError, match="no luck"):
        program.run(backend=bn.Mock(failing))["after"]


def test_unreachable_backend_raises_runtime_lost() -> None:
    class LostMock(bn.Mock):
        def program(self, name: str = "") -> Any:
            raise bn.RuntimeLost("the server is gone")

    with pytest.raises(bn.RuntimeLost, match="the server is gone"):
        qa.run("q", backend=LostMock())
    states = qa.run_batch([("q",)] * 3, backend=LostMock(), on_error="return")
    assert [type(state.error()) for state in states] == [bn.RuntimeLost] * 3
    streamed = qa.run("q", backend=LostMock(), stream=True)
    with pytest.raises(bn.RuntimeLost, match="the server is gone"):
        list(streamed.text_iter())


def test_runtime_error_keeps_its_type_and_names_the_line() -> None:
    class EngineLostMock(bn.Mock):
        def program(self, name: str = "") -> Any:
            program = super().program(name)
            program.submit = lambda ops, last=False: program.future(0).set_exception(bn.EngineLost("it died"))
            return program

    state = qa.run("q", backend=EngineLostMock())
    with pytest.raises(bn.EngineLost) as raised:
        state["a"]
    line = f"test_program.py:{qa.func.__code__.co_firstlineno + 3}"
    assert raised.value.__notes__[0] == f"while program qa waited for 'a' ({line})"


def test_bound_options_are_defaults_of_every_run() -> None:
    @bn.function
    def program(s: bn.State, word: str) -> None:
        s += word + bn.gen("a")

    mock = bn.Mock("one two three four")
    bound = program.bind(opts=bn.Options(backend=mock, max_tokens=2))
    again = bound.bind(opts=bn.Options(temperature=0.5), word="x")
    for state, expected in (
        (bound.run("x"), (2, 1.0)),
        (again.run(), (2, 0.5)),
        (again.run(max_new_tokens=3), (3, 0.5)),
        (bn.compile(again).run(opts=bn.Options(max_tokens=1)), (1, 0.5)),
        (bound.run_batch([("x",)], temperature=0)[0], (2, 0.0)),
    ):
        state.sync()
        options = state._record.sampling
        assert (options.max_tokens, options.temperature) == expected
