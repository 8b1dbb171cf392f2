"""The language on a Mock: no model, no socket, no thread but those a test asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import banyan as bn
from banyan import ticker


class _Silent:
    """A ticker that never ticks, so that what flushes is what the test does, however slow the machine is."""

    def remind(self, _: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker, "_ticker", _Silent())


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
