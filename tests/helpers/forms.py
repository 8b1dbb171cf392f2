"""Short and long forms of parametrised tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def short_form(cases: Iterable[tuple[Any, ...]], is_short: Callable[..., bool]) -> list[Any]:
    """`cases` for `parametrize`, marked `long` where `is_short(*case)` is false."""
    return [pytest.param(*case, marks=() if is_short(*case) else pytest.mark.long) for case in cases]
