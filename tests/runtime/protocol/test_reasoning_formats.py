"""How the marks of a model's reasoning are found in its chat template."""

from __future__ import annotations

import pytest

from banyan.runtime.protocol.reasoning_formats import format_in
from banyan.runtime.protocol.wire import Reasoning


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ '<think>\n\n</think>' }}", Reasoning()),
        ("[THINK]{{ m.reasoning }}[/THINK]", Reasoning("[THINK]", "[/THINK]")),
        ("{{ m.content }}", None),
        ("<think> alone", None),
    ],
)
def test_format_is_found_by_its_marks(source: str, expected: Reasoning | None) -> None:
    assert format_in(source) == expected
