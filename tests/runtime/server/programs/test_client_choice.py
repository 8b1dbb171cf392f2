"""A select whose choice the client makes from the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Read, Results, Select

Sampler = Callable[..., wire.Sampling]
CHOICES = ("red", "green")


def client_select(**options: Any) -> Select:
    return Select(0, 0, CHOICES, client_decides=True, **options)


def test_client_chooses_by_the_scores(bench: Any, greedy: Sampler) -> None:
    b = bench({"It is green": "!"})
    b.submit(Append(0, ("It is ",)), client_select(), wire.Gen(0, 1, greedy()), Read(0, 2))
    b.run()
    (called,) = b.messages(wire.Called)
    assert (called.ref, called.round, called.calls) == (0, 0, ())
    assert len(called.scores.normalized) == len(CHOICES)
    assert b.messages(wire.Value) == [], "the select waits for the client"
    b.submit(Results(0, 0, 0, ("green",)))
    b.run()
    assert (b.text(0), b.text(2)) == ("green", "It is green!")
    value = b.value(0)
    assert value.scores.weights == (0.0, 1.0)
    assert value.scores.normalized == called.scores.normalized
    assert value.samples[0].n_tokens == len(value.scores.tokens[1])
    assert value.usage == called.usage


def test_unconditional_scores_are_computed_for_the_client(bench: Any) -> None:
    b = bench({})
    b.submit(Append(0, ("It is ",)), client_select(method="unconditional_likelihood_normalized"))
    b.run()
    assert len(b.messages(wire.Called)[0].scores.unconditional) == len(CHOICES)


def test_invalid_choice_fails_the_select(bench: Any) -> None:
    for number, texts in enumerate([("blue",), (), ("red", "green")]):
        b = bench({})
        b.submit(Append(0, ("It is ",)), client_select(), program=number)
        b.run()
        b.submit(Results(0, 0, 0, texts), program=number)
        assert b.failed(0, number).code == BadProgram.code


def test_select_that_cannot_be_scored_fails_without_a_call(bench: Any) -> None:
    b = bench({})
    b.submit(client_select())
    b.run()
    assert "a select needs a token before its choices" in b.failed(0).message
    assert not b.messages(wire.Called)
