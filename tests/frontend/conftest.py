"""Fixtures of the language's tests: a Mock backend, and no threads except those a test starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import banyan as bn


@pytest.fixture(autouse=True)
def _no_flusher(no_flusher: None) -> None:
    pass


@pytest.fixture(autouse=True)
def _no_default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("BANYAN_SOCKET", raising=False)
    bn.set_default_backend(None)
    yield
    bn.set_default_backend(None)


@pytest.fixture
def mock() -> bn.Mock:
    """The default backend of the test; answers each gen with its name in angle brackets."""
    backend = bn.Mock(lambda prompt, name: f"<{name}>")
    bn.set_default_backend(backend)
    return backend


@pytest.fixture(scope="session")
def run() -> Callable[..., bn.State]:
    """`run(body)`: the state of a program with this body, on a given backend or on a Mock like `mock`."""

    def run(body: Callable[[bn.State], Any], backend: Any = None) -> bn.State:
        return bn.function(body).run(backend=backend or bn.Mock(lambda prompt, name: f"<{name}>"))

    return run


@pytest.fixture(scope="session")
def run_loop() -> Callable[[Awaitable[Any]], Any]:
    """`run_loop(main)`: the result of an awaitable on a new event loop, with a time limit."""

    def run_loop(main: Awaitable[Any]) -> Any:
        async def limited() -> Any:
            return await asyncio.wait_for(main, 60)

        return asyncio.run(limited())

    return run_loop


@pytest.fixture(scope="session")
def echo() -> Callable[[str, str], str]:
    """A script that answers with the branch's number, which is at the end of its prompt (see `branches`). Branches
    whose text ends with "!" fail."""

    def echo(prompt: str, name: str) -> str:
        if prompt.endswith("!"):
            raise ValueError("no luck")
        return prompt.rsplit("#", 1)[-1].split(" ")[0]

    return echo


@pytest.fixture(scope="session")
def branches() -> Callable[..., Any]:
    """`branches(s, "0", "1!")`: a fork with one branch per text; each appends "#", its text and a gen."""

    def branches(s: bn.State, *texts: str, name: str = "a") -> Any:
        forks = s.fork(len(texts))
        forks += lambda i: f"#{texts[i]}" + bn.gen(name)
        return forks

    return branches
