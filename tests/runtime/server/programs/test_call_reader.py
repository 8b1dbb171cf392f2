"""Calls, read while they are written."""

from __future__ import annotations

from collections import defaultdict

import pytest

from banyan.runtime.protocol import wire
from banyan.runtime.server.programs.call_reader import MAX_HEAD, CallReader
from banyan.runtime.server.text.tool_call_format import Form

NAMED = Form("[C]", None, "", split="[A]")
CALLS = '{"name": "f", "arguments": {"a": [1, "]}\\\\\\"{\\u00e9", {}], "b": "x\ny"}}'


def read(form: Form, text: str, n: int = 1, *, is_open: bool = False, one_call: bool = False) -> list[tuple[str, ...]]:
    """What was passed on of each call of `text`, which comes in pieces of `n` characters."""
    pieces: list[wire.CallPiece] = []
    reader = CallReader(form, pieces.append, 3, is_open, one_call)
    for k in range(0, len(text), n):
        reader.feed(text[k : k + n])
    found: defaultdict[str, tuple[str, str]] = defaultdict(lambda: ("", ""))
    for piece in pieces:
        name, arguments = found[piece.id]
        found[piece.id] = name + piece.name, arguments + piece.arguments
    return [(number, *call) for number, call in found.items()]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
def test_pieces_of_any_length_give_the_calls_of_the_whole_text(n: int) -> None:
    for form, text in (
        (Form("<t>", close="</t>"), f"Now <t <t>{CALLS}</t>\n<t> {CALLS} </t>."),
        (NAMED, 'So [C]f[A]{"x": "[C]"}[C] g [A] {}'),
        (NAMED._replace(split=""), '[C]f{"x": {"y": {}}}[C]g{}'),
    ):
        whole = [(call.id, call.name, call.arguments) for call in form.read(text, text, 3)]
        assert len(whole) == 2
        assert read(form, text, n) == whole
        assert read(form, text, n, one_call=True) == whole[:1]
        assert read(form, text.partition(form.mark)[2], n, is_open=True) == whole


def test_names_come_without_arguments_that_cannot_be_read_yet() -> None:
    form = Form("<t>")
    for text in ('{"name": "f"}', '{"name": "f", "arguments": "{}"}', '{"name": "f", "x": 1, "arguments": {}}'):
        assert read(form, f"<t>{text}<t>{CALLS}") == [("000000003", "f", "")]
    for text in ('{"arguments": {}, "name": "f"}', '{"name": "\\u0066", "arguments": {}}', " " * MAX_HEAD + CALLS):
        assert read(form, f"<t>{text}<t>{CALLS}") == []


def test_nothing_comes_after_arguments_that_are_invalid() -> None:
    form, text = NAMED._replace(split=""), '[C]f{x: "[C]g{}"}[C]h{"y": 1}'
    broken, *calls = form.read(text, text, 3)
    assert (bool(broken.error), [call.name for call in calls]) == (True, ["g", "h"])  # it looks inside the broken call
    assert read(form, text) == [(broken.id, "f", '{x: "[C]g{}"}')]
    assert read(form, '[C]f{"x": 1e999}[C]g{}') == [(broken.id, "f", '{"x": 1e999}')]


def test_name_has_no_white_space_around_it_whether_or_not_its_arguments_stream() -> None:
    form = Form("<t>")
    for text in ('<t>{"name": " f ", "arguments": {}}', '<t>{"name": " f ", "arguments": "{}"}'):
        assert [call.name for call in form.read(text, text)] == [name for _, name, _ in read(form, text)] == ["f"]
