"""Argument slots can be appended; every other operation on one is detected."""

from __future__ import annotations

import copy
import json
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest

from banyan.lang.expr import gen, leaves, user
from banyan.templates.argument_slot import ArgumentObserved, ArgumentSlot


def test_slot_can_be_appended_joined_and_formatted() -> None:
    slot = ArgumentSlot(0, "q")
    for expression in ("a" + slot + "b", f"a{slot}b"):
        before, middle, after = leaves(expression)
        assert (before, after) == ("a", "b")
        assert middle is slot
    assert [type(leaf) for leaf in leaves(user(f"{slot}, {gen('x')}: {slot}"))].count(ArgumentSlot) == 2
    assert slot.observed is None


INSPECTIONS: list[Callable[[Any], Any]] = [
    *(str, repr, len, bool, int, float, bytes, hash, list, iter, next, reversed, abs, round, math.floor, copy.copy),
    *(copy.deepcopy, open, complex, dir, operator.index, operator.neg, operator.not_),
    lambda q: f"{q:>9}",
    lambda q: f"{q!r}",
    lambda q: "%s" % q,  # noqa: UP031
    lambda q: q == "x",
    lambda q: q != "x",
    lambda q: q < "x",
    lambda q: "x" in q,
    lambda q: q in ("x", "y"),
    lambda q: q[0],
    lambda q: q * 2,
    lambda q: 2 - q,
    lambda q: q % 2,
    lambda q: q.strip(),
    lambda q: {q: 1},
    lambda q: {"x": 1}[q],
    lambda q: range(q),
    lambda q: "x".join(q),
    lambda q: q(),
    lambda q: "x".startswith("x") and q.startswith("x"),
]


@pytest.mark.parametrize("inspect", INSPECTIONS)
def test_inspecting_a_slot_raises(inspect: Callable[[Any], Any]) -> None:
    slot = ArgumentSlot(0, "q")
    with pytest.raises(ArgumentObserved):
        inspect(slot)
    assert slot.observed is not None
    assert slot.observed.what == "argument 'q'"


def test_error_names_the_line_of_the_inspection() -> None:
    slot = ArgumentSlot(0, "q")
    with pytest.raises(ArgumentObserved):
        len(slot)  # type: ignore[arg-type]
    assert slot.observed is not None
    assert slot.observed.line.startswith("test_argument_slot.py:")


@pytest.mark.parametrize("inspect", [lambda q: "".join([q]), lambda q: re.match("x", q), json.dumps, lambda q: 1 + q])
def test_functions_that_need_text_raise(inspect: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, ValueError, ArgumentObserved)):
        inspect(ArgumentSlot(0, "q"))


def test_argument_observed_is_not_caught_as_exception() -> None:
    assert not issubclass(ArgumentObserved, Exception)
