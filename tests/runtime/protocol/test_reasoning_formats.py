"""How the marks of a model's reasoning are found in its chat template."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from banyan.runtime.protocol.reasoning_formats import REASONING_FORMATS, format_in
from banyan.runtime.protocol.wire import Reasoning

GPT_OSS = """{{ "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
{{ "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}"""
"""The end mark of the reasoning continues in the next message."""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ '<think>\n\n</think>' }}", Reasoning()),
        ("[THINK]{{ m.reasoning }}[/THINK]", Reasoning("[THINK]", "[/THINK]")),
        ("{{ m.content }}", None),
        ("<think> alone", None),
        (GPT_OSS, REASONING_FORMATS["gpt-oss"]),
        (GPT_OSS.replace("<|end|>", ""), None),
        ("<think> think /think>", None),
    ],
)
def test_format_is_found_by_its_marks(source: str, expected: Reasoning | None) -> None:
    assert format_in(source) == expected


def test_each_format_is_found_in_a_template_with_its_marks() -> None:
    for marks in REASONING_FORMATS.values():
        assert format_in(f"{marks.start}{{{{ m.reasoning }}}}{marks.end}") == replace(marks, is_forced=False)
