"""The Mock: every kind of script, with the semantics of a runtime."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import banyan as bn
from banyan.backends.job import CHATML
from banyan.backends.mock import INTERNAL_THREADS
from banyan.runtime.protocol import wire


@bn.function
def questions(s: bn.State) -> None:
    s += "Q" + bn.gen("a") + "|" + bn.gen("b", stop=["\n", "END"])
    s += "|" + bn.gen("a")


def sampled(text: str) -> wire.Sample:
    return wire.Sample(text, "length", n_tokens=2)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("x", "Qx|x|x"),
        (["1", "2", "3"], "Q1|2|3"),
        ({"a": "A", "b": "B"}, "QA|B|A"),
        ({"a": ["1", "2"], "b": sampled("s")}, "Q1|s|2"),
        (lambda prompt, name: f"{name}{len(prompt)}", "Qa1|b4|a7"),
        ({"a": "A", "b": "B\nC"}, "QA|B|A"),
        ({"a": "A", "b": "xENDy\n"}, "QA|x|A"),
    ],
)
def test_script_answers_every_gen(script: Any, text: str) -> None:
    assert questions.run(backend=bn.Mock(script)).text() == text


def test_calls_record_prompt_name_and_options() -> None:
    mock = bn.Mock("x")
    questions.run(temperature=0, backend=mock)
    assert [(call.prompt, call.name) for call in mock.calls] == [("Q", "a"), ("Qx|", "b"), ("Qx|x|", "a")]
    assert isinstance(op := mock.calls[1].op, wire.Gen)
    assert (op.sampling.temperature, op.sampling.stop) == (0, ("\n", "END"))


def test_turn_ends_at_its_marker() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.assistant(bn.gen("a"))

    state = program.run(backend=bn.Mock("yes<|im_end|>\n<|im_start|>user"))
    assert state["a"] == "yes"
    assert state.get_meta_info("a")["finish_reason"] == {"type": "stop", "matched": "<|im_end|>"}


@pytest.mark.parametrize(
    ("script", "cause", "message"),
    [
        ([], LookupError, "only 0 answers"),
        ({"b": "x"}, LookupError, "no answer for 'a', only for b"),
        ({"a": []}, LookupError, "only 0 answers for 'a'"),
        (lambda prompt, name: 5, TypeError, "not 5"),
        (lambda prompt, name: 1 / 0, ZeroDivisionError, "division by zero"),
    ],
)
def test_failing_script_raises_program_error(script: Any, cause: type[Exception], message: str) -> None:
    state = questions.run(backend=bn.Mock(script))
    with pytest.raises(bn.ProgramError, match=message) as raised:
        state["b"]
    assert isinstance(raised.value.__cause__, cause)
    assert raised.value.gen == "a"


def test_select_accepts_only_a_choice() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.select("c", ["yes", "no"])

    assert program.run(backend=bn.Mock("no"))["c"] == "no"
    with pytest.raises(bn.ProgramError, match="'maybe' is not among the choices: yes, no"):
        program.run(backend=bn.Mock("maybe"))["c"]


@pytest.mark.parametrize("first", ["user", "system"])
def test_prompt_begins_with_the_default_system_prompt_of_the_template(first: str) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        with s.var_scope("first"):
            s += bn.role(first, "Q")
        with s.var_scope("second"):
            s += bn.user("R")
        s += bn.assistant(bn.gen("a"))

    mock = bn.Mock("x", chat=replace(CHATML, default_system="Be brief."))
    state = program.run(backend=mock)
    streamed = "".join(program.run(backend=mock, stream=True).text_iter())
    default = "<|im_start|>system\nBe brief.<|im_end|>\n" if first == "user" else ""
    assert state.text() == streamed == f"{mock.calls[0].prompt}x<|im_end|>\n"
    assert state["first"] == f"{default}<|im_start|>{first}\nQ<|im_end|>\n"
    assert state["second"] == "<|im_start|>user\nR<|im_end|>\n"


def test_turn_without_chat_markers_raises() -> None:
    @bn.function
    def program(s: bn.State, role: str) -> None:
        s += bn.role(role, "x") + bn.gen("a")

    for backend, role in ((bn.Mock("x", chat=None), "user"), (bn.Mock("x"), "judge")):
        with pytest.raises(bn.BadProgram, match=role):
            program.run(role, backend=backend)["a"]


def test_info_counts_calls_and_submits() -> None:
    mock = bn.Mock("x")
    questions.run(backend=mock)
    assert mock.ask("info") == {"model": "mock", "n_calls": 3, "n_submits": 1}
    assert mock.welcome.model == "mock"


def test_join_and_ref_propagate_a_failure() -> None:
    def script(prompt: str, name: str) -> str:
        return name if name != "bad" else str(1 / 0)

    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks[0].__iadd__(bn.gen("bad"))
        forks[1].__iadd__([forks[0].ref("bad"), bn.gen("next")])
        s["second"] = forks[1]

    with pytest.raises(bn.ProgramError, match="inserted here failed"):
        program.run(backend=bn.Mock(script))["second"]["next"]


# ---- names, patterns, functions, failures --------------------------------------------------------------------------


def test_dict_script_matches_names_and_patterns() -> None:
    script = {
        "b": lambda prompt, name: f"{name}{len(prompt)}",
        re.compile(r"^Q$"): ["first", "second"],
        re.compile("Q"): "later",
    }
    mock = bn.Mock(script)
    assert questions.run(backend=mock).text() == "Qfirst|b7|later"
    assert questions.run(backend=mock)["a"] == "later"
    state = questions.run(backend=mock)
    with pytest.raises(bn.ProgramError, match=r"only 2 answers for '\^Q\$'"):
        state["b"]


def test_dict_script_without_an_answer_lists_its_keys() -> None:
    state = questions.run(backend=bn.Mock({"b": "x", re.compile("never"): "y"}))
    with pytest.raises(bn.ProgramError, match="no answer for 'a', only for b, and none of its 1 patterns"):
        state["a"]


@pytest.mark.parametrize("latency", [0.0, 0.01])
def test_script_can_raise_failures(latency: float) -> None:
    lost = bn.RuntimeLost("gone")
    state = questions.run(backend=bn.Mock({"a": "A", "b": lost}, latency=latency))
    with pytest.raises(bn.RuntimeLost, match="gone"):
        state["b"]
    state = questions.run(backend=bn.Mock(["x", ValueError("no")], latency=latency))
    with pytest.raises(bn.ProgramError, match="ValueError: no") as raised:
        state["b"]
    assert (raised.value.gen, raised.value.prompt_tail) == ("b", "Qx|")


def test_error_that_answers_twice_names_each_gen() -> None:
    @bn.function
    def program(s: bn.State, name: str) -> None:
        s += name + bn.gen(name)

    too_long = bn.PromptTooLong("9 tokens too many")
    mock = bn.Mock(lambda prompt, name: too_long)
    for name in ("a", "b"):
        with pytest.raises(bn.PromptTooLong) as raised:
            program.run(name, backend=mock)[name]
        assert (raised.value.gen, raised.value.prompt_tail) == (name, name)
    assert too_long.gen == ""


# ---- scripts that a timer or a tool calls ----


@bn.tool
def clear() -> str:
    """Clear it."""
    return "done"


@bn.function
def two_gens(s: bn.State) -> None:
    s += bn.user("1") + bn.assistant(bn.gen("a")) + bn.user("2") + bn.assistant(bn.gen("x"))


@bn.function
def tool_round(s: bn.State) -> None:
    s += bn.user("1") + bn.assistant(bn.gen("x", tools=[clear]))


@bn.function
def retry(s: bn.State) -> None:
    s += bn.user("1") + bn.assistant(bn.gen("x", type=int, retries=1))


BY = {
    "clock": (two_gens, "1", 0.01),
    "tools": (tool_round, {"clear": {}}, 0),
    "check": (retry, "no number", 0),
}
"""Thread -> (a program whose second call it makes, the first answer, the latency)."""


@pytest.fixture(params=BY)
def run_by_thread(request: pytest.FixtureRequest) -> Callable[[Callable[[], str]], bn.State]:
    """`run_by_thread(second)`: run a program whose second answer is `second()`."""
    program, first, latency = BY[request.param]

    def run(second: Callable[[], str]) -> bn.State:
        def script(prompt: str, name: str) -> Any:
            if len(mock.calls) == 1:
                return first
            assert threading.current_thread().name not in INTERNAL_THREADS
            return second()

        mock = bn.Mock(script, latency=latency)
        return program.run(backend=mock)

    return run


def test_script_may_run_programs_on_any_thread(run_by_thread: Any) -> None:
    inner = bn.Mock("4", latency=0.01)
    assert run_by_thread(lambda: two_gens.run(backend=inner)["x"])["x"] == "4"


def test_exception_that_is_no_error_fails_the_gen_on_any_thread(run_by_thread: Any) -> None:
    # The caller's own thread, which may also run the script, gets the exception itself.
    with pytest.raises((bn.ProgramError, pytest.fail.Exception), match="unexpected prompt"):
        run_by_thread(lambda: pytest.fail("unexpected prompt"))["x"]
    assert two_gens.run(backend=bn.Mock("y", latency=0.01))["x"] == "y", "the clock goes on"


def test_script_sees_the_backend_that_its_program_was_started_with(run_by_thread: Any) -> None:
    with bn.using(bn.Mock("5")):
        assert run_by_thread(lambda: two_gens.run()["x"])["x"] == "5"


# ---- latency -------------------------------------------------------------------------------------------------------


def test_latencies_of_branches_overlap() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(20)
        forks += bn.gen("a")
        forks.join()

    start = time.monotonic()
    state = program.run(backend=bn.Mock("x", latency=1.0))
    assert state["a"] == ["x"] * 20
    assert 1.0 <= time.monotonic() - start < 20.0, "the latencies overlap"


def test_latency_function_receives_each_call() -> None:
    calls: list[tuple[str, str]] = []

    def latency(call: Any) -> float:
        calls.append((call.prompt, call.name))
        return 0.01 if call.name == "a" else 0.0

    assert questions.run(backend=bn.Mock("x", latency=latency)).text() == "Qx|x|x"
    assert calls == [("Q", "a"), ("Qx|", "b"), ("Qx|x|", "a")]
    with pytest.raises(bn.ConfigError, match="latency is -1"):
        bn.Mock("x", latency=-1)


def test_stream_is_spread_over_the_latency() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("a")

    start = time.monotonic()
    arrivals = [(piece, time.monotonic() - start) for piece in
                program.run(backend=bn.Mock("one two three", latency=0.4), stream=True).text_iter("a")]  # fmt: skip
    assert [piece for piece, _ in arrivals] == ["one ", "two ", "three"]
    assert 0.1 <= arrivals[0][1] < arrivals[1][1] < arrivals[2][1]


def test_cancel_does_not_wait_for_an_answer() -> None:
    mock = bn.Mock("x", latency=60)
    state = questions.run(backend=mock)
    state._record.flush()
    state.cancel()
    with pytest.raises(bn.Cancelled):
        state["b"]
    assert len(mock.calls) == 1


def test_dropped_branch_is_stopped() -> None:
    mock = bn.Mock({"slow": "x", "go": "y"}, latency=lambda call: 60 if call.name == "slow" else 0)

    @bn.function
    def program(s: bn.State) -> None:
        fork = s.fork(1)
        fork += bn.gen("slow") + bn.gen("never")
        s._record.flush()
        del fork
        s += bn.gen("go")

    state = program.run(backend=mock)
    assert state["go"] == "y"
    assert [call.name for call in mock.calls] == ["slow", "go"]
    assert not state._record.program._executor.running


def test_many_sequential_gens_do_not_recurse() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        for _ in range(1100):
            s += bn.gen()

    assert program.run(backend=bn.Mock("x")).text() == "x" * 1100


@pytest.mark.parametrize(
    ("options", "text", "matched"),
    [
        ({"stop_regex": r"\d+ [a-z]"}, "a 12 b", r"\d+ [a-z]"),
        ({"stop_regex": [r"zz", r"b"], "stop": "cc"}, "a 12 b", "b"),
        ({"stop_regex": r"c", "stop": "2"}, "a 1", "2"),
        ({"stop_regex": "nothing"}, "a 12 bb cc", None),
    ],
)
def test_answer_ends_after_the_first_match_of_stop_regex(options: Any, text: str, matched: str | None) -> None:
    state = bn.function(lambda s: s.__iadd__(bn.gen("x", **options))).run(backend=bn.Mock("a 12 bb cc"))
    assert state["x"] == text
    assert state.get_meta_info("x")["finish_reason"].get("matched") == matched


# ---- tokens, budgets and tools -------------------------------------------------------------------------------------


def test_word_with_its_white_space_is_a_token() -> None:
    state = questions.run(backend=bn.Mock({"a": " one two\n", "b": sampled("x y z")}))
    assert [gen.generated for gen in state.usage.gens] == [3, 2, 3]


@pytest.mark.parametrize("latency", [0.0, 0.01])
def test_gen_that_exceeds_the_budget_of_its_run_fails(latency: float) -> None:
    mock = bn.Mock("one two three", latency=latency)
    assert questions.run(backend=mock, budget=9).error() is None
    state = questions.run(backend=mock, budget=8)
    with pytest.raises(bn.BudgetExceeded, match="the run's budget of 8 tokens ran out") as raised:
        state.sync()
    assert raised.value.gen == "a"
    assert state["b"] == "one two three"


@pytest.mark.parametrize("latency", [0.0, 0.01])
def test_gen_that_exceeds_the_budget_of_its_batch_fails(latency: float) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a")

    mock = bn.Mock("one two three", latency=latency)
    assert len(program.run_batch([{}] * 3, budget=9, backend=mock)) == 3
    with pytest.raises(bn.BatchError, match=r"1 of 3 items failed.*the batch's budget of 8 tokens ran out"):
        program.run_batch([{}] * 3, budget=8, concurrency=1, backend=mock)


def test_durable_is_refused() -> None:
    with pytest.raises(bn.Unsupported, match="durable: a Mock ends with its process"):
        questions.run(backend=bn.Mock("x"), durable="name")


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_after_a_tool_call_contains_the_call(stream: bool) -> None:
    @bn.tool
    def add(a: int, b: int) -> int:
        "Add."
        return a + b

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("Sum?") + bn.assistant(bn.gen("sum", tools=[add]))

    first = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    second = first.replace('"a": 1', '"a": 2')
    mock = bn.Mock({
        re.compile(r'"add", "arguments": {"a": 1, "b": 2}}</tool_call>'): "It is three.",
        re.compile("Sum"): [({"add": {"a": 1, "b": 2}}, {"add": {"a": 2, "b": 2}})],
    })  # fmt: skip
    state = program.run(backend=mock, stream=stream)
    assert list(state.text_iter("sum")) == (["It ", "is ", "three."] if stream else ["It is three."])
    assert f"assistant\n{first}{second}<|im_end|>\n<|im_start|>tool\n3<|im_end|>" in mock.calls[1].prompt
    assert state.messages()[1] == {"role": "assistant", "content": first + second}
    assert state.usage.generated == 13 + 3
