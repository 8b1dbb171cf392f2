"""Choices and the ways to score them."""

from __future__ import annotations

from typing import Any, get_args

import pytest

import banyan as bn
from banyan.runtime.wire import ChoicesMethod


def test_the_methods_are_those_of_the_wire() -> None:
    ours = (bn.token_length_normalized, bn.greedy_token_selection, bn.unconditional_likelihood_normalized)
    assert ours == get_args(ChoicesMethod)
    for method in ours:
        assert bn.select("x", ["a"], choices_method=method).method == method


@pytest.mark.parametrize("method", ["best", object(), 3])
def test_another_method_is_unsupported(method: Any) -> None:
    with pytest.raises(bn.Unsupported, match="token_length_normalized"):
        bn.select("x", ["a"], choices_method=method)


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        (None, "list of strings"),
        ([], "at least one"),
        ("yes", "list of strings"),
        (["a", ""], "non-empty"),
        (["a", 1], "1"),
        (["a", "b", "a"], "'a' stands twice"),
    ],
)
def test_choices_that_cannot_be(choices: Any, why: str) -> None:
    with pytest.raises(bn.BadProgram, match=why):
        bn.select("x", choices)


def test_choices_are_copied() -> None:
    choices = ["a", "b"]
    select = bn.select("x", choices)
    choices.append("c")
    assert select.choices == ("a", "b")
