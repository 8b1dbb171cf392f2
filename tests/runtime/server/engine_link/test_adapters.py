"""The adapters that engines load and unload, and their names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asked_engines import Asked, AskedEngine, AskedPair

from banyan.runtime import config
from banyan.runtime.server.engine_link.changes import EngineChanges
from banyan.runtime.server.text.tokenizer import Tokenizer


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
    asked.questions.engine_adapters.reload(asked.engines[1])
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
    asked.questions.engine_adapters.reload(AskedEngine("0", asked.to_engine))
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
    asked.questions.engine_adapters.reload(asked.engines[1])
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
    asked.questions.engine_adapters.reload(asked.engines[1])
    asked.answer(b"B", name="1")
    assert asked.refused == [("1", "engine 1 lacks what the others have: its files of adapter 'a' differ")]
    assert asked.adapters.digest("a") == b"A"
    assert [(one.what, one.name) for one in asked.to_engine[1:]] == [("unload_adapter", b"B".hex())] * 2


def test_adapter_whose_files_have_changed_here_is_loaded_again_once(words: Tokenizer) -> None:
    asked = AskedPair(words)
    asked.engines[1].link.host = "gpu1"
    asked.adapters.add("a", "/a", b"A")
    asked.questions.engine_adapters.reload(asked.engines[0])
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
    assert (answer.ok, answer.body) == (False, b"engine 1's files of adapter 'a' differ from engine 0's")
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
    asked.questions.engine_adapters.reload(second)
    match change:
        case "starts":
            first.link.ready = None
        case "drained":
            first.is_open = False
        case "weights":
            first.weights = b"others"
        case "loads":
            asked.questions.engine_adapters.reload(first)
    asked.answer(error="adapter 'a': no such directory", at=0, name="1")
    assert not asked.refused
    assert not list(asked.adapters)


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
    asked.questions.engine_adapters.reload(asked.engines[0])
    asked.answer(b"A", at=0, name="1")
    assert [one.what for one in asked.to_engine] == ["load_adapter"] * 3, "for each, and once more for engine 0"
    assert [one.ok for one in asked.sent] == [True]


def test_engine_that_gets_other_weights_loads_an_adapter_that_others_still_load(words: Tokenizer) -> None:
    asked = AskedPair(words)
    names = ("requests", "programs", "adapters", "tenants", "images", "observer", "ray")
    rest: Any = dict.fromkeys(names)
    server: Any = SimpleNamespace(make_poller=lambda: None)
    changes = EngineChanges(server, config.make(), Path(), None, questions=asked.questions, **rest)
    asked.ask("load_adapter", "a")
    asked.answer(b"A", at=0)
    asked.engines[0].link.life, asked.engines[0].link.start = 1, lambda: asked.to_engine.append("start")
    changes.restart(asked.engines[0], "new")
    asked.answer(b"A", at=0, name="1")
    assert [getattr(one, "what", one) for one in asked.to_engine] == [*["load_adapter"] * 2, "start", "load_adapter"]
    assert [one.ok for one in asked.sent] == [True]
