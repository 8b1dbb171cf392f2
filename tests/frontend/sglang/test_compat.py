"""SGLang programs after `import banyan as sgl`: same texts, values and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import banyan as sgl
from banyan.runtime.protocol import wire
from banyan.sglang.turn_format import TurnFormat


class Case(NamedTuple):
    program: Any
    arguments: dict[str, Any]
    script: Any
    text: str
    variables: dict[str, Any]
    ret_value: Any = None


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


@sgl.function
def multi_turn(s, question_1, question_2):  # type: ignore[no-untyped-def]
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=256))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=256))


@sgl.function
def few_shot(s, question):  # type: ignore[no-untyped-def]
    s += "Q: 1?\nA: one\n\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", temperature=0)


@sgl.function
def tool_use(s, question):  # type: ignore[no-untyped-def]
    s += "To answer " + question + ", I need a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The result is" + sgl.gen("expression")
    elif s["tool"] == "search engine":
        s += "The key word is" + sgl.gen("word")


@sgl.function
def judge(s, essay):  # type: ignore[no-untyped-def]
    s += "Judge: " + essay
    forks = s.fork(2)
    for fork, dimension in zip(forks, ["clarity", "depth"]):  # noqa: B905
        fork += f"\n{dimension}:" + sgl.gen("judgment", stop="END")
    summary = " ".join(fork["judgment"] for fork in forks)
    s += "\nSummary:" + summary + sgl.gen("grade")
    return s["grade"]


@sgl.function
def tips(s):  # type: ignore[no-untyped-def]
    s += "Tips: 1. eat 2. sleep\n"
    forks = s.fork(2)
    forks += lambda i: f"Tip {i + 1}:"
    forks += sgl.gen("tip", max_tokens=64)
    forks.join()
    s += "".join(f"[{tip}]" for tip in s["tip"])


@sgl.function
def parallel_encoding(s, pages):  # type: ignore[no-untyped-def]
    s += "Read:\n"
    forks = s.fork(len(pages))
    forks += lambda i: f"page {i}: {pages[i]}\n"
    forks.join(mode="concate_and_append")
    s += "Answer:" + sgl.gen("answer")


@sgl.function
def samples(s, n):  # type: ignore[no-untyped-def]
    s += "Say:" + sgl.gen("x", n=n)


@sgl.function
def loop(s):  # type: ignore[no-untyped-def]
    for i in range(3):
        s += f"{i}:" + sgl.gen("item") + sgl.gen() + "\n"


@sgl.function
def expand(s, tip):  # type: ignore[no-untyped-def]
    s += "Expand " + tip + ":" + sgl.gen("detail")


@sgl.function
def nested(s):  # type: ignore[no-untyped-def]
    details = [expand(tip=tip) for tip in ("a", "b")]
    for state in details:
        s += state["detail"] + ";"
    s += sgl.gen("end")


@sgl.function
def scopes(s):  # type: ignore[no-untyped-def]
    with s.var_scope("block"):
        s += "one" + sgl.gen("x")
    with s.copy() as t:
        t += "aside" + sgl.gen("y")
    s.set_var("z", 1)


@sgl.function
def score(s):  # type: ignore[no-untyped-def]
    s += "Good? " + sgl.select("verdict", choices=["yes", "no"], choices_method=sgl.greedy_token_selection)
    return s["verdict"] == "yes"


def echo(prompt: str, name: str) -> str:
    return f"<{name}>"


CASES = [
    Case(
        multi_turn,
        {"question_1": "Q1", "question_2": "Q2"},
        echo,
        turn("system", "You are a helpful assistant.")
        + turn("user", "Q1")
        + turn("assistant", "<answer_1>")
        + turn("user", "Q2")
        + turn("assistant", "<answer_2>"),
        {"answer_1": "<answer_1>", "answer_2": "<answer_2>"},
    ),
    Case(few_shot, {"question": "2?"}, " two\nQ: 3?", "Q: 1?\nA: one\n\nQ: 2?\nA: two", {"answer": " two"}),
    Case(
        tool_use,
        {"question": "6*7"},
        {"tool": "calculator", "expression": " 42"},
        "To answer 6*7, I need a calculator. The result is 42",
        {"tool": "calculator", "expression": " 42"},
    ),
    Case(
        judge,
        {"essay": "E"},
        lambda prompt, name: prompt.rsplit("\n", 1)[-1] + name[0] + "END",
        "Judge: E\nSummary:clarity:j depth:jSummary:clarity:j depth:jgEND",
        {"grade": "Summary:clarity:j depth:jgEND"},
        "Summary:clarity:j depth:jgEND",
    ),
    Case(
        tips,
        {},
        lambda prompt, name: prompt[-2],
        "Tips: 1. eat 2. sleep\n[1][2]",
        {"tip": ["1", "2"]},
    ),
    Case(
        parallel_encoding,
        {"pages": ["a", "b"]},
        echo,
        "Read:\npage 0: a\npage 1: b\nAnswer:<answer>",
        {"answer": "<answer>"},
    ),
    Case(samples, {"n": 3}, ["a", "b", "c"], "Say:a", {"x": ["a", "b", "c"]}),
    Case(loop, {}, list("abcdef"), "0:ab\n1:cd\n2:ef\n", {"item": "e"}),
    Case(nested, {}, lambda prompt, name: prompt[:8] + name[0], "Expand ad;Expand bd;Expand ae", {"end": "Expand ae"}),
    Case(scopes, {}, echo, "one<x>", {"block": "one<x>", "x": "<x>", "y": ["<y>"], "z": 1}),
    Case(score, {}, "yes", "Good? yes", {"verdict": "yes"}, True),
]


def by_run(case: Case) -> sgl.State:
    return case.program.run(**case.arguments, backend=sgl.Mock(case.script))  # type: ignore[no-any-return]


def by_call(case: Case) -> sgl.State:
    sgl.set_default_backend(sgl.Mock(case.script))
    return case.program(*case.arguments.values())  # type: ignore[no-any-return]


def by_bind(case: Case) -> sgl.State:
    return case.program.bind(**case.arguments).run(backend=sgl.Mock(case.script))  # type: ignore[no-any-return]


def by_batch(case: Case) -> sgl.State:
    return case.program.run_batch([case.arguments], backend=sgl.Mock(case.script))[0]  # type: ignore[no-any-return]


def by_stream(case: Case) -> sgl.State:
    state = case.program.run(**case.arguments, stream=True, backend=sgl.Mock(case.script))
    assert "".join(state.text_iter()) == case.text
    return state  # type: ignore[no-any-return]


@pytest.mark.parametrize("run_case", [by_run, by_call, by_bind, by_batch, by_stream])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program.name)
def test_every_way_to_run_gives_the_same_result(case: Case, run_case: Callable[[Case], sgl.State]) -> None:
    state = run_case(case)
    assert state.text() == str(state) == case.text
    for name, value in case.variables.items():
        assert state[name] == value
        assert name in state
    assert state.ret_value == case.ret_value
    assert state.error() is None


@pytest.mark.parametrize(("default", "expected"), [("", ""), ("Be good.", "<system>Be good.</system>")])
def test_prompt_of_a_system_message_without_content_has_the_default(default: str, expected: str) -> None:
    roles = {name: (f"<{name}>", f"</{name}>") for name in ("system", "user", "assistant")}
    turns = TurnFormat("m", wire.ChatMarkers(roles=roles, default_system=default))
    system, asked = {"role": "system", "content": None}, {"role": "user", "content": "Hi"}
    opened = {"role": "assistant", "content": None}
    assert turns.get_prompt([system, asked, opened]) == f"{expected}<user>Hi</user><assistant>"
    assert turns.get_prompt([asked, opened]) == f"{expected}<user>Hi</user><assistant>"
    assert turns.get_prompt([system]) == expected
