"""Questions of clients about the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from asked_engines import Asked, AskedEngine, AskedPair

from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.questions import OURSELVES
from banyan.runtime.server.text.tokenizer import Tokenizer


def test_texts_of_a_tree_are_written_off_the_loop(words: Tokenizer) -> None:
    offloaded: list[tuple[int, Callable[[], Any], Callable[[Any], None]]] = []
    asked = Asked(words)
    asked.questions._offload = lambda client, n, work, then: offloaded.append((n, work, then))
    for number in (7, 8):
        asked.questions.ask(b"me", wire.Ask(number, "tree", limit=5000))
    ids = list(words.encode([]))
    body = json.dumps({"nodes": [{"ids": ids, "namespace": ""}]}).encode()
    asked.questions.receive(wire.Answer(asked.to_engine[0].id, True, body), "0")
    asked.questions.receive(wire.Answer(asked.to_engine[1].id, True, b"{"), "0")
    assert not asked.sent
    assert [n for n, _, _ in offloaded] == [len(body), 1]
    _, work, then = offloaded[0]
    then(work())
    offloaded[1][2](ValueError("no JSON"))
    assert [(answer.id, answer.ok) for answer in asked.sent] == [(7, True), (8, False)]
    assert json.loads(asked.sent[0].body)["nodes"][0]["text"] == ""


def test_our_own_questions_have_no_limit(words: Tokenizer) -> None:
    asked = Asked(words)
    for k in range(300):
        asked.adapters.add(f"a{k}", f"/{k}", bytes([k % 256]))
    asked.questions.engine_adapters.reload(AskedEngine("0", asked.to_engine))
    assert len(asked.to_engine) == 300
    asked.ask("stats", "", client=OURSELVES)
    assert [one.what for one in asked.to_engine[300:]] == ["stats"]
    for _ in range(257):
        asked.ask("check", "")
    assert [one.body for one in asked.sent] == [b"256 questions of this client are open, which is the limit; "
                                                b"wait for answers"]  # fmt: skip


def test_counters_of_engines_are_summed(words: Tokenizer) -> None:
    one = {"engine": {"steps": 3, "only": 1}, "cache": {"program_hit_rate": 1.0, "n_programs": 1, "evicted": {"x": 1}}}
    two = {"engine": {"steps": 4}, "cache": {"program_hit_rate": 0.0, "n_programs": 3, "evicted": {"x": 2}}}
    stats = AskedPair(words).answers("stats", one, two)
    assert stats["engine"] == {"steps": 7, "only": 1}
    assert stats["cache"] == {"program_hit_rate": 0.25, "n_programs": 4, "evicted": {"x": 3}}
    assert stats["replicas"]["1"] == two


def test_trees_of_engines_are_shown_as_one(words: Tokenizer) -> None:
    def tree(n: int) -> bytes:
        root = {"parent": -1, "ids": [], "namespace": ""}
        return json.dumps({"page": 16, "n_pages": n, "nodes": [root, root | {"parent": 0}]}).encode()

    shown = json.loads(AskedPair(words).questions._with_text({"0": tree(5), "1": tree(6)}))
    assert (shown["page"], shown["n_pages"]) == (16, 11)
    assert [node["parent"] for node in shown["nodes"]] == [-1, 0, -1, 2]
    assert "on engine 1" in shown["nodes"][2]["namespace"]


def test_question_is_answered_without_an_engine_that_died(words: Tokenizer) -> None:
    asked = AskedPair(words)
    asked.ask("check", "")
    asked.questions.fail("0", "it died")
    assert not asked.sent
    asked.questions.receive(wire.Answer(asked.to_engine[0].id, True, b"{}"), "1")
    asked.ask("check", "")
    asked.questions.fail("0", "it died")
    asked.questions.fail("1", "it died too")
    found = [(one.ok, one.body, one.code) for one in asked.sent]
    assert found == [(True, b"{}", ""), (False, b"it died too", "engine_lost")]


def test_events_are_those_of_one_engine(words: Tokenizer) -> None:
    asked = AskedPair(words)
    asked.ask("events", "")
    assert b"each engine has its own events" in asked.sent[-1].body
    asked.ask("events", "1")
    assert len(asked.to_engine) == 1
