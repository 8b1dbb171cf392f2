"""Fixtures that every room may use. Heavy imports happen inside them: a torch-free test stays torch-free."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _sibling(name: str) -> ModuleType:
    """tests/<name>.py as a module: `--import-mode=importlib` puts no test folder on sys.path."""
    module_name = f"banyan_tests_{name}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[module_name]


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """The module tests/tiny.py: `make_tiny`, `make_tokenizer`, `reference`, `VOCAB`, ids of the special tokens."""
    return _sibling("tiny")


@pytest.fixture(scope="session")
def tiny_model(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model(family="llama", **overrides) -> Path`: a tiny random model directory, made once a session.

    Callers must not write to the directory: it is shared.
    """
    made: dict[str, Path] = {}

    def make(family: str = "llama", **overrides: Any) -> Path:
        key = repr((family, sorted(overrides.items())))
        if key not in made:
            made[key] = tiny.make_tiny(tmp_path_factory.mktemp(family) / "model", family, **overrides)
        return made[key]

    return make


@pytest.fixture(scope="session")
def reference(tiny: ModuleType) -> Iterator[Callable[[Path], Any]]:
    """`reference(path)`: the model in `path` as transformers runs it (float32, eager), opened once a session."""
    opened: dict[Path, Any] = {}

    def get(path: Path) -> Any:
        if path not in opened:
            opened[path] = tiny.reference(path)
        return opened[path]

    yield get
    opened.clear()
