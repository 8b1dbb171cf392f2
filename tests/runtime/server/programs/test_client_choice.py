"""A select whose client decides by the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from banyan.runtime.errors import BadProgram, Cancelled
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Read, Ref, Results, Select

Sampler = Callable[..., wire.Sampling]
CHOICES = ("red", "green")


def asking(**options: Any) -> Select:
    return Select(0, 0, CHOICES, client_decides=True, **options)


def test_the_client_decides(bench: Any, greedy: Sampler) -> None:
    b = bench({"It is green": "!"})
    b.submit(Append(0, ("It is ",)), asking(), wire.Gen(0, 1, greedy()), Read(0, 2))
    b.run()
    (shown,) = b.messages(wire.Called)
    assert (shown.ref, shown.round, shown.calls) == (0, 0, ())
    assert len(shown.scores.normalized) == len(CHOICES)
    assert b.messages(wire.Value) == [], "it waits"
    b.submit(Results(0, 0, 0, ("green",)))
    b.run()
    assert (b.text(0), b.text(2)) == ("green", "It is green!")
    value = b.value(0)
    assert value.scores.weights == (0.0, 1.0)
    assert value.scores.normalized == shown.scores.normalized
    assert value.samples[0].n_tokens == len(value.scores.tokens[1])
    assert value.usage == shown.usage


def test_what_it_needs_is_scored(bench: Any) -> None:
    b = bench({})
    b.submit(Append(0, ("It is ",)), asking(method="unconditional_likelihood_normalized"))
    b.run()
    assert len(b.messages(wire.Called)[0].scores.unconditional) == len(CHOICES)


def test_other_results_are_ignored_and_who_waits_for_the_value_waits(bench: Any) -> None:
    b = bench({})
    b.submit(Append(0, ("It is ",)), asking(), wire.Fork(0, (1,)), Append(1, (Ref(0), "!")), Read(1, 1))
    b.submit(Results(0, 0, 0, ("red",)))  # before it was asked
    b.run()
    b.submit(Results(0, 9, 0, ("red",)), Results(0, 0, 7, ("red",)), Results(1, 0, 0, ("red",)))
    b.run()
    assert b.messages(wire.Value) == []
    b.submit(Results(0, 0, 0, ("green",)))
    b.submit(Results(0, 0, 0, ("red",)))
    assert b.text(1) == "It is greengreen!"


def test_what_is_no_choice_fails_it(bench: Any) -> None:
    for number, texts in enumerate([("blue",), (), ("red", "green")]):
        b = bench({})
        b.submit(Append(0, ("It is ",)), asking(), program=number)
        b.run()
        b.submit(Results(0, 0, 0, texts), program=number)
        assert b.failed(0, number).code == BadProgram.code


def test_its_end_while_it_waits(bench: Any) -> None:
    b = bench({})
    b.submit(Append(0, ("It is ",)), asking())
    b.run()
    b.programs.cancel(b"me", wire.Cancel(0, 9))
    assert b.failed(None).code == Cancelled.code
    assert len(b.requests) == len(b.programs) == 0
    assert not b.messages(wire.Value)


def test_what_cannot_be_scored_is_not_asked(bench: Any) -> None:
    b = bench({})
    b.submit(asking())
    b.run()
    assert "put text before it" in b.failed(0).message
    assert not b.messages(wire.Called)
