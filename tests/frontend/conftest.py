"""The language on a Mock: no model, no socket, no thread but those a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import banyan as bn
from banyan.execution import clock


class _Silent:
    """A clock that calls nothing, so that what flushes is what the test does, however slow the machine is."""

    def call(self, *_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_flush_clock", _Silent())


@pytest.fixture(autouse=True)
def _no_default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("BANYAN_SOCKET", raising=False)
    bn.set_default_backend(None)
    yield
    bn.set_default_backend(None)


@pytest.fixture
def mock() -> bn.Mock:
    """Answers each gen with its name in angle brackets; the default backend of the test."""
    backend = bn.Mock(lambda prompt, name: f"<{name}>")
    bn.set_default_backend(backend)
    return backend


@pytest.fixture(scope="session")
def run() -> Callable[..., bn.State]:
    """`run(body)`: the state of a program with this body, on a backend or on a Mock as that of `mock`."""

    def run(body: Callable[[bn.State], Any], backend: Any = None) -> bn.State:
        return bn.function(body).run(backend=backend or bn.Mock(lambda prompt, name: f"<{name}>"))

    return run


@pytest.fixture(scope="session")
def echo() -> Callable[[str, str], str]:
    """A script that answers with the branch's own number, which stands last in its prompt (see `branches`); branches
    that end in "!" fail."""

    def echo(prompt: str, name: str) -> str:
        if prompt.endswith("!"):
            raise ValueError("no luck")
        return prompt.rsplit("#", 1)[-1].split(" ")[0]

    return echo


@pytest.fixture(scope="session")
def branches() -> Callable[..., Any]:
    """`branches(s, "0", "1!")`: a fork of a branch for each text, which stands behind "#", and a gen in each."""

    def branches(s: bn.State, *texts: str, name: str = "a") -> Any:
        forks = s.fork(len(texts))
        forks += lambda i: f"#{texts[i]}" + bn.gen(name)
        return forks

    return branches
