"""The trace data of a value: the tokens of a state and the times of a gen."""

from __future__ import annotations

from array import array
from collections import deque
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


def split_tokens(value: wire.Value) -> list[str]:
    """The text of each token."""
    assert value.tokens is not None
    text, at, tokens = value.samples[0].text, 0, []
    for n in array("i", value.tokens.lengths):
        tokens.append(text[at : at + n])
        at += n
    assert at == len(text)
    assert len(tokens) == len(value.tokens.ids) // 4 == sum(n for n, _ in value.tokens.spans)
    return tokens


def test_read_returns_the_tokens_of_a_state(
    bench: Any, greedy: Sampler, role: SimpleNamespace, words: Tokenizer
) -> None:
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
    assert "".join(split_tokens(value)) == b.text(2)
    prompt, output, rest = value.tokens.spans
    assert [is_generated for _, is_generated in value.tokens.spans] == [False, True, False]
    assert prompt[0] == b.value(0).usage.prompt
    generated = split_tokens(value)[prompt[0] : prompt[0] + output[0]]
    assert "".join(generated) == "one two"
    assert rest[0] > 0
    assert b.value(2).tokens is None


@pytest.mark.parametrize(("text", "is_generated"), [("one two", False), ("héé", False), ("", True), ("one", True)])
def test_special_id_before_the_text_has_length_zero(words: Tokenizer, text: str, is_generated: bool) -> None:
    ids = words.encode([TextSpan(text)])
    plain = _lengths(TokenRun(text, pack(ids), is_generated), words)
    assert sum(plain) == len(text)
    special = min(words.special)
    assert _lengths(TokenRun(text, pack([special, *ids]), is_generated), words) == [0, *plain], (
        "an id before the text, like bos"
    )


def test_read_of_tokens_with_a_mark_is_refused(bench: Any) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), wire.Mark(0, 0), Read(0, 0, mark=0, tokens=True))
    assert b.failed(0).code == "bad_program"


def test_times_of_a_value_are_in_order(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one two three"})
    ticks = count(100)
    b.requests.clock = lambda: float(next(ticks))
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(n=2)), Select(0, 1, ("x", "y")))
    b.run()
    times = b.value(0).times
    assert 100 <= times.ready < times.sent < times.first < times.ended
    assert times.started == 0.0, "the fake engine does not report it"
    select_times = b.value(1).times
    assert times.ended < select_times.ready < select_times.sent < select_times.ended
    assert select_times.first == 0.0, "nothing was generated"


def test_engine_counts_are_in_the_value(bench: Any, greedy: Sampler) -> None:
    b = bench()
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(n=2)))
    for run in b.engine.runs:
        finish = wire.Finish(run.rid, "length", n_prompt=5, started=7.0, n_drafted=4, n_accepted=3)
        deque(b.requests.take(wire.Step(finished=(finish,)), b.replica), 0)
    usage, times = b.value(0).usage, b.value(0).times
    assert (usage.drafted, usage.accepted, times.started) == (8, 6, 7.0)
