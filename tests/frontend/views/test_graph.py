"""Program graphs: nodes and their order, messages and why they were sent, and where the body waited."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import banyan as bn
from banyan.runtime.protocol import wire
from banyan.templates.compiled import compile
from banyan.views.graph import Graph, GraphNode, SharedPrefix


@bn.function
def tree(s: bn.State, topic: str, n: int = 2) -> None:
    s += bn.system("You are brief.") + bn.user(f"About {topic}")
    s += bn.assistant(bn.gen("plan"))
    if "long" in s["plan"]:
        s += bn.user("Shorter!")
    branches = s.fork(n)
    branches += lambda i: bn.user(f'As "{i}" <b>') + bn.assistant(bn.gen("poem"))
    branches.join("concate_and_append")
    s += bn.user("Best? " + branches[0].ref("poem")) + bn.assistant(bn.select("best", ["0", "1"]))


def source_line(text: str) -> str:
    """Return the line of this file that contains `text` in the form used by errors and graphs."""
    lines = Path(__file__).read_text().split("\n")
    return f"test_graph.py:{next(k for k, line in enumerate(lines, 1) if text in line)}"


@pytest.fixture
def tree_graph() -> Graph:
    return tree.graph("sea", backend=bn.Mock(lambda prompt, name: "0" if name == "best" else f"<{name}>"))


def test_nodes_match_the_program(tree_graph: Graph) -> None:
    kinds = [(node.kind, node.label, node.state, node.message, node.after, node.values) for node in tree_graph.nodes]
    assert kinds == [
        ("text", "[system] You are brief. [user] About sea [assistant]"[:38] + " ... tant]", 0, 0, (), ()),
        ("gen", "plan", 0, 0, (0,), ()),
        ("text", '[user] As "0" <b> [assistant]', 1, 1, (1,), ()),
        ("gen", "poem", 1, 1, (2,), ()),
        ("text", '[user] As "1" <b> [assistant]', 2, 1, (1,), ()),
        ("gen", "poem", 2, 1, (4,), ()),
        ("join", "join", 0, 1, (1, 3, 5), ()),
        ("text", "[user] Best? {...} [assistant]", 0, 1, (6,), (3,)),
        ("select", "best", 0, 1, (7,), ()),
    ]
    assert tree_graph.nodes[1].line == source_line('bn.gen("plan")')


def test_explain_lists_messages_with_their_reason(tree_graph: Graph) -> None:
    read_line = source_line('in s["plan"]')
    assert [message.why for message in tree_graph.messages] == [f"{read_line} looked at 'plan'", "the body ended"]
    assert [(span.name, span.line) for span in tree_graph.waits] == [("plan", read_line)]
    assert tree_graph.shared == [SharedPrefix(0, (1, 2), len("You are brief.About sea"), ("plan",))]
    assert [type(op) for op in tree_graph.messages[0].ops] == [wire.Append, wire.Gen, wire.Append]
    assert tree_graph.messages[0].n_bytes == len(wire.encode(wire.Submit(0, 0, tree_graph.messages[0].ops)))
    lines = tree_graph.explain().split("\n")
    assert lines[0] == "tree: 3 gens, 1 select in 3 states, 2 messages"
    assert re.fullmatch(rf"message 1: 1 text, 1 gen; \d+ bytes, sent when {read_line} looked at 'plan'", lines[1])
    assert re.fullmatch(r"message 2: 3 texts, 2 gens, 1 select, 1 join; \d+ bytes, sent when the body ended", lines[2])
    assert lines[3] == (
        "shared: 2 branches of the first state begin with its 23 characters of text and 'plan', sent once and computed "
        "once"
    )
    assert re.fullmatch(rf"waited: {read_line} reads 'plan', 0\.\d+ s; what follows may depend on it", lines[4])


def test_straight_line_never_waits() -> None:
    @bn.function
    def straight(s: bn.State) -> None:
        for i in range(5):
            s += f"{i}" + bn.gen(f"a{i}")
        with s.var_scope("end"):
            s += "end" + s.ref("a0")

    graph = straight.graph()
    assert repr(graph) == "<Graph of program straight: 5 gens in 1 state, 1 message>"
    assert graph.explain().endswith("waited: nowhere; the body ran to its end before any value was there")
    assert graph.nodes[-1] == GraphNode("read", "text of a scope", 0, 0, "", (10,), ())


def test_graph_without_a_model_ends_at_the_first_read() -> None:
    graph = tree.graph("sea")
    assert [node.label for node in graph.nodes if node.kind == "gen"] == ["plan"]
    assert graph.ended is not None
    assert graph.ended.line == source_line('in s["plan"]')
    assert f"ended: {graph.ended.line} reads a value" in graph.explain()
    assert graph.waits == []


def test_called_programs_are_counted() -> None:
    @bn.function
    def caller(s: bn.State) -> None:
        tree("sea", n=1)
        s += "x" + bn.gen("a")

    assert "ended: " in caller.graph().explain(), "the called program reads a value"

    @bn.function
    def child(s: bn.State) -> None:
        s += "y" + bn.gen("b")

    @bn.function
    def parent(s: bn.State) -> None:
        child()
        child()
        s += "x" + bn.gen("a")

    assert "also: 2 other programs that it calls" in parent.graph().explain()


def test_compiled_program_shows_the_template_contents() -> None:
    @bn.function
    def straight(s: bn.State, question: str) -> None:
        s += bn.user(question) + bn.assistant(bn.gen("a"))

    compiled = compile(straight)
    assert compiled.graph("why?").nodes == straight.graph("why?").nodes
    labels = [node.label for node in compiled.graph("why?", backend=bn.Mock("so")).nodes]
    assert labels == ["[user] why? [assistant]", "a"]


def test_any_finished_state_has_a_graph() -> None:
    @bn.function
    async def later(s: bn.AsyncState) -> None:
        s += "x" + bn.gen("a")
        assert await s.value("a") == "hi"
        s += "y" + bn.gen("b")

    graph = Graph(asyncio.run(later.run_async(backend=bn.Mock("hi"))))
    line = source_line('await s.value("a")')
    assert [message.why for message in graph.messages] == [f"{line} looked at 'a'", "the body ended"]
    assert [span.line for span in graph.waits] == [line]
    with pytest.raises(bn.BadProgram, match="run_async"):
        later.graph(backend=bn.Mock("hi"))
    unrun_graph = later.graph()
    assert [node.label for node in unrun_graph.nodes] == ["x", "a"]
    assert f"ended: {line} reads a value" in unrun_graph.explain()


def test_graph_of_async_body_without_a_model_ends_at_its_await() -> None:
    @bn.function
    async def sleeps(s: bn.AsyncState, what: str) -> None:
        s += what + bn.gen("a")
        if what == "long":
            await asyncio.sleep(0)
        s += bn.gen("b")

    assert sleeps.graph("short").explain().startswith("sleeps: 2 gens in 1 state, 1 message")
    assert sleeps.trace(what="short").last_node is not None
    ended_graph = sleeps.graph("long")
    assert "sleeps: 1 gen in 1 state" in ended_graph.explain()
    assert f"ended: {source_line('await asyncio.sleep(0)')} awaits something" in ended_graph.explain()


def test_reads_after_the_run_are_not_in_the_graph() -> None:
    @bn.function
    def straight(s: bn.State) -> None:
        s += "x" + bn.gen("a")

    state = straight.run(backend=bn.Mock("hi"))
    assert state.text() == "xhi"
    assert [node.kind for node in Graph(state).nodes] == ["text", "gen"]


def test_mermaid_syntax_in_text_is_escaped() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "`#quot; # &" + bn.gen("a")

    assert '["#96;#35;quot; #35; #amp;"]' in program.graph().mermaid()


def test_mermaid_draws_nodes_edges_and_messages(tree_graph: Graph) -> None:
    mermaid = tree_graph.mermaid().split("\n")
    assert mermaid[0] == "flowchart TD"
    assert '    n2["[user] As #quot;0#quot; #lt;b#gt; [assistant]"]' in mermaid, "user text is escaped"
    assert f'    n1(["plan<br/>{tree_graph.nodes[1].line}"])' in mermaid
    assert "  n1 --> n4" in mermaid, "both branches follow the gen before the fork"
    assert "  n3 -.-> n7" in mermaid, "the spliced value"
    assert "  class n1 waited" in mermaid
    assert [line.strip() for line in mermaid if "subgraph" in line] == [
        'subgraph m0 ["message 1"]',
        'subgraph m1 ["message 2"]',
    ]
    opened = sum(line.strip().startswith("subgraph") for line in mermaid)
    assert opened == sum(line.strip() == "end" for line in mermaid)


def test_notebook_draws_the_graph_by_itself(tree_graph: Graph) -> None:
    page = ElementTree.fromstring(tree_graph._repr_html_())
    drawing, text = page
    assert text.text == tree_graph.explain()
    boxes = [(one.findtext("text"), one.find("rect")) for one in drawing.iter("g")]
    assert [label for label, _ in boxes] == [
        node.label if len(node.label) <= 28 else f"{node.label[:26]} …" for node in tree_graph.nodes
    ]
    corners = [(box.get("x"), box.get("y")) for _, box in boxes if box is not None]
    assert len(set(corners)) == len(boxes), "no box hides another"
    dashed = [line.get("stroke-dasharray") for line in drawing.iter("line")]
    assert (len(dashed), sum(one is not None for one in dashed)) == (11, 1), "one spliced value"
    assert "<svg" in bn.function(lambda s: None).graph()._repr_html_(), "no nodes"


def test_adopted_branch_is_followed_by_later_nodes() -> None:
    @bn.function
    def adopts(s: bn.State) -> None:
        s += "x"
        branches = s.fork(2)
        branches += bn.gen("a")
        s.adopt(branches[1])
        s += bn.gen("b")

    nodes = adopts.graph().nodes
    assert [(node.label, node.after) for node in nodes] == [("x", ()), ("a", (0,)), ("a", (0,)), ("b", (2,))]


def test_graph_takes_the_options_of_run() -> None:
    with pytest.raises(TypeError, match="no parameter 'topc'"):
        tree.graph(topc="sea")
    with pytest.raises(bn.Unsupported, match="stream"):
        tree.graph("sea", stream=True)
    (message,) = tree.graph("sea", temperature=0.0).messages
    assert isinstance(op := message.ops[1], wire.Gen)
    assert op.sampling.temperature == 0.0
