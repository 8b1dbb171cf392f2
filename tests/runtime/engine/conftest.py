"""The fake model, the lazy device and their drivers as fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fake(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """The module fake.py beside this file."""
    return module_at(Path(__file__).with_name("fake.py"))


@pytest.fixture(scope="session")
def late(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """The module late.py beside this file."""
    return module_at(Path(__file__).with_name("late.py"))
