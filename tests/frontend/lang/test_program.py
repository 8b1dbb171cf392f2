"""Programs: their arguments, what runs when, and one message for a straight line."""

from __future__ import annotations

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


def test_run_and_call_are_one(mock: bn.Mock) -> None:
    for state in (qa.run("q"), qa("q"), qa.run(question="q"), qa.run("q", "short")):
        assert state.text() == "short: q <a>"
        assert state.ret_value == "q"


def test_a_program_looks_like_its_function() -> None:
    assert (qa.__name__, qa.__doc__, repr(qa)) == ("qa", "Answers.", "<program qa>")


def test_decorator_with_and_without_parentheses(mock: bn.Mock) -> None:
    @bn.function()
    def program(state: bn.State) -> None:
        state += "x"

    assert program.run().text() == "x"


def test_programs_as_methods(mock: bn.Mock) -> None:
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


def test_any_kind_of_parameter(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State, a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> Any:
        return a, b, rest, c, more

    assert program.run(1, 2, 4, 5, c=6, d=7).ret_value == (1, 2, (4, 5), 6, {"d": 7})


NAMES = ["n", "stop", "stream", "backend", "temperature", "max_new_tokens", "regex", "use_thread", "on_error"]


@pytest.mark.parametrize("name", NAMES)
def test_a_programs_parameter_wins_over_an_option_of_that_name(mock: bn.Mock, name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def body(s, {name}):\n    s += str({name})", scope)
    program = bn.function(scope["body"])
    value = object()
    assert program.run(**{name: value}).text() == str(value)
    assert program.bind(**{name: "bound"}).run().text() == "bound"
    assert program.run_batch([{name: "item"}])[0].text() == "item"


def test_opts_set_what_parameters_hide(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State, n: int, temperature: str) -> None:
        s += bn.gen("x")

    state = program.run(n=3, temperature="warm", opts=bn.Options(n=2, temperature=0))
    assert state["x"] == ["<x>", "<x>"]
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert op.sampling.temperature == 0


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "program qa: missing a required argument: 'question'"),
        (("q", "s", "x"), {}, "too many positional"),
        (("q",), {"question": "q"}, "multiple values"),
        (("q",), {"stile": "x"}, "no parameter 'stile'.*did you mean 'style'"),
        (("q",), {"temprature": 1}, "did you mean 'temperature'"),
        (("q",), {"max_tokens": 5}, "called 'max_new_tokens'"),
    ],
)
def test_arguments_that_do_not_fit(mock: bn.Mock, args: tuple[Any], kwargs: dict[str, Any], why: str) -> None:
    for stream in (False, True):
        with pytest.raises(TypeError, match=why):
            qa.run(*args, **kwargs, stream=stream)


def test_opts_are_options(mock: bn.Mock) -> None:
    with pytest.raises(TypeError, match="opts is a dict"):
        qa.run("q", opts={"temperature": 0})  # type: ignore[arg-type]


def test_bind(mock: bn.Mock) -> None:
    bound = qa.bind(question="bound", style="long")
    assert bound.run().text() == "long: bound <a>"
    assert bound.run("call").text() == "long: call <a>", "what the call gives wins"
    assert bound.run(style="brief").text() == "brief: bound <a>"
    assert bound.bind(style="again").run().text() == "again: bound <a>"
    assert qa.run("q").text() == "short: q <a>", "the program itself is as it was"
    items = [{"question": "i"}]
    assert bound.run_batch(items)[0].text() == "long: i <a>"
    assert items == [{"question": "i"}]
    with pytest.raises(TypeError, match="did you mean 'question'"):
        qa.bind(qestion="x")


# ---- what is no program --------------------------------------------------------------------------------------------


async def _async_generator(s: bn.State) -> Any:
    yield


def _generator(s: bn.State) -> Any:
    yield


def _no_state() -> None: ...


def _keyword_state(*, s: bn.State) -> None: ...


def _opts(s: bn.State, opts: Any) -> None: ...


@pytest.mark.parametrize(
    ("func", "error", "why"),
    [
        (_async_generator, bn.BadProgram, "yield"),
        (_generator, bn.BadProgram, "yield"),
        (_no_state, bn.BadProgram, "first parameter"),
        (_keyword_state, bn.BadProgram, "first parameter"),
        (_opts, bn.BadProgram, "'opts'"),
    ],
)
def test_functions_that_are_no_programs(func: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        bn.function(func)


# ---- when things run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 20])
def test_a_straight_line_is_one_message(mock: bn.Mock, k: int) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        for i in range(k):
            s += bn.user(str(i)) + bn.assistant(bn.gen(f"x{i}"))
        s += bn.select("c", ["<c>"])

    state = program.run()
    assert len(mock.submits) == 1
    assert [state[f"x{i}"] for i in range(k)] == [f"<x{i}>" for i in range(k)]
    assert len(mock.submits) == 1


def test_a_program_that_looks_is_one_message_for_each_look(mock: bn.Mock) -> None:
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


def test_the_body_runs_once(mock: bn.Mock) -> None:
    calls = []

    @bn.function
    def program(s: bn.State, d: dict[str, int], key: str) -> None:
        calls.append(key)
        if key:
            s += f"{d[key]}" + bn.gen("x")

    program.run_batch([{"d": {"a": 1}, "key": "a"}, {"d": {"b": 2}, "key": "b"}])
    assert sorted(calls) == ["a", "b"]


def test_nothing_happens_before_somebody_looks(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("x")
        s.ref("x")
        s.fork(2).join()
        assert "x" in s
        assert mock.calls == []

    program.run()


def test_nested_programs_start_at_once_and_go_where_their_caller_went() -> None:
    started: list[str] = []
    backend = bn.Mock(lambda prompt, name: started.append(prompt) or prompt.upper())  # type: ignore[func-returns-value]

    @bn.function
    def expert(s: bn.State, topic: str) -> None:
        s += topic + bn.gen("x")

    @bn.function
    def panel(s: bn.State) -> None:
        children = [expert(topic) for topic in ("a", "b")]
        assert started == ["a", "b"], "each was sent when its body ended"
        for child in children:
            s += child["x"]

    state = panel.run(backend=backend)
    assert state.text() == "AB"
    with pytest.raises(bn.ConfigError):
        expert.run("a")


# ---- errors --------------------------------------------------------------------------------------------------------


def test_what_the_body_raises_is_raised(mock: bn.Mock) -> None:
    kept: list[bn.State] = []

    @bn.function
    def program(s: bn.State) -> None:
        kept.append(s)
        s += bn.gen("x")
        s.sync()
        s += bn.gen("y")
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        program.run()
    (state,) = kept
    assert state["x"] == "<x>", "what was known stays known"
    with pytest.raises(ZeroDivisionError):
        state["y"]
    assert state.error() is raised.value
    assert [call.name for call in mock.calls] == ["x"], "and what was not sent never is"


def failing(prompt: str, name: str) -> str:
    if name == "bad":
        raise OSError("no luck")
    return name


@bn.function
def fails(s: bn.State) -> None:
    s += "the prompt" + bn.gen("good")
    s += bn.gen("bad")  # the line that errors name
    s += bn.gen("after")


LINE = f"test_program.py:{fails.func.__code__.co_firstlineno + 3}"
LOOKS = {
    "bad": lambda s: s["bad"],
    "a later gen": lambda s: s["after"],
    "get_var": lambda s: s.get_var("bad"),
    "get_meta_info": lambda s: s.get_meta_info("after"),
    "text": lambda s: s.text(),
    "str": lambda s: str(s),
    "sync": lambda s: s.sync(),
    "text_iter": lambda s: list(s.text_iter()),
    "text_iter of a gen": lambda s: list(s.text_iter("after")),
    "append and look": lambda s: s.__iadd__(bn.gen("x"))["x"],
    "fork and look": lambda s: s.fork(2)[1].text(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_failure_is_told_where_somebody_looks(look: str) -> None:
    state = fails.run(backend=bn.Mock(failing))
    assert state["good"] == "good"
    for _ in range(2):
        with pytest.raises(bn.ProgramError) as raised:
            LOOKS[look](state)
        error = raised.value
        assert (error.program, error.gen, error.line) == ("fails", "bad", LINE)
        assert error.prompt_tail == "the promptgood"
        assert isinstance(error.__cause__, OSError)
        assert "no luck" in str(error)
        assert LINE in str(error)
    assert isinstance(state.error(), bn.ProgramError)
    assert state.usage.prompt == 0


def test_a_failed_branch_is_told_by_whom_it_is_read(mock: bn.Mock) -> None:
    """The two-stage fork at which other languages hang: one branch fails, the body goes on with the other."""

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
        assert s.text() == "", "the parent is well"

    state = program.run(backend=bn.Mock(script))
    for name in ("plan", "work"):
        with pytest.raises(bn.ProgramError) as raised:
            state[name]
        assert raised.value.gen == "plan"


def test_a_concatenation_fails_with_its_branch() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks += bn.gen("bad")
        forks.join("concate_and_append")
        s += bn.gen("after")

    with pytest.raises(bn.ProgramError, match="no luck"):
        program.run(backend=bn.Mock(failing))["after"]


def test_a_backend_that_takes_nothing() -> None:
    class Gone(bn.Mock):
        def program(self, name: str = "") -> Any:
            raise bn.RuntimeLost("the server is gone")

    with pytest.raises(bn.RuntimeLost, match="the server is gone"):
        qa.run("q", backend=Gone())
    states = qa.run_batch([("q",)] * 3, backend=Gone(), on_error="return")
    assert [type(state.error()) for state in states] == [bn.RuntimeLost] * 3
    streamed = qa.run("q", backend=Gone(), stream=True)
    with pytest.raises(bn.RuntimeLost, match="the server is gone"):
        list(streamed.text_iter())


def test_an_error_of_the_runtime_stays_what_it_is_and_says_where() -> None:
    class Lossy(bn.Mock):
        def program(self, name: str = "") -> Any:
            made = super().program(name)
            made.submit = lambda ops, last=False: made.future(0).set_exception(bn.EngineLost("it died"))
            return made

    state = qa.run("q", backend=Lossy())
    with pytest.raises(bn.EngineLost) as raised:
        state["a"]
    line = f"test_program.py:{qa.func.__code__.co_firstlineno + 3}"
    assert raised.value.__notes__ == [f"while program qa waited for 'a' ({line})"]
