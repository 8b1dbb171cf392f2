"""Short and long forms of tests: the short one runs in `make test`, the rest in `make test-long`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings


def short_form(cases: Iterable[tuple[Any, ...]], is_short: Callable[..., bool]) -> list[Any]:
    """`cases` for `parametrize`, marked `long` where `is_short(*case)` is false."""
    return [pytest.param(*case, marks=() if is_short(*case) else pytest.mark.long) for case in cases]


def in_short(short: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """`cases` of one argument for `parametrize`, marked `long` where they are not in `short`."""
    kept = list(short)
    return [case if case in kept else pytest.param(case, marks=pytest.mark.long) for case in cases]


def examples(few: int, many: int, given: Callable[..., Any], **options: Any) -> Callable[[Callable[..., None]], Any]:
    """In place of `@settings(...)` and `@given(...)`: `few` examples in the short form, `many` in the long one.

    options: further options of `settings`. There is no deadline.
    """

    def decorate(test: Callable[..., None]) -> Any:
        runs = {n: settings(max_examples=n, deadline=None, **options)(given(test)) for n in (few, many)}

        def run(n_examples: int, **fixtures: Any) -> None:
            runs[n_examples](**fixtures)

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        own = inspect.signature(runs[few]).parameters.values()
        added = inspect.Parameter("n_examples", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature([*own, added])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("n_examples", in_short([few], [few, many]))(run)

    return decorate
