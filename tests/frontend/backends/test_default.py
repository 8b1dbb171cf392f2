"""The default backend of a program."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import banyan as bn


@bn.function
def program(s: bn.State) -> None:
    s += bn.gen("a")


def test_missing_backend_raises_with_instructions() -> None:
    for call in (program.run, lambda: program.run_batch([()])):
        with pytest.raises(bn.ConfigError, match=r"set_default_backend\(bn.Runtime\(\)\).*BANYAN_SOCKET"):
            call()


def test_thread_of_a_body_has_its_backend_only_in_its_context() -> None:
    @bn.function
    def outer(s: bn.State, in_context: bool) -> Any:
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(copy_context().run, program) if in_context else pool.submit(program)
        return call.result()["a"]

    assert outer.run(True, backend=bn.Mock("the caller's")).ret_value == "the caller's"
    with pytest.raises(bn.ConfigError, match=r"contextvars.copy_context\(\).run"):
        outer.run(False, backend=bn.Mock())
    with pytest.raises(bn.ConfigError) as raised:
        program.run()  # on the main thread
    assert "copy_context" not in str(raised.value)


def test_explicit_backend_overrides_the_default() -> None:
    bn.set_default_backend(bn.Mock("default"))
    explicit = bn.Mock("explicit")
    assert program.run()["a"] == "default"
    assert program.run(backend=explicit)["a"] == "explicit"
    assert program.run(opts=bn.Options(backend=explicit))["a"] == "explicit"
    assert program.run_batch([()], backend=explicit)[0]["a"] == "explicit"


def test_falsy_default_backend_is_used() -> None:
    class Empty(bn.Mock):
        def __len__(self) -> int:
            return 0

    bn.set_default_backend(Empty("empty"))
    assert program.run()["a"] == "empty"


def test_environment_variable_names_the_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BANYAN_SOCKET", str(tmp_path / "none"))
    with pytest.raises(bn.ConnectFailed, match=str(tmp_path)):
        program.run()


def test_own_server_in_place_of_the_one_that_the_environment_names_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = object.__new__(bn.Runtime)
    bn.set_default_backend(started)  # no server is named
    monkeypatch.setenv("BANYAN_SOCKET", "/there")
    for other in (bn.Mock(), object.__new__(bn.RuntimeEndpoint), None):
        bn.set_default_backend(other)
    with pytest.warns(UserWarning, match="the one at /there is not used") as warned:
        bn.set_default_backend(started)
    assert [one.filename for one in warned] == [__file__]


def test_flush_and_info_use_the_default() -> None:
    questions: list[Any] = []

    class RecordingMock(bn.Mock):
        def ask(self, what: Any) -> Any:
            questions.append(what)
            return super().ask(what)

    backend = RecordingMock()
    bn.set_default_backend(backend)
    assert bn.flush_cache() is True
    assert bn.get_server_info()["model"] == "mock"
    assert bn.get_server_info(bn.Mock())["n_calls"] == 0
    assert questions == ["flush", "info"]


def test_flush_and_info_without_a_backend() -> None:
    assert bn.flush_cache() is False
    assert bn.get_server_info() is None


@pytest.mark.parametrize("backend", ["x", 3, bn.Mock, Path("s")])
def test_what_is_no_backend_is_refused_at_once(backend: Any) -> None:
    with pytest.raises(bn.BadProgram, match="is not a backend; a backend is an object such as"):
        bn.set_default_backend(backend)
    with pytest.raises(bn.BadProgram, match="is not a backend"), bn.using(backend):
        pass
    for options in ({"backend": backend}, {"opts": bn.Options(backend=backend)}):
        with pytest.raises(bn.BadProgram, match="is not a backend"):
            program.run(**options)
    with pytest.raises(bn.BadProgram, match="is not a backend"):
        bn.flush_cache(backend)
