"""HTML pages of a run: each prompt character with its origin, and no external content or injected script."""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from banyan.backends.job import Job
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire
from banyan.views.history import History
from banyan.views.prompt_spans import PromptSpan, prompt_spans

INJECTION = "</span><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'"


@bn.function
def trip(s: bn.State, city: str) -> None:
    s += bn.user(f"A day in {city}?") + bn.assistant(bn.gen("hello"))
    forks = s.fork(2)
    forks += [bn.user(f"And {x}?") + bn.assistant(bn.gen("tip")) for x in ("food", "parks")]
    forks.join("concate_and_append")
    s += bn.user(["Again: ", s.ref("hello")]) + bn.assistant(bn.select("warm", ["yes", "no"]))
    s["last"] = s.fork(1)
    s["last"] += bn.user("Bye")  # type: ignore[operator]


def texts(html: str) -> list[str]:
    """Return the text of each branch's <pre>, without the names of gens."""
    found = re.findall(r"<pre>(.*?)</pre>", html, re.DOTALL)
    return [unescape(re.sub(r"<[^>]*>", "", re.sub(r"<b>.*?</b>", "", pre))) for pre in found]


class Tags(HTMLParser):
    """All tags of a page with their attributes; asserts that they are well nested."""

    VOID = ("meta", "input", "br")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def script(prompt: str, name: str) -> str:
    return "yes" if name == "warm" else f"<{name}> {INJECTION}"


@pytest.mark.parametrize("city", ["Rome", INJECTION])
def test_page_shows_exactly_the_prompt_text(city: str) -> None:
    state = trip.run(city, backend=bn.Mock(script, latency=0.001))
    page = state.show()
    shown = texts(page.html)
    assert len(shown) == 4
    assert shown[0] == state.text()
    assert shown[3] == state["last"][0].text()
    assert "Again: <hello>" in shown[0]
    tags = Tags(page.html)
    assert [tag for tag, _ in tags.seen].count("script") == 1, "only the page's own script"
    assert not [tag for tag, _ in tags.seen if tag in ("img", "link", "iframe", "object", "base", "form")]
    for _, attributes in tags.seen:
        assert not {name for name in attributes if name in ("src", "href", "style") or name.startswith("on")} - {
            "style"
        }
    assert "http://" not in page.html.replace("http-equiv", "")
    assert "https://" not in page.html
    assert "default-src 'none'" in page.html


def test_page_has_all_sections_and_saves(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    page = trip.run("Rome", backend=bn.Mock(script, latency=0.001)).show(path)
    assert path.read_text() == page.html
    assert repr(page) == f"<Page 'trip on mock', {len(page.html)} characters; save it with .save(path)>"
    classes = {name for _, a in Tags(page.html).seen for name in (a.get("class") or "").split()}
    assert {"generated", "chosen", "marker", "shared", "constrained", "row", "edge", "join", "tile"} <= classes
    for heading in ("Branches", "Prompt", "Time", "Gens"):
        assert f"<h2>{heading}</h2>" in page.html
    assert "<td>hello</td>" in page.html
    frame = page._repr_html_()
    assert unescape(re.findall(r'srcdoc="(.*?)"', frame, re.DOTALL)[0]) == page.html
    assert "sandbox" in frame
    with pytest.raises(bn.ConfigError, match="cannot be written"):
        page.save(tmp_path / "no" / "folder")


def test_page_without_branches_has_no_tree() -> None:
    page = bn.function(lambda s: s.__iadd__("Q" + bn.gen("a"))).run(backend=bn.Mock("x")).show()
    assert "<h2>Branches</h2>" not in page.html
    assert texts(page.html) == ["Qx"]
    empty = bn.function(lambda s: None).run(backend=bn.Mock("x")).show()
    assert texts(empty.html) == [""]


def test_failures_are_shown_not_raised() -> None:
    @bn.function
    def fails(s: bn.State) -> None:
        s += "Q" + bn.gen("a") + bn.gen("b")

    page = fails.run(backend=bn.Mock({"a": ValueError("<no>")})).show()
    assert "a failed: the script of the Mock raised ValueError: &lt;no&gt;" in page.html
    assert "<no>" not in page.html


def test_tool_calls_of_a_failed_gen_are_shown() -> None:
    @bn.tool
    def lookup(key: str) -> str:
        "Look it up."
        return f"<no {key}>"

    @bn.function
    def agent(s: bn.State) -> None:
        s += bn.assistant(bn.gen("a", tools=[lookup], max_rounds=2))

    calls: list[Any] = [{"lookup": {"key": "lamp"}}, ({"lookup": {"key": "desk"}}, {"lookup": {"key": "chair"}})]
    state = agent.run(backend=bn.Mock([*calls, *calls]))
    html = unescape(state.show().html)
    assert "lookup(key='lamp'): <no lamp>\nlookup(key='desk'): <no desk>\nlookup(key='chair'): <no chair>\n<em" in html
    with pytest.raises(bn.ToolError) as raised:
        state["a"]
    assert "a failed after 2 rounds of tool calls [" in raised.value.__notes__[0]
    assert "[a failed after 2 rounds of tool calls]" in str(state)


# ---- spans of a prompt ---------------------------------------------------------------------------------------------


class CharTokenMock(bn.Mock):
    """A Mock with one token per character; a token is cached if an earlier prompt or output has the same prefix."""

    def __init__(self) -> None:
        super().__init__("ab")
        self.seen: list[str] = []

    def start(self, job: Job) -> None:
        text = job.text
        n = max((len(common_prefix(text, known)) for known in self.seen), default=0)
        self.seen.append(text + "ab")
        text_of = job.op.choices[0] if isinstance(job.op, wire.Select) else "ab"
        job.finish(GenOutcome((wire.Sample(text_of, "stop"),), wire.TokenUsage(len(text), min(n, len(text) - 1), 2)))


def common_prefix(one: str, other: str) -> str:
    n = next(
        (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    return one[:n]


def sample_value(state: bn.State, token_runs: list[tuple[int, bool]]) -> wire.Value:
    """Return the server's value of the state's text, with one token per character."""
    text = state.text()
    assert sum(n for n, _ in token_runs) == len(text)
    lengths = array("i", [1] * len(text)).tobytes()
    return wire.Value(0, 0, 0, (wire.Sample(text, "stop"),), tokens=wire.Tokens(b"", lengths, tuple(token_runs)))


def origins(spans: list[PromptSpan]) -> list[tuple[str, str]]:
    return [(span.origin, span.text) for span in spans if span.text]


def test_spans_split_where_the_cache_ends() -> None:
    @bn.function
    def program(s: bn.State, tail: str) -> None:
        s += "shared " + tail + bn.gen("x") + " more " + bn.gen("y") + " end"

    backend = CharTokenMock()
    program.run("one", backend=backend).sync()
    state = program.run("other", backend=backend)
    history = History(state._record)
    token_runs = [(12, False), (2, True), (6, False), (2, True), (4, False)]
    assert origins(prompt_spans(history.root, sample_value(state, token_runs))) == [
        ("cached", "shared o"),
        ("computed", "ther"),
        ("generated", "ab"),
        ("computed", " more "),
        ("generated", "ab"),
        ("given", " end"),
    ]
    assert [len(span.tokens) for span in prompt_spans(history.root, sample_value(state, token_runs)) if span.text] == [
        8,
        4,
        2,
        6,
        2,
        4,
    ]


def test_fork_shares_the_prefix_and_select_shows_its_choice() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("x")
        forks = s.fork(2)
        forks += "?" + bn.select("c", ["yes", "no"])
        forks += "!!" + bn.gen("z")
        s["forks"] = forks

    state = program.run(backend=CharTokenMock())
    history = History(state._record)
    second_branch = history.branches[2]
    spans = prompt_spans(second_branch, sample_value(state["forks"][1], [(1, False), (2, True), (6, False), (2, True)]))
    assert [(s.origin, s.text, s.is_shared) for s in spans if s.text] == [
        ("computed", "Q", True),
        ("generated", "ab", True),
        ("computed", "?", False),
        ("chosen", "yes", False),
        ("cached", "!", False),
        ("computed", "!", False),
        ("generated", "ab", False),
    ]


def test_text_rewritten_by_the_template_is_complete() -> None:
    state = trip.run("Rome", backend=bn.Mock("yes"))
    history = History(state._record)
    rewritten_text = "[system] new\n" + state.text().replace("A day in Rome?", "A DAY IN ROME?")
    value = wire.Value(0, 0, 0, (wire.Sample(rewritten_text, "stop"),))
    spans = prompt_spans(history.root, value)
    assert "".join(span.text for span in spans) == rewritten_text
    assert next(span.text for span in spans if span.origin == "generated") == "yes"


# ---- notebooks -----------------------------------------------------------------------------------------------------


def test_notebook_view_of_a_state_never_waits() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user(INJECTION) + bn.assistant(bn.gen("slow"))

    mock = bn.Mock("x", latency=60)
    state = program.run(backend=mock)
    start = time.monotonic()
    html = state._repr_html_()
    assert time.monotonic() - start < 10
    assert "[slow is under way]" in html
    assert "<script>" not in html
    state.cancel()
    assert "[slow was stopped]" in state._repr_html_()
    finished = trip.run("Rome", backend=bn.Mock(script))
    finished.sync()
    assert "3 branches below it" in finished._repr_html_()
    assert "prompt=0" in finished._repr_html_()


def test_async_state_has_all_views(tmp_path: Path) -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> None:
        s += "Q" + bn.gen("a")
        await s.value("a")

    async def main() -> None:
        state = await program.run_async(backend=bn.Mock("x", latency=0.01))
        page = await state.show(tmp_path / "page.html")
        assert texts(page.html) == ["Qx"]
        assert [gen.name for gen in state.usage.gens] == ["a"]
        assert state.timeline(tmp_path / "trace.json")["traceEvents"]
        assert "Q" in state._repr_html_()

    asyncio.run(main())


def test_adopted_branch_becomes_the_states_text() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("q")
        branches = s.fork(2)
        branches += lambda i: f"{i}:" + bn.gen("a")
        s.adopt(branches.best(lambda b: b["a"]))
        s += "!" + bn.gen("z")

    state = program.run(backend=bn.Mock({"q": "q", "a": ["x", "y"], "z": "z"}))
    history = History(state._record)
    spans = prompt_spans(history.root)
    assert "".join(span.text for span in spans) == state.text() == "Qq1:y!z"
    assert [span.text for span in spans if span.origin == "generated"] == ["q", "y", "z"]
    assert [gen.name for gen in state.usage.gens] == ["q", "z", "a", "a"], "each gen once"
    assert texts(state.show().html)[0] == "Qq1:y!z"


def nested(s: bn.State, n: int) -> None:
    for i in range(n):
        (s,) = s.fork(1)
        s += f"<{i}>"


def adopted(s: bn.State, n: int) -> None:
    for i in range(n):
        (branch,) = s.fork(1)
        branch += f"<{i}>"
        s.adopt(branch)


@pytest.mark.parametrize("body", [nested, adopted])
def test_branch_shows_only_the_last_text_that_it_shares(body: Any) -> None:
    state = bn.function(body).run(500, backend=bn.Mock())
    page = state.show()
    root, *branches = texts(page.html)
    assert root == state.text()
    assert branches[10] == "".join(f"<{i}>" for i in range(11))
    assert branches[-1] == "".join(f"<{i}>" for i in range(459, 500))
    n_left_out = len("".join(f"<{i}>" for i in range(459)))
    assert f"{n_left_out:,} more characters of branch" in page.html
    assert len(page.html) < 500 * 6000, "not a piece of text for each pair of branches"


def test_drafted_text_has_its_own_origin() -> None:
    class Drafting(CharTokenMock):
        def start(self, job: Job) -> None:
            drafted = array("i", [1, 2]).tobytes()
            drafts = {"tree": (1, 1), "ngram": (2, 1)}
            job.finish(
                GenOutcome(
                    (wire.Sample("abcd", "stop", drafted=drafted, drafts=drafts),), wire.TokenUsage(1, 0, 4, 3, 2)
                )
            )

    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("x") + "!"

    state = program.run(backend=Drafting())
    spans = prompt_spans(History(state._record).root, sample_value(state, [(1, False), (4, True), (1, False)]))
    assert origins(spans) == [
        ("computed", "Q"), ("generated", "a"), ("drafted", "bc"), ("generated", "d"), ("given", "!")
    ]  # fmt: skip
    assert "67%</b><span>of drafts accepted: tree 1 of 1, ngram 1 of 2" in state.show().html


@bn.tool
def look() -> str:
    "Looks."
    return "seen"


class Rounds(bn.Mock):
    """A Mock with drafts in each round. Its first round finds 3 tokens of its prompt in the tree, later ones all."""

    def __init__(self) -> None:
        super().__init__("")

    def start(self, job: Job) -> None:
        n = job.round
        drafts = {"tree": (6, 3)} if n else {"tree": (4, 1), "ngram": (5, 2)}
        calls = (wire.WireToolCall("c0", "look", "{}"),) if n == 0 and job.op.tools else ()
        sample = wire.Sample("x" if n == 0 else "7", "stop", n_tokens=8, drafts=drafts)
        drafted, accepted = (sum(counts) for counts in zip(*drafts.values(), strict=True))
        usage = wire.TokenUsage(len(job.text), len(job.text) if n else 3, 8, drafted, accepted)
        job.finish(GenOutcome((sample,), usage, calls=calls))


@pytest.mark.parametrize("options", [{"tools": [look]}, {"type": int, "retries": 3}])
def test_counts_of_several_rounds_agree_in_all_views(options: dict[str, Any]) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("Q") + bn.assistant(bn.gen("a", **options))

    state = program.run(backend=Rounds())
    state.sync()
    meta, usage = state.get_meta_info("a"), state.usage
    assert meta["drafts"] == {"tree": {"drafted": 10, "accepted": 4}, "ngram": {"drafted": 5, "accepted": 2}}
    assert (usage.drafted, usage.accepted, usage.generated) == (15, 6, 16)
    assert (meta["completion_tokens"], meta["prompt_tokens"], meta["cached_tokens"]) == (16, usage.prompt, usage.cached)
    assert meta["spec_verify_ct"] == 10
    assert [turn["completion_tokens"] for turn in meta["rounds"]] == [8, 8]
    page = state.show().html
    assert "40%</b><span>of drafts accepted: tree 4 of 10, ngram 2 of 5" in page
    assert "summed over" not in page, "of one gen"
    spans = origins(prompt_spans(History(state._record).root, sample_value(state, [(len(state.text()), False)])))
    assert spans[0][0] == "cached"
    assert len(spans[0][1]) == 3, "what the first round found"


def test_select_counts_its_prompt_once_and_shows_what_it_found() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "Question" + bn.select("c", ["yes", "no"])

    backend = CharTokenMock()
    for n_cached in (0, 7):
        state = program.run(backend=backend)
        spans = origins(prompt_spans(History(state._record).root, sample_value(state, [(11, False)])))
        drawn = {origin: len(text) for origin, text in spans if origin in ("cached", "computed")}
        assert drawn.get("cached", 0) == state.usage.cached == n_cached


def test_tool_call_text_counts_as_generated() -> None:
    @bn.tool
    def add(a: int, b: int) -> int:
        "Adds."
        return a + b

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("1+2?") + bn.assistant(bn.gen("a", tools=[add]))

    state = program.run(backend=bn.Mock({"a": [{"add": {"a": 1, "b": 2}}, "3"]}))
    text = state.text()
    assert text.count("assistant") == 2
    value = wire.Value(0, 0, 0, (wire.Sample(text, "stop"),))
    assert "".join(span.text for span in prompt_spans(History(state._record).root, value)) == text
    call_start = text.index("assistant") + len("assistant\n")
    text_with_call = text[:call_start] + "CALL" + text[call_start:]
    token_runs = [(call_start, False), (4, True), (len(text) - call_start, False)]
    tokens = wire.Tokens(b"", array("i", [1] * len(text_with_call)).tobytes(), tuple(token_runs))
    spans = prompt_spans(
        History(state._record).root, wire.Value(0, 0, 0, (wire.Sample(text_with_call, "stop"),), tokens=tokens)
    )
    assert [(s.text, s.is_marker) for s in spans if s.origin == "generated"] == [("CALL", False), ("3", False)]
