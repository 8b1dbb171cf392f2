"""`banyan tree` on a real server, with `banyan top`, and on trees that are hard to draw."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

import banyan as bn
from banyan.cli import main as cli
from banyan.cli import tree
from banyan.views import tree_page


def node(parent: int, text: str, n_tokens: int = 16, **overrides: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "parent": parent, "text": text, "n_tokens": n_tokens, "n_pages": -(-n_tokens // 16), "n_host": 0, "n_locks": 0,
        "n_before": -1, "is_pinned": False, "is_expected": False, "n_folded": 0, "n_folded_tokens": 0, "namespace": "",
    }  # fmt: skip
    return defaults | overrides


def snapshot(*nodes: dict[str, Any], **overrides: Any) -> dict[str, Any]:
    defaults = {"page": 16, "n_pages": 100, "n_free": 50, "n_leased": 4, "n_cached": 46, "n_held": 0, "n_host_pages": 0,
             "n_host_cached": 0, "n_nodes": len(nodes) - 1, "n_roots": 1, "nodes": list(nodes)}  # fmt: skip
    return defaults | overrides


TREE = snapshot(
    node(-1, "", 0),
    node(0, "You are kind.", 160, n_locks=3),
    node(1, " What is it?", 64, n_before=0),
    node(2, " And then?", 32, n_host=2, n_before=7),
    node(1, " Who is it?", 48, is_pinned=True, n_folded=12, n_folded_tokens=3456),
    node(0, "Other", 16, n_pages=0, n_host=1),
    n_host_pages=10,
    n_host_cached=3,
)


def render_lines(tree_data: dict[str, Any], width: int = 120) -> list[str]:
    stream = io.StringIO()
    tree.draw(tree_data, tree_page.nodes(tree_data), Console(file=stream, width=width, highlight=False))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def render_page(tree_data: dict[str, Any]) -> str:
    return tree_page.page(tree_data, tree_page.nodes(tree_data)).html


def svg(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])


def test_nodes_are_drawn_below_their_parents_with_their_state() -> None:
    lines = render_lines(TREE)
    assert lines[0] == (
        "5 nodes, 46 pages in the tree, 4 pages being written, 50 pages free, 3 of 10 pages in host memory; "
        "a page is 16 tokens"
    )
    body = [re.sub(r" {2,}", " | ", line.replace("│  ", "│__").replace("   ├", "___├")) for line in lines[3:]]
    assert body == [
        "tree",
        "├─ You are kind. | 160 | 3 | in use | device",
        "│__├─ | What is it? | 64 | next | device",
        "│__│__ And then? | 32 | 7 pages | both",
        "│__└─ | Who is it? | 48 | pinned | device",
        "│__ | … 12 more | 3,456",
        "└─ Other | 16 | host",
    ]


def test_narrow_terminal_truncates_text_but_not_numbers() -> None:
    for width in (80, 90):
        lines = render_lines(snapshot(node(-1, "", 0), node(0, "long " * 50, 123456, n_before=1234567)), width)
        assert "123,456" in lines[-1]
        assert "1,234,567 pages" in lines[-1] or "1,234,567 p…" in lines[-1]
        assert max(map(len, lines[1:])) <= width


def test_long_path_is_not_indented() -> None:
    deep = [node(i - 1, f"text {i}") for i in range(300)]
    lines = render_lines(snapshot(*deep))
    assert len(lines) == 303
    assert lines[-1].startswith("   text 299")
    assert len(svg(render_page(snapshot(*deep)))) == 299


def test_text_of_deep_branches_is_shown() -> None:
    forks, at = [node(-1, "", 0)], 0
    for i in range(60):
        forks += [node(at, f"text {i}"), node(at, f"side {i}")]
        at = len(forks) - 2
    lines = render_lines(snapshot(*forks), 80)
    assert all(any(f"─ {kind} {i} " in line for line in lines) for kind in ("text", "side") for i in range(60))
    assert max(map(len, lines[1:])) <= 80


def test_text_is_escaped_in_terminal_and_page() -> None:
    injection = "\x1b[2J[red]<script>alert(1)</script>\n\t\u202e"
    line = render_lines(snapshot(node(-1, "", 0), node(0, injection)))[-1]
    assert "·[2J[red]<script>alert(1)</script>⏎··" in line
    html = render_page(snapshot(node(-1, "", 0), node(0, injection, 4000)))
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_empty_tree_is_reported() -> None:
    empty_tree = snapshot(n_nodes=0, n_roots=0)
    assert render_lines(empty_tree)[0].startswith("0 nodes")
    assert "Nothing is stored yet" in render_page(empty_tree)


def test_hidden_namespaces_are_counted() -> None:
    tree_data = snapshot(node(-1, "", 0, namespace="00ff"), node(0, "x"), n_roots=4)
    assert "namespace 00ff" in render_lines(tree_data)[3]
    assert render_lines(tree_data)[-1] == "… 3 more namespaces"
    assert "3 more namespaces" in render_page(tree_data)


def test_boxes_do_not_overlap() -> None:
    def boxes(shape: ElementTree.Element) -> list[tuple[float, float, float, float]]:
        found = [rect.attrib for rect in shape.iter("rect")]
        return [(float(r["x"]), float(r["y"]), float(r["width"]), float(r["height"])) for r in found]

    shape = svg(render_page(TREE))
    rects = boxes(shape)
    assert len(rects) == 5
    width, height = map(float, shape.attrib["viewBox"].split()[2:])
    for i, (x, y, w, h) in enumerate(rects):
        assert 0 <= x <= x + w <= width + 1
        assert 0 <= y <= y + h <= height
        for x2, y2, w2, h2 in rects[:i]:
            assert x >= x2 + w2 or x2 >= x + w or y >= y2 + h2 or y2 >= y + h
    assert {text for text in shape.itertext() if text.startswith("+")} == {"+ 12"}


def test_bad_arguments_and_unwritable_page_are_one_line_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tree", "--socket", str(tmp_path / "nobody")]) == 1
    with pytest.raises(SystemExit, match="2"):
        cli.main(["tree", "--socket", "s", "--most", "0"])
    with pytest.raises(SystemExit, match="2"):
        cli.main(["tree"])
    runtime = SimpleNamespace(client=SimpleNamespace(ask=lambda what, limit: TREE))
    with pytest.raises(bn.ConfigError, match="cannot be written"):
        tree.show(runtime, html=tmp_path / "no" / "where.html")
    assert all(line.startswith("banyan: ") for line in capsys.readouterr().err.splitlines())


def test_tree_and_top_show_a_running_server(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with bn.Runtime(model=str(tiny_model("llama")), threads=1, page=8) as runtime:

        @bn.function
        def ask(s: Any, question: str) -> None:
            s += "the same words stand before each of these questions: " + question
            s += bn.gen("answer", max_tokens=4)

        for question in ("one", "two"):
            assert ask.run(question, backend=runtime).text()
        socket = str(runtime.client.path)
        assert cli.main(["tree", "--socket", socket]) == 0
        out = capsys.readouterr().out
        assert cli.main(["tree", "--socket", socket, "--html", str(tmp_path / "tree.html")]) == 0
        assert cli.main(["tree", "--socket", socket, "--most", "2"]) == 0
        assert cli.main(["top", "--socket", socket, "--once", "--seconds", "0.1"]) == 0
    assert "the same words" in out
    assert out.count("├─") == 1, "two continuations of one shared prefix"
    shown = capsys.readouterr().out
    assert "… 2 more" in shown
    assert "engines started" in shown
    assert "pages: " in shown
    assert "the same words" in (tmp_path / "tree.html").read_text()
