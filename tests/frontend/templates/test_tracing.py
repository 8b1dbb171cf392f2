"""`trace` and `cache`: a program without a model, and the common prefix of its runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.protocol import wire

EFFECTS: list[str] = []


@bn.function
def few_shot(s: bn.State, question: str, examples: str = "1+1=2\n") -> str:
    EFFECTS.append("ran")
    s += bn.system("Be brief.")
    s += bn.user(f"Examples: {examples}Now: {question}?")
    s += bn.assistant("A:" + bn.gen("answer") + bn.select("mood", ["good", "bad"]))
    forks = s.fork(2)
    forks += bn.gen("tip")
    forks.join("concate_and_append")
    return "done"


def test_trace_lists_what_was_appended() -> None:
    trace = few_shot.trace()
    assert [repr(node) for node in trace.flatten_nodes()] == [
        "RoleBegin('system')",
        "Constant('Be brief.')",
        "RoleEnd()",
        "RoleBegin('user')",
        "Constant('Examples: 1+1=2\\nNow: ')",
        "Argument('question')",
        "Constant('?')",
        "RoleEnd()",
        "RoleBegin('assistant')",
        "Constant('A:')",
        "Gen('answer')",
        "Select('mood', choices=['good', 'bad'])",
        "RoleEnd()",
        "Fork(2)",
        "GetForkItem(0)",
        "GetForkItem(1)",
        "Gen('tip')",
        "Gen('tip')",
        "Join(2)",
    ]
    assert list(trace.variables) == ["answer", "mood"]
    assert (trace.ret_value, trace.ended) == ("done", None)
    assert trace.last_node is not None
    lines = trace.last_node.print_graph_dfs().splitlines()
    assert lines[0] == "%0 = RoleBegin('system')"
    assert lines[5] == "%5 = %4 + Argument('question')"
    assert lines[-1] == "%18 = %13 + Join(2)"


def test_given_and_bound_arguments_are_constants_in_the_trace() -> None:
    program = few_shot.bind(examples="2+2=4\n")
    nodes = list(map(repr, program.trace(question="3+3").flatten_nodes()))
    assert "Constant('Examples: 2+2=4\\nNow: 3+3?')" in nodes
    with pytest.raises(TypeError, match="no parameter 'questoin'; did you mean 'question'"):
        few_shot.trace(questoin="x")


def test_keywords_of_a_body_that_takes_any_are_traced(mock: bn.Mock) -> None:
    @bn.function
    def takes_any(s: bn.State, q: Any, /, **words: str) -> None:
        s += f"{words['first']} {words['second']}" + q + bn.gen("x")

    program = takes_any.bind(first="one")
    assert repr(program.trace(second="two").flatten_nodes()[0]) == "Constant('one two')"
    program.bind(second="two").cache()
    assert mock.submits[0][0] == wire.Append(0, ("one two",))


def test_trace_ends_where_the_body_reads_a_value() -> None:
    @bn.function
    def reads_value(s: bn.State, q: Any) -> None:
        s += "a" + bn.gen("x")
        if s["x"] == "yes" or q:
            s += "b"

    trace = reads_value.trace()
    assert list(map(repr, trace.flatten_nodes())) == ["Constant('a')", "Gen('x')"]
    assert trace.ended is not None
    assert "test_tracing.py" in trace.ended.line
    assert bn.function(lambda s: None).trace().last_node is None


@bn.function
def catches_its_read(s: bn.State) -> None:
    s += "a" + bn.gen("x")
    try:
        n = len(s["x"])
    except:  # noqa: E722 - what is tested
        n = 0
    s += f"n={n} " + bn.gen("y")


@bn.function
def catches_its_argument(s: bn.State, q: Any) -> None:
    s += "a"
    try:
        n = len(q)
    except:  # noqa: E722 - what is tested
        n = 0
    s += f"n={n} " + q + bn.gen("x")
    try:
        s["x"]
    except:  # noqa: E722 - what is tested
        s += "b"


@pytest.mark.parametrize(
    ("program", "what", "nodes"),
    [(catches_its_read, 0, ["Constant('a')", "Gen('x')"]), (catches_its_argument, "argument 'q'", ["Constant('a')"])],
    ids=lambda one: getattr(one, "name", None),
)
def test_trace_ends_where_the_body_catches_what_ends_it(
    mock: bn.Mock, program: bn.Program, what: Any, nodes: list[str]
) -> None:
    trace = program.trace()
    assert list(map(repr, trace.flatten_nodes())) == nodes
    assert trace.ended is not None
    assert trace.ended.what == what
    program.cache()
    assert mock.submits[0][0] == wire.Append(0, ("a",))


def test_graph_ends_where_the_body_catches_what_ends_it() -> None:
    graph = catches_its_read.graph()
    assert [node.kind for node in graph.nodes] == ["text", "gen"]
    assert re.search(r"ended: test_tracing\.py:\d+ reads a value", graph.explain())


def test_cache_computes_the_common_prefix(mock: bn.Mock) -> None:
    EFFECTS.clear()
    few_shot.cache()
    (submit,) = mock.submits
    append, gen = submit
    assert append == wire.Append(
        0, (wire.BeginTurn("system"), "Be brief.", wire.EndTurn(), wire.BeginTurn("user"), "Examples: 1+1=2\nNow: ")
    )
    assert isinstance(gen, wire.Gen)
    assert gen.sampling.max_tokens == 0
    assert EFFECTS == ["ran"]


@pytest.mark.parametrize(
    ("body", "expected_n"),
    [
        (lambda s, q: s.__iadd__(q + "text"), 0),
        (lambda s, q: s.__iadd__(bn.gen("x") + "text"), 0),
        (lambda s, q: s.__iadd__("one").__iadd__("two" + bn.raw("three") + bn.gen("x")), 1),
        (lambda s, q: s.__iadd__("one" if q else "two"), 0),
        (lambda s, q: s.__iadd__("before").__iadd__(q["key"]), 1),
    ],
)
def test_cache_sends_only_a_common_prefix(mock: bn.Mock, body: Any, expected_n: int) -> None:
    bn.function(body).cache()
    assert len(mock.submits) == expected_n


def test_cache_raises_backend_errors() -> None:
    with pytest.raises(bn.ProgramError, match="no luck"):
        few_shot.cache(bn.Mock(OSError("no luck")))
