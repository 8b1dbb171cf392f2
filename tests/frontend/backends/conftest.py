"""A server that stands in for OpenAI's API, and backends on it."""

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
    made = []

    def start(answer: Callable[[str, Any], Any], model: str = "m", **options: Any) -> tuple[Any, bn.OpenAI]:
        api = fake.FakeApi(answer)
        backend = bn.OpenAI(model, base_url=api.url, api_key="key", **options)
        made.append((api, backend))
        return api, backend

    yield start
    for api, backend in made:
        backend.close()
        api.close()
