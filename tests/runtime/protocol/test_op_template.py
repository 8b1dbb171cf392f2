"""Expansion of a Use into ops, and the uses and templates that are refused."""

from __future__ import annotations

import msgspec
import pytest

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import decoders, wire
from banyan.runtime.protocol.op_template import ProgramTemplate, ValueSource
from banyan.runtime.protocol.wire import (
    Append,
    Arg,
    BeginTurn,
    Drop,
    EndTurn,
    Fork,
    Gen,
    Join,
    Mark,
    Raw,
    Read,
    Ref,
    Sampling,
    Select,
    Use,
)

OPS = (
    Append(0, (BeginTurn("user"), "about ", Arg(1), EndTurn(), Arg(0))),
    Mark(0, 0),
    Fork(0, (1, 2)),
    Gen(1, 0, Sampling(max_tokens=3), name="a", line="x.py:1"),
    Select(2, 1, ("x", "y"), name="b", line="x.py:2"),
    Append(0, (Ref(1), Raw("<s>"), Arg(1))),
    Gen(0, 2, Sampling(seed=5)),
    Join(0, (2, 1)),
    Read(0, 3, 0),
    Read(0, 4),
    Drop(2),
)


def test_template_counts_its_arguments_and_results() -> None:
    template = ProgramTemplate(OPS)
    assert (template.n_args, template.n_children, template.n_refs, template.n_marks) == (2, 2, 5, 1)
    assert template.n_draws == 2, "the third gen has its own seed"
    assert template.places == [
        ValueSource(0, "a", "x.py:1"),
        ValueSource(1, "b", "x.py:2"),
        *(ValueSource(i, "", "") for i in (2, 3, 4)),
    ]


def test_arguments_are_substituted() -> None:
    ops = list(ProgramTemplate(OPS).expand(Use(0, 9, ("first", "second"))))
    assert ops[0] == Append(0, (BeginTurn("user"), "about ", "second", EndTurn(), "first"))
    assert ops[5] == Append(0, (Ref(1), Raw("<s>"), "second"))
    assert [op for k, op in enumerate(ops) if k not in (0, 5)] == [op for k, op in enumerate(OPS) if k not in (0, 5)]


def test_template_numbers_continue_from_use() -> None:
    assert list(ProgramTemplate(OPS).expand(Use(4, 9, ("f", "s"), child=10, ref=20, mark=30, seeds=(100, 101)))) == [
        Append(4, (BeginTurn("user"), "about ", "s", EndTurn(), "f")),
        Mark(4, 30),
        Fork(4, (10, 11)),
        Gen(10, 20, Sampling(max_tokens=3, seed=100), name="a", line="x.py:1"),
        Select(11, 21, ("x", "y"), seed=101, name="b", line="x.py:2"),
        Append(4, (Ref(21), Raw("<s>"), "s")),
        Gen(4, 22, Sampling(seed=5)),
        Join(4, (11, 10)),
        Read(4, 23, 30),
        Read(4, 24),
        Drop(11),
    ]


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (Use(0, 9), "takes 2 arguments, not 0"),
        (Use(0, 9, ("a", "b", "c")), "takes 2 arguments, not 3"),
        (Use(0, 9, ("a", "b"), seeds=(1,)), "takes 2 seeds, not 1"),
    ],
)
def test_wrong_number_of_arguments_or_seeds_is_refused(use: Use, error: str) -> None:
    with pytest.raises(BadProgram, match=error):
        list(ProgramTemplate(OPS).expand(use))


@pytest.mark.parametrize(
    "op",
    [
        *(Append(-1, ("x",)), Append(0, (Arg(-1),)), Append(0, (Ref(-1),))),
        *(Gen(0, -1), Fork(0, (-1,)), Mark(0, -1), Read(0, 0, -1)),
    ],
    ids=repr,
)
def test_negative_numbers_in_a_template_are_refused(op: wire.TemplateOp) -> None:
    with pytest.raises(msgspec.ValidationError, match=">= 0"):
        decoders.decode_template_op(wire.encode(op))
