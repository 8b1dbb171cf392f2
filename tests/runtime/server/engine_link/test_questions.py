"""Questions of clients about the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.runtime import config
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.adapters import AdapterNames
from banyan.runtime.server.engine_link.changes import EngineChanges
from banyan.runtime.server.engine_link.questions import OURSELVES, Questions
from banyan.runtime.server.policy.tenants import Tenant, Tenants
from banyan.runtime.server.text.tokenizer import Tokenizer


class Engine:
    """An engine that is asked. asked: what it was sent. host: its machine, if that is another one."""

    def __init__(self, name: str, asked: list[Any], host: str = "") -> None:
        self.name, self.link = name, SimpleNamespace(send=asked.append, ready=None, host=host)
        self.is_open, self.weights = True, b""

    @property
    def is_ready(self) -> bool:
        return self.link.ready is not None


class Asked:
    """Questions, and what they send to the engine and to clients."""

    def __init__(self, words: Tokenizer) -> None:
        tenants = Tenants({})
        tenants.join(b"me", Tenant())
        tenants.join(b"guest", Tenant("guest", is_operator=False))
        self.to_engine: list[Any] = []
        self.sent: list[Any] = []
        self.log: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.adapters = AdapterNames()
        self.questions = Questions(
            tenants,
            words,
            engines=[Engine("0", self.to_engine)],
            send=lambda client, message: self.sent.append(message),
            stats=dict,
            info=lambda is_operator: {},
            programs=dict,
            check=str,
            on_counters=lambda counters: None,
            change=lambda ask, then: None,
            offload=lambda client, n, work, then: None,
            adapters=self.adapters,
            refuse=lambda engine, why: self.refused.append((engine.name, why)),
            log=self.log.append,
        )

    def ask(self, what: Any, name: str, client: bytes = b"me") -> None:
        self.questions.ask(client, wire.Ask(7, what, name=name, path=f"/{name}"))

    def answer(self, digest: bytes = b"", error: str = "", at: int = -1, name: str = "0") -> None:
        body = error.encode() if error else json.dumps(digest.hex()).encode()
        self.questions.receive(wire.Answer(self.to_engine[at].id, not error, body), name)


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


def test_adapter_has_its_name_once_the_engine_has_loaded_it(words: Tokenizer) -> None:
    asked = Asked(words)
    asked.ask("load_adapter", "a")
    assert list(asked.adapters) == []
    asked.answer(b"A")
    assert asked.adapters.digest("a") == b"A"
    asked.ask("load_adapter", "b")
    asked.answer(error="adapter 'b': no")
    assert [(one.ok, one.body) for one in asked.sent] == [(True, b'"41"'), (False, b"adapter 'b': no")]
    for name, why in (("a", b"there is an adapter 'a' already"), ("", b"1 to 128 letters"), ("x y", b"letters")):
        asked.ask("load_adapter", name)
        assert not asked.sent[-1].ok
        assert why in asked.sent[-1].body
    asked.ask("load_adapter", "c", client=b"guest")
    assert b"not an operator" in asked.sent[-1].body
    assert len(asked.to_engine) == 2


def test_of_two_that_load_a_name_at_once_the_first_gets_it(words: Tokenizer) -> None:
    asked = Asked(words)
    asked.ask("load_adapter", "a")
    asked.ask("load_adapter", "a")
    asked.answer(b"A", at=0)
    asked.answer(b"B", at=1)
    assert [one.ok for one in asked.sent] == [True, False]
    assert asked.adapters.digest("a") == b"A"
    assert [(one.what, one.name) for one in asked.to_engine[2:]] == [("unload_adapter", b"B".hex())]
    asked.answer()
    assert len(asked.sent) == 2, "nobody asked for that"


def test_name_that_an_adapter_gets_while_its_other_name_is_removed_has_weights(words: Tokenizer) -> None:
    asked = Asked(words)
    for name in "abc":
        asked.ask("load_adapter", name)
    asked.answer(b"A", at=0)
    asked.ask("unload_adapter", "a")
    assert asked.to_engine[-1].name == "", "b may be the same adapter"
    asked.answer(b"A", at=1)
    asked.answer(b"C", at=2)
    assert len(asked.to_engine) == 4
    asked.ask("load_adapter", "d")
    for name in "bc":
        asked.ask("unload_adapter", name)
    asked.answer(error="no such files", at=4)
    assert [one.name for one in asked.to_engine[5:7]] == ["", ""]
    assert sorted((one.what, one.name) for one in asked.to_engine[7:]) == [
        ("unload_adapter", b"A".hex()),
        ("unload_adapter", b"C".hex()),
    ]


def test_adapter_whose_name_was_removed_is_unloaded_when_the_engine_that_loads_another_dies(words: Tokenizer) -> None:
    asked = AskedPair(words)
    asked.adapters.add("a", "/a", b"A")
    asked.questions.reload_adapters(asked.engines[1])
    asked.ask("unload_adapter", "a")
    asked.questions.fail("1", "it died")
    assert [(one.what, one.name) for one in asked.to_engine[3:]] == [("unload_adapter", b"A".hex())]


def test_adapter_that_one_of_two_engines_cannot_load_leaves_the_other(words: Tokenizer) -> None:
    asked = AskedPair(words)
    asked.ask("load_adapter", "a")
    asked.answer(b"A", at=0)
    asked.answer(error="no room", at=0, name="1")
    assert [(one.ok, one.body) for one in asked.sent] == [(False, b"no room")]
    assert [(one.what, one.name) for one in asked.to_engine[2:]] == [("unload_adapter", b"A".hex())] * 2


def test_weights_leave_with_their_last_name(words: Tokenizer) -> None:
    asked = Asked(words)
    for name in "ab":
        asked.ask("load_adapter", name)
        asked.answer(b"A")
    for name, digest in (("a", b""), ("b", b"A")):
        asked.ask("unload_adapter", name)
        assert bytes.fromhex(asked.to_engine[-1].name) == digest
        assert name not in asked.adapters
    asked.ask("unload_adapter", "b")
    assert b"there is no adapter 'b'; this server has none" in asked.sent[-1].body


def test_new_engine_loads_the_adapters_again(words: Tokenizer) -> None:
    asked = Asked(words)
    for name in "ab":
        asked.adapters.add(name, f"/{name}", name.encode())
    asked.questions.fail("0", "it died")
    asked.questions.reload_adapters(Engine("0", asked.to_engine))
    assert [(one.what, one.path) for one in asked.to_engine] == [("load_adapter", "/a"), ("load_adapter", "/b")]
    asked.answer(b"A", at=0)
    asked.answer(error="adapter 'b': its files are gone", at=1)
    assert list(asked.adapters) == ["a"]
    assert asked.adapters.digest("a") == b"A", "the files may have changed"
    assert asked.log == ["adapter 'b': its files are gone"]
    assert not asked.sent


def test_engine_of_another_machine_that_lacks_an_adapter_is_refused_and_the_others_keep_it(words: Tokenizer) -> None:
    asked = AskedPair(words)
    asked.engines[1].link.host = "gpu1"
    asked.adapters.add("a", "/a", b"A")
    asked.questions.reload_adapters(asked.engines[1])
    asked.answer(error="adapter 'a': no such directory", name="1")
    assert list(asked.adapters) == ["a"]
    assert asked.refused == [("1", "engine 1 lacks what the others have: adapter 'a': no such directory")]
    assert [one.what for one in asked.to_engine] == ["load_adapter"], "nobody unloads it"


def test_engine_of_another_machine_with_other_files_of_an_adapter_is_refused(words: Tokenizer) -> None:
    """The name keeps its files. If it moved to the files of that engine, the others would load theirs again, the name
    would move back, and so on without end."""
    asked = AskedPair(words)
    asked.engines[1].link.host = "gpu1"
    asked.adapters.add("a", "/a", b"A")
    asked.questions.reload_adapters(asked.engines[1])
    asked.answer(b"B", name="1")
    assert asked.refused == [("1", "engine 1 lacks what the others have: it has other files of adapter 'a'")]
    assert asked.adapters.digest("a") == b"A"
    assert [(one.what, one.name) for one in asked.to_engine[1:]] == [("unload_adapter", b"B".hex())] * 2


def test_adapter_whose_files_have_changed_here_is_loaded_again_once(words: Tokenizer) -> None:
    asked = AskedPair(words)
    asked.engines[1].link.host = "gpu1"
    asked.adapters.add("a", "/a", b"A")
    asked.questions.reload_adapters(asked.engines[0])
    asked.answer(b"B")
    assert asked.adapters.digest("a") == b"B"
    assert [one.what for one in asked.to_engine] == ["load_adapter"] * 2
    asked.answer(b"A", name="1")
    assert [name for name, _ in asked.refused] == ["1"]
    assert asked.adapters.digest("a") == b"B"
    assert [(one.what, one.name) for one in asked.to_engine[2:]] == [("unload_adapter", b"A".hex())] * 2


def test_adapter_whose_files_differ_between_engines_is_not_loaded(words: Tokenizer) -> None:
    """All engines unload it. If it was unloaded on one only, gens with the adapter would fail there."""
    asked = AskedPair(words)
    asked.ask("load_adapter", "a")
    asked.answer(b"A", at=0)
    asked.answer(b"B", at=1, name="1")
    (answer,) = asked.sent
    assert (answer.ok, answer.body) == (False, b"engine 1 has other files of adapter 'a' than engine 0")
    assert not list(asked.adapters)
    assert {(one.what, one.name) for one in asked.to_engine[2:]} == {
        ("unload_adapter", b"A".hex()),
        ("unload_adapter", b"B".hex()),
    }


@pytest.mark.parametrize("change", ["starts", "drained", "weights", "loads"])
def test_adapter_that_no_other_engine_has_loses_its_name(words: Tokenizer, change: str) -> None:
    asked = AskedPair(words)
    first, second = asked.engines
    second.link.host = "gpu1"
    asked.adapters.add("a", "/a", b"A")
    asked.questions.reload_adapters(second)
    match change:
        case "starts":
            first.link.ready = None
        case "drained":
            first.is_open = False
        case "weights":
            first.weights = b"others"
        case "loads":
            asked.questions.reload_adapters(first)
    asked.answer(error="adapter 'a': no such directory", at=0, name="1")
    assert not asked.refused
    assert not list(asked.adapters)


def test_our_own_questions_have_no_limit(words: Tokenizer) -> None:
    asked = Asked(words)
    for k in range(300):
        asked.adapters.add(f"a{k}", f"/{k}", bytes([k % 256]))
    asked.questions.reload_adapters(Engine("0", asked.to_engine))
    assert len(asked.to_engine) == 300
    asked.ask("stats", "", client=OURSELVES)
    assert [one.what for one in asked.to_engine[300:]] == ["stats"]
    for _ in range(257):
        asked.ask("check", "")
    assert [one.body for one in asked.sent] == [b"256 questions of this client are open, which is the limit; "
                                                b"wait for answers"]  # fmt: skip


class AskedPair(Asked):
    """Two engines, both ready."""

    def __init__(self, words: Tokenizer) -> None:
        super().__init__(words)
        self.engines = [Engine("0", self.to_engine), Engine("1", self.to_engine)]
        for engine in self.engines:
            engine.link.ready = "yes"
        self.questions._engines = self.engines
        self.questions._stats = lambda: {"replicas": {"0": {}, "1": {}}}

    def answers(self, what: Any, *bodies: Any, name: str = "") -> Any:
        """The answer to a question that the engines answer with these bodies."""
        n = len(self.to_engine)
        self.ask(what, name)
        for engine, body in zip("01", bodies, strict=True):
            self.questions.receive(wire.Answer(self.to_engine[n].id, True, json.dumps(body).encode()), engine)
        return json.loads(self.sent[-1].body)


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


def test_engine_that_died_while_an_adapter_was_loaded_loads_it_later(words: Tokenizer) -> None:
    asked = AskedPair(words)
    asked.ask("load_adapter", "a")
    asked.questions.fail("0", "it died")
    asked.answer(b"A", at=0, name="1")
    assert asked.adapters.digest("a") == b"A"
    assert [one.what for one in asked.to_engine] == ["load_adapter"] * 3, "for each, and once more for engine 0"
    asked.answer(b"A")
    assert len(asked.to_engine) == 3
    assert [one.ok for one in asked.sent] == [True]


def test_engine_that_died_after_it_had_loaded_an_adapter_loads_it_again(words: Tokenizer) -> None:
    """The engine that takes its place loads the adapter too."""
    asked = AskedPair(words)
    asked.ask("load_adapter", "a")
    asked.answer(b"A", at=0)
    asked.questions.fail("0", "it died")
    asked.questions.reload_adapters(asked.engines[0])
    asked.answer(b"A", at=0, name="1")
    assert [one.what for one in asked.to_engine] == ["load_adapter"] * 3, "for each, and once more for engine 0"
    assert [one.ok for one in asked.sent] == [True]


def test_engine_that_gets_other_weights_loads_an_adapter_that_others_still_load(words: Tokenizer) -> None:
    asked = AskedPair(words)
    names = ("requests", "programs", "adapters", "tenants", "images", "observer", "ray")
    rest: Any = dict.fromkeys(names)
    server: Any = SimpleNamespace(make_poller=lambda: None)
    changes = EngineChanges(server, config.make(), Path(), None, questions=asked.questions, **rest)  # type: ignore[arg-type]
    asked.ask("load_adapter", "a")
    asked.answer(b"A", at=0)
    asked.engines[0].link.life, asked.engines[0].link.start = 1, lambda: asked.to_engine.append("start")
    changes.restart(asked.engines[0], "new")
    asked.answer(b"A", at=0, name="1")
    assert [getattr(one, "what", one) for one in asked.to_engine] == [*["load_adapter"] * 2, "start", "load_adapter"]
    assert [one.ok for one in asked.sent] == [True]


def test_events_are_those_of_one_engine(words: Tokenizer) -> None:
    asked = AskedPair(words)
    asked.ask("events", "")
    assert b"each engine has its own events" in asked.sent[-1].body
    asked.ask("events", "1")
    assert len(asked.to_engine) == 1
