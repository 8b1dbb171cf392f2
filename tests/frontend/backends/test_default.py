"""Which backend a program runs on when nobody says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import banyan as bn


@bn.function
def program(s: bn.State) -> None:
    s += bn.gen("a")


def test_without_any_it_says_what_to_do() -> None:
    for call in (program.run, lambda: program.run_batch([()])):
        with pytest.raises(bn.ConfigError, match=r"set_default_backend\(bn.Runtime\(\)\).*BANYAN_SOCKET"):
            call()


def test_the_one_named_wins_over_the_default() -> None:
    bn.set_default_backend(bn.Mock("default"))
    named = bn.Mock("named")
    assert program.run()["a"] == "default"
    assert program.run(backend=named)["a"] == "named"
    assert program.run(opts=bn.Options(backend=named))["a"] == "named"
    assert program.run_batch([()], backend=named)[0]["a"] == "named"


def test_a_default_that_is_empty_is_still_one() -> None:
    class Empty(bn.Mock):
        def __len__(self) -> int:
            return 0

    bn.set_default_backend(Empty("empty"))
    assert program.run()["a"] == "empty"


def test_the_environment_names_a_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BANYAN_SOCKET", str(tmp_path / "none"))
    with pytest.raises(bn.ConnectFailed, match=str(tmp_path)):
        program.run()


def test_questions_go_to_the_default() -> None:
    asked: list[Any] = []

    class Asked(bn.Mock):
        def ask(self, what: Any) -> Any:
            asked.append(what)
            return super().ask(what)

    backend = Asked()
    bn.set_default_backend(backend)
    assert bn.flush_cache() is True
    assert bn.get_server_info()["model"] == "mock"
    assert bn.get_server_info(bn.Mock())["n_calls"] == 0
    assert asked == ["flush", "info"]


def test_without_a_backend_there_is_nothing_to_flush_and_nothing_to_tell() -> None:
    assert bn.flush_cache() is False
    assert bn.get_server_info() is None
