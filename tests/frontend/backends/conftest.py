"""A fake server of OpenAI's API, and backends that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import banyan as bn


@pytest.fixture(scope="session")
def fake(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).with_name("fake_api.py"))


@pytest.fixture
def serve(fake: ModuleType) -> Iterator[Callable[..., Any]]:
    """`serve(answer, **options) -> (api, backend)`"""
    pairs = []

    def start(answer: Callable[[str, Any], Any], model: str = "m", **options: Any) -> tuple[Any, bn.OpenAI]:
        api = fake.FakeApi(answer)
        backend = bn.OpenAI(model, base_url=api.url, api_key="key", **options)
        pairs.append((api, backend))
        return api, backend

    yield start
    for api, backend in pairs:
        backend.close()
        api.close()
