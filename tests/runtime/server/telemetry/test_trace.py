"""What a value tells of how it came about: the tokens of a state, and when a gen got how far."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Gen, Read, Select
from banyan.runtime.server.text.prompt import TokenRun, _lengths, pack
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer

Sampler = Callable[..., wire.Sampling]


def pieces(value: wire.Value) -> list[str]:
    """The text, cut into its tokens."""
    assert value.tokens is not None
    text, at, found = value.samples[0].text, 0, []
    for n in array("i", value.tokens.lengths):
        found.append(text[at : at + n])
        at += n
    assert at == len(text)
    assert len(found) == len(value.tokens.ids) // 4 == sum(n for n, _ in value.tokens.spans)
    return found


def test_the_tokens_of_a_state(bench: Any, greedy: Sampler, role: SimpleNamespace, words: Tokenizer) -> None:
    b = bench({"assistant\n": "one two"})
    b.submit(
        Append(0, (*role.user("hé"), wire.BeginTurn("assistant"))),
        Gen(0, 0, greedy()),
        Append(0, (wire.EndTurn(),)),
        Read(0, 1, tokens=True),
        Read(0, 2),
    )
    b.run()
    value = b.value(1)
    assert "".join(pieces(value)) == b.text(2)
    prompt, output, rest = value.tokens.spans
    assert [is_made for _, is_made in value.tokens.spans] == [False, True, False]
    assert prompt[0] == b.value(0).usage.prompt
    made = pieces(value)[prompt[0] : prompt[0] + output[0]]
    assert "".join(made) == "one two"
    assert rest[0] > 0
    assert b.value(2).tokens is None


@pytest.mark.parametrize(("text", "made"), [("one two", False), ("héé", False), ("", True), ("one", True)])
def test_what_an_id_spells_beyond_the_text_counts_for_nothing(words: Tokenizer, text: str, made: bool) -> None:
    ids = words.encode([TextSpan(text)])
    plain = _lengths(TokenRun(text, pack(ids), made), words)
    assert sum(plain) == len(text)
    special = min(words.special)
    assert _lengths(TokenRun(text, pack([special, *ids]), made), words) == [0, *plain], "an id in front, as bos is"


def test_a_read_of_tokens_has_no_mark(bench: Any) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), wire.Mark(0, 0), Read(0, 0, mark=0, tokens=True))
    assert b.failed(0).code == "bad_program"


def test_times_are_in_order(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one two three"})
    ticks = count(100)
    b.requests.clock = lambda: float(next(ticks))
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(n=2)), Select(0, 1, ("x", "y")))
    b.run()
    times = b.value(0).times
    assert 100 <= times.ready < times.sent < times.first < times.ended
    assert times.started == 0.0, "the fake engine does not tell"
    chosen = b.value(1).times
    assert times.ended < chosen.ready < chosen.sent < chosen.ended
    assert chosen.first == 0.0, "nothing was generated"


def test_what_the_engine_counts_is_told(bench: Any, greedy: Sampler) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(n=2)))
    for run in b.engine.runs:
        b.requests.take(
            wire.Step(finished=(wire.Finish(run.rid, "length", n_prompt=5, started=7.0, n_drafted=4, n_accepted=3),))
        )
    usage, times = b.value(0).usage, b.value(0).times
    assert (usage.drafted, usage.accepted, times.started) == (8, 6, 7.0)
