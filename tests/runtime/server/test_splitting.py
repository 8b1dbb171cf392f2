"""Programs that are too long for one message."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from banyan.runtime import launch
from banyan.runtime.client import client, splitting
from banyan.runtime.errors import BadMessage
from banyan.runtime.protocol import decoders, wire
from banyan.runtime.protocol.limits import MAX_OPS, MAX_PARTS
from banyan.runtime.protocol.op_template import ProgramTemplate

TEXT = "Grüße, 世界 🙂! the quick <|im_end|> brown fox\n\n" * 3


def split(*ops: wire.Op, most: int, templates: dict[int, ProgramTemplate] | None = None) -> list[tuple[wire.Op, ...]]:
    groups = list(splitting.messages(ops, templates or {}, most + splitting.HEADER))
    for group in groups:
        assert len(group) <= MAX_OPS
        assert sum(len(wire.encode(op)) for op in group) <= most
        decoders.decode_client(wire.encode(wire.Submit(0, 0, group)))
    return groups


@pytest.mark.parametrize("most", [100, 170, 1000])
def test_tokens_do_not_depend_on_the_size_of_messages(bench: Callable[..., Any], most: int) -> None:
    ops = (
        wire.Append(0, (wire.BeginTurn("user"), TEXT, wire.EndTurn(), wire.BeginTurn("assistant"))),
        wire.Append(0, (wire.Raw(TEXT), TEXT, wire.Raw("<|im_start|>"))),
        wire.Read(0, 0, tokens=True),
    )
    whole, parts = bench(), bench()
    whole.submit(*ops, last=True)
    groups = split(*ops, most=most)
    for group in groups:
        parts.submit(*group, last=group is groups[-1])
    assert len(groups) > 3 or most == 1000
    assert parts.value(0).tokens == whole.value(0).tokens
    assert parts.text(0) == whole.text(0)


def test_many_parts_and_many_ops_become_several() -> None:
    (only,) = split(wire.Append(0, ("a",) * (2 * MAX_PARTS + 1)), most=1 << 20)
    assert [len(op.parts) for op in only if isinstance(op, wire.Append)] == [MAX_PARTS, MAX_PARTS, 1]
    assert [len(group) for group in split(*[wire.Drop(0)] * (MAX_OPS + 1), most=1 << 30)] == [MAX_OPS, 1]


def test_use_with_long_arguments_becomes_its_ops() -> None:
    template = ProgramTemplate((wire.Append(0, ("q: ", wire.Arg(0))), wire.Gen(0, 0, name="a")))
    use = wire.Use(3, 7, ("x" * 5000,), ref=4)
    ops = [op for group in split(use, most=1000, templates={7: template}) for op in group]
    assert ops[-1] == wire.Gen(3, 4, name="a")
    parts = [part for op in ops[:-1] if isinstance(op, wire.Append) for part in op.parts]
    assert "".join(map(str, parts)) == "q: " + "x" * 5000


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (wire.Select(0, 0, ("a" * 2000,), name="x", line="f:3"), r"the select 'x' at f:3 has 20\d\d bytes.*choices"),
        (wire.Gen(0, 0, tools=wire.Tools(("a" * 2000,))), "shorter tools or a smaller schema"),
        (wire.Results(0, 0, 0, ("a" * 2000,)), "let the tools return less"),
        (wire.Append(0, (wire.Image(b"a" * 2000, "image/png"),)), "an image has"),
    ],
)  # fmt: skip
def test_op_that_cannot_be_cut_is_refused_with_advice(op: wire.Op, error: str) -> None:
    with pytest.raises(BadMessage, match=error):
        split(op, most=1000)


def test_long_program_runs_over_a_socket(serve: Callable[..., launch.ServerProcess]) -> None:
    with contextlib.closing(client.connect(serve(options={"max_message": 1 << 16}).socket)) as c:
        program = c.program("x" * 1000)
        program.submit([wire.Append(0, ("ab" * 200_000, *("c",) * 5000)), wire.Read(0, 0)], last=True)
        assert program.future(0).result(30).samples[0].text == "ab" * 200_000 + "c" * 5000
