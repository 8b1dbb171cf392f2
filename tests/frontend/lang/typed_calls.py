"""Read by type checkers, never run. They must report every line that ends in `# wrong`, and no other."""

from __future__ import annotations

import re
from typing import Any, Literal, assert_type

import banyan as bn

mock = bn.Mock("x")


@bn.function
def one(s: bn.State, topic: str) -> int:
    s += topic + bn.gen("a")
    return 1


@bn.function
def two(s: bn.State, topic: str, n: int = 2) -> None:
    s += one.inline(s, topic)


@bn.function
async def later(s: bn.AsyncState, topic: str) -> float:
    s += await one_later.inline(s, topic)
    assert_type(await s.value("a", int | None), Any)
    return await s.value("a", float)


@bn.function(num_api_spec_tokens=8)
async def one_later(s: bn.AsyncState, topic: str) -> None:
    s += topic


class Teacher:
    @bn.function
    def ask(self, s: bn.State, topic: str) -> str:
        return str(s["a"]) + topic

    @bn.function
    async def wait(self, s: bn.AsyncState, topic: str) -> str:
        return await s.value("a", str) + topic


@bn.function
def untyped(s, topic, n=2):  # type: ignore[no-untyped-def]
    s += topic


def right(s: bn.State) -> None:
    answers = {"a": "x"}
    bn.Mock(answers)
    bn.Mock({"a": "x", "b": "y"})
    bn.Mock({"a": ["x", "y"], "b": "z"})
    bn.Mock({re.compile("x"): "x"})
    bn.Mock({"a": lambda prompt, name: prompt, re.compile("x"): ValueError("no"), "b": [{"f": {"x": 1}}, "y"]})
    bn.Mock({"a": {"yes": -0.5, "no": -1.5}})
    bn.Mock(["x", {"f": {"x": 1}}, ValueError("no")])
    bn.Mock(lambda prompt, name: prompt)
    assert_type(s.value("a", int), int)
    assert_type(s.value("a", list[int]), list[int])
    assert_type(s.value("a"), Any)
    maybe: int | None = s.value("a", int | None)
    word: Literal["x", "y"] = s.value("a", Literal["x", "y"])
    print(maybe, word)
    assert_type(one.run("x"), bn.State)
    assert_type(one("x", temperature=0), bn.State)
    one.run(topic="x", max_new_tokens=8, backend=mock)
    two.run("x", n=3, temperature=0.5, stop=["."])
    two.run("x", 3, opts=bn.Options(seed=1))
    two.bind(opts=bn.Options(backend=mock)).run("x", n=3)
    two.bind(n=3).run("x")
    untyped.run(1, n="x", temperature=0)
    Teacher().ask.run("x")
    Teacher().ask("x", temperature=0)
    assert_type(one.run_batch([("x",)], num_threads=4, temperature=0), list[bn.State])
    for state in one.run_batch([{"topic": "x"}], generator_style=True):
        assert_type(state, bn.State)
    assert_type(one.inline(s, "x").ret_value, int)
    one.graph("x").mermaid()
    compiled = bn.compile(two)
    compiled.run("x", n=3)
    assert_type(s.value("n", int), int)
    assert_type(s.value("n", list[str]), list[str])


async def right_later(s: bn.AsyncState) -> None:
    assert_type(await later("x"), bn.AsyncState)
    assert_type(await later.run_async("x", temperature=0), bn.AsyncState)
    await Teacher().wait("x")
    assert_type((await later.inline(s, "x")).ret_value, float)
    assert_type(await s.value("n", int), int)


def wrong(s: bn.State) -> None:
    one.run()  # wrong
    one.run(3)  # wrong
    one.run("x", "y")  # wrong
    one.run("x", topc="x")  # wrong
    one(topc="x")  # wrong
    one.run("x", temprature=0)  # wrong
    one.run("x", temperature="hot")  # wrong
    two.run("x", n="three")  # wrong
    two.bind(opts=bn.Options(backend=mock)).run("x", m=3)  # wrong
    two.bind(opts=bn.Options(temprature=0))  # wrong
    Teacher().ask.run(3)  # wrong
    Teacher().ask("x", temprature=0)  # wrong
    one.run_batch([("x",)], num_thread=4)  # wrong
    one.run_batch([("x",)], temperature="hot")  # wrong
    one.inline(s)  # wrong
    one.inline(s, 3)  # wrong
    one.inline(s, "x", temperature=0)  # wrong
    one.graph(3)  # wrong
    bn.compile(two).run(3)  # wrong
    s.value("n", int).upper()  # wrong


async def wrong_later(s: bn.AsyncState) -> None:
    await later(3)  # wrong
    await later.run_async("x", temprature=0)  # wrong
    await Teacher().wait(3)  # wrong
    await later.run_batch_async([("x",)], temprature=0)  # wrong
    await later.inline(s, 3)  # wrong
    (await s.value("n", int)).upper()  # wrong
