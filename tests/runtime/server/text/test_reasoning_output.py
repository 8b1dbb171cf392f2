"""Models that think before they speak: the client hears what is said, and the state keeps that alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Gen, Raw, Read
from banyan.runtime.server.text.detokenizer import Detokenizer
from banyan.runtime.server.text.tokenizer import Tokenizer

Sampler = Callable[..., wire.Sampling]
THINK = wire.Reasoning()


@pytest.fixture
def thinker(bench: Callable[..., Any], marked: Tokenizer) -> Callable[..., Any]:
    return lambda say: bench(say, tokenizer=marked)


def test_what_is_said_is_the_value_and_the_state(thinker: Any, greedy: Sampler) -> None:
    b = thinker({"Q": "<think>\nhm, the\n</think>\n\nthe answer \n", "answer!": "<think>more"})
    b.submit(
        Append(0, ("Q",)),
        Gen(0, 0, greedy(), stream=True, reasoning=THINK),
        Append(0, ("!",)),
        Gen(0, 1, greedy(), reasoning=THINK),
        Read(0, 2),
    )
    b.run()
    (sample,) = b.value(0).samples
    assert (sample.text, sample.reasoning) == ("the answer", "hm, the\n")
    assert sample.n_tokens == b.value(0).usage.generated > 5, "thinking is counted"
    deltas = b.messages(wire.Delta)
    assert "".join(delta.text for delta in deltas if not delta.is_thought) == "the answer"
    assert "".join(delta.text for delta in deltas if delta.is_thought) == "hm, the\n"
    assert [delta.is_thought for delta in deltas] == sorted((delta.is_thought for delta in deltas), reverse=True)
    assert sum(delta.is_thought for delta in deltas) > 1, "as it comes"
    assert 0 < deltas[0].n_tokens < deltas[-1].n_tokens <= sample.n_tokens
    assert b.prompts()[1] == "Qthe answer!"
    assert b.value(1).samples[0].reasoning == "more"
    assert b.text(1) == ""
    assert b.text(2) == "Qthe answer!"


def test_pieces_have_the_logprobs_of_all_tokens_before_them(thinker: Any, greedy: Sampler) -> None:
    b = thinker({"Q": "<think>hm, the</think> the answer"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(logprobs=True), stream=True, reasoning=THINK))
    b.run()
    n = 0
    for delta in b.messages(wire.Delta):
        n += len(delta.logprobs)
        assert n == delta.n_tokens
    assert 4 < n <= b.value(0).samples[0].n_tokens


def test_tokens_that_are_said_stay_those_that_the_model_made(thinker: Any, marked: Tokenizer, greedy: Sampler) -> None:
    b = thinker({"Q": "<think>a</think> \n<tool_call>x y"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(), reasoning=THINK), Gen(0, 1, greedy(max_tokens=1)))
    b.run()
    assert b.text(0) == "<tool_call>x y"
    assert marked.added["<tool_call>"] in b.ids(), "a control token that the model wrote is one"
    assert marked.added["<think>"] not in b.ids()


def test_a_prompt_that_begins_the_thinking_counts(thinker: Any, greedy: Sampler) -> None:
    b = thinker({"<think>\n": "a</think>b", "Q": "a</think>b"})
    b.submit(Append(0, ("Q", Raw("<think>\n"))), Gen(0, 0, greedy(), reasoning=THINK), program=0)
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(), reasoning=THINK), program=1)
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(), reasoning=wire.Reasoning(is_forced=True)), program=2)
    b.run()
    said = [(b.value(0, p).samples[0].text, b.value(0, p).samples[0].reasoning) for p in range(3)]
    assert said == [("b", "a"), ("a</think>b", ""), ("b", "a")]


def test_marks_that_are_special_tokens_are_seen_all_the_same(thinker: Any, greedy: Sampler) -> None:
    marks = wire.Reasoning("<|im_start|>", "<|endoftext|>")
    b = thinker({"Q": "<|im_start|>a<|endoftext|>b"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(ignore_eos=True), reasoning=marks))
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(ignore_eos=True)), program=1)
    b.run()
    assert b.value(0).samples[0].reasoning == "a"
    assert b.text(0).startswith("b")
    assert "<|" not in b.text(0, program=1), "elsewhere they are no text"


def test_each_sample_is_told_apart(thinker: Any, greedy: Sampler) -> None:
    b = thinker({"Q": "<think>a</think>b"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(n=2), reasoning=THINK))
    b.run()
    assert [(s.text, s.reasoning) for s in b.value(0).samples] == [("b", "a")] * 2


def test_within_finds_the_tokens_between_two_characters() -> None:
    d = Detokenizer([b"ab", b"", b"cd", "é".encode()[:1], "é".encode()[1:], b"ef"], ())
    d.feed(range(6))
    assert d.text == "abcdéef"
    assert d.within(0, 7) == ((0, 0), (6, 7))
    assert d.within(2, 5) == ((1, 2), (5, 5))
    assert d.within(1, 6) == ((1, 2), (5, 5))
    assert d.within(2, 4)[1] == (3, 4)
    assert d.within(5, 6) == ((5, 6), (5, 6)), "no token lies wholly in there"
    assert d.within(7, 7) == ((6, 7), (6, 7))
