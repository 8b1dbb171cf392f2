"""Slots: they can be appended, and whatever else is done to one is found out."""

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


def test_a_slot_can_be_appended_joined_and_stand_in_f_strings() -> None:
    slot = ArgumentSlot(0, "q")
    for expression in ("a" + slot + "b", f"a{slot}b"):
        before, middle, after = leaves(expression)
        assert (before, after) == ("a", "b")
        assert middle is slot
    assert [type(leaf) for leaf in leaves(user(f"{slot}, {gen('x')}: {slot}"))].count(ArgumentSlot) == 2
    assert slot.observed is None


LOOKS: list[Callable[[Any], Any]] = [
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


@pytest.mark.parametrize("look", LOOKS)
def test_what_looks_at_it_is_found_out(look: Callable[[Any], Any]) -> None:
    slot = ArgumentSlot(0, "q")
    with pytest.raises(ArgumentObserved):
        look(slot)
    assert slot.observed is not None
    assert slot.observed.what == "argument 'q'"


def test_it_says_where_it_was_looked_at() -> None:
    slot = ArgumentSlot(0, "q")
    with pytest.raises(ArgumentObserved):
        len(slot)  # type: ignore[arg-type]
    assert slot.observed is not None
    assert slot.observed.line.startswith("test_argument_slot.py:")


@pytest.mark.parametrize("look", [lambda q: "".join([q]), lambda q: re.match("x", q), json.dumps, lambda q: 1 + q])
def test_what_takes_nothing_but_text_raises_something(look: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, ValueError, ArgumentObserved)):
        look(ArgumentSlot(0, "q"))


def test_a_body_that_catches_exceptions_does_not_catch_it() -> None:
    assert not issubclass(ArgumentObserved, Exception)
