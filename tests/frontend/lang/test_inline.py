"""Inlined programs continue the caller's state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import banyan as bn


@bn.function
def ask(s: bn.State, question: str, name: str = "answer") -> int:
    s += bn.user(question) + bn.assistant(bn.gen(name))
    return len(question)


@bn.function
async def ask_async(s: bn.AsyncState, question: str) -> str:
    s += bn.user(question) + bn.assistant(bn.gen("answer"))
    return await s.value("answer")


def test_inlined_program_appends_to_the_callers_state(mock: bn.Mock) -> None:
    @bn.function
    def outer(s: bn.State) -> None:
        s += bn.system("Be brief.")
        s += ask.inline(s, "one?")
        s += ask.inline(s, "two?", name="second")
        assert ask.inline(s, "three?").ret_value == 6
        assert s["answer"] == "<answer>"

    state = outer.run()
    assert state["second"] == "<second>"
    assert [turn["content"] for turn in state.messages() if turn["role"] == "user"] == ["one?", "two?", "three?"]
    assert state.text().count("<|im_start|>assistant") == 3


def test_inlined_programs_share_one_message(mock: bn.Mock) -> None:
    @bn.function
    def outer(s: bn.State) -> None:
        ask.inline(s, "one?")
        ask.bind(question="two?").inline(s)

    outer.run()
    assert len(mock.submits) == 1


def test_inline_works_in_turns_and_branches(mock: bn.Mock) -> None:
    @bn.function
    def part(s: bn.State) -> None:
        s += "because " + bn.gen("why")

    @bn.function
    def outer(s: bn.State) -> None:
        with s.assistant():
            s += "Yes, "
            s += part.inline(s) + "."
        forks = s.fork(2)
        for fork in forks:
            ask.inline(fork, "?")
        forks.join()

    state = outer.run()
    assert state.messages()[0]["content"] == "Yes, because <why>."
    assert state["answer"] == ["<answer>"] * 2


def test_calls_that_append_at_once_are_refused_behind_other_text(mock: bn.Mock) -> None:
    """Python makes the call first, so its text would come before the text to its left."""

    @bn.function
    def part(s: bn.State) -> None:
        s += "part"

    expressions: list[Callable[[bn.State], Any]] = [
        lambda s: "Q: " + part.inline(s),
        lambda s: bn.user("Q: ") + part.inline(s) + bn.assistant("A"),
        lambda s: bn.user(part.inline(s)),
        lambda s: s.user(s.user("x")),
        lambda s: "Intro" + s.user("hi"),
        lambda s: ["Intro", s.user("hi")],
        lambda s: f"Yes, {part.inline(s)}.",
        lambda s: bn.user("one") + s.assistant("two"),
        lambda s: "Intro" + (s.user("one") + s.assistant("two")),
        lambda s: bn.user([part.inline(s)]),
        lambda s: bn.user(s.user("one") + "two"),
    ]
    for expression in expressions:

        @bn.function
        def outer(s: bn.State, expression: Callable[[bn.State], Any] = expression) -> None:
            with pytest.raises(bn.BadProgram, match="its own statement"):
                s += expression(s)

        outer.run().sync()

    @bn.function
    def in_order(s: bn.State) -> None:
        s += s.user("one") + s.assistant("two")
        s += "" + s.user("three") + bn.assistant("four")
        s += [part.inline(s), "end"]
        s += f"{part.inline(s)}."

    assert [m["content"] for m in in_order.run().messages()][:4] == ["one", "two", "three", "four"]


def test_methods_and_async_programs_can_be_inlined() -> None:
    class Agent:
        @bn.function
        def greet(self, s: bn.State, name: str) -> str:
            s += bn.user(f"I am {name}")
            return name

    @bn.function
    async def outer(s: bn.AsyncState) -> tuple[Any, Any]:
        first = Agent().greet.inline(s, "Ada").ret_value
        second = await ask_async.inline(s, "Who?")
        s += second
        return first, second.ret_value

    state = asyncio.run(outer.run_async(backend=bn.Mock("You are Ada.")))
    assert state.ret_value == ("Ada", "You are Ada.")


def test_errors_of_an_inlined_body_are_raised_at_the_call(mock: bn.Mock) -> None:
    @bn.function
    def bad(s: bn.State) -> None:
        s += bn.user("x")
        raise ValueError("in the part")

    @bn.function
    def outer(s: bn.State) -> None:
        with pytest.raises(ValueError, match="in the part"):
            bad.inline(s)
        s += bn.assistant(bn.gen("a"))

    assert outer.run().messages()[0] == {"role": "user", "content": "x"}


def test_invalid_inline_calls_are_refused(mock: bn.Mock) -> None:
    @bn.function
    def outer(s: bn.State) -> None:
        with pytest.raises(bn.BadProgram, match="takes the state to continue, not a str"):
            ask.inline("question")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="temperature"):
            ask.inline(s, "q", temperature=0)
        with pytest.raises(TypeError, match="question"):
            ask.inline(s)
        with pytest.raises(bn.BadProgram, match="only another `async def` program can await and inline it"):
            asyncio.run(ask_async.inline(s, "q"))
        forks = s.fork(1)
        forks.drop()
        with pytest.raises(bn.BadProgram, match="was dropped"):
            ask.inline(forks[0], "q")

    assert outer.run().text() == ""


def test_passing_a_state_to_a_call_suggests_inline(mock: bn.Mock) -> None:
    @bn.function
    def outer(s: bn.State, *rest: str) -> None:
        ask(s, "one?", *rest)

    with pytest.raises(TypeError, match=r"write ask\.inline\(s, \.\.\.\)"):
        outer.run("answer")
    with pytest.raises(bn.BadProgram, match=r"State cannot be appended.*\.inline\(s, \.\.\.\)"):
        outer.run()
