"""Reasoning models: values and states have the answer, and thoughts are separate."""

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
def reasoning_bench(bench: Callable[..., Any], marked: Tokenizer) -> Callable[..., Any]:
    return lambda say: bench(say, tokenizer=marked)


def test_value_and_state_have_only_the_answer(reasoning_bench: Any, greedy: Sampler) -> None:
    b = reasoning_bench({"Q": "<think>\nhm, the\n</think>\n\nthe answer \n", "answer!": "<think>more"})
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
    assert sample.n_tokens == b.value(0).usage.generated > 5, "tokens of the thought are counted"
    deltas = b.messages(wire.Delta)
    assert "".join(delta.text for delta in deltas if not delta.is_thought) == "the answer"
    assert "".join(delta.text for delta in deltas if delta.is_thought) == "hm, the\n"
    assert [delta.is_thought for delta in deltas] == sorted((delta.is_thought for delta in deltas), reverse=True)
    assert sum(delta.is_thought for delta in deltas) > 1, "the thought is streamed"
    assert 0 < deltas[0].n_tokens < deltas[-1].n_tokens <= sample.n_tokens
    assert b.prompts()[1] == "Qthe answer!"
    assert b.value(1).samples[0].reasoning == "more"
    assert b.text(1) == ""
    assert b.text(2) == "Qthe answer!"


def test_text_held_back_at_the_end_is_streamed_on_the_loop(reasoning_bench: Any, greedy: Sampler) -> None:
    b = reasoning_bench({"Q": "<think>hm</thi"})
    b.held = []
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(), stream=True, reasoning=THINK))
    while not b.messages(wire.Value):
        b.run()
        b.held.pop(0)()  # the bench refuses work that sends
    assert "".join(delta.text for delta in b.messages(wire.Delta)) == "hm</thi"
    assert b.value(0).samples[0].reasoning == "hm</thi"


def test_deltas_have_the_logprobs_of_their_tokens(reasoning_bench: Any, greedy: Sampler) -> None:
    b = reasoning_bench({"Q": "<think>hm, the</think> the answer"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(logprobs=True), stream=True, reasoning=THINK))
    b.run()
    n = 0
    for delta in b.messages(wire.Delta):
        n += len(delta.logprobs)
        assert n == delta.n_tokens
    assert 4 < n <= b.value(0).samples[0].n_tokens


@pytest.mark.parametrize("burst", [1, 3])
@pytest.mark.parametrize(
    "output", ["<think>hm, the</think> the answer", "<think></think>\n\nthe answer", "the answer", "<think>a</think> "]
)
def test_deltas_of_the_content_have_the_logprobs_of_the_content(
    bench: Any, words: Tokenizer, marked: Tokenizer, greedy: Sampler, output: str, burst: int
) -> None:
    for tokenizer in (words, marked):  # the marks are several tokens, and one
        b = bench({"Q": output}, tokenizer=tokenizer)
        b.engine.burst = burst
        b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(logprobs=True), stream=True, reasoning=THINK))
        b.run()
        deltas, value = b.messages(wire.Delta), b.value(0)
        of_content = sum((delta.logprobs for delta in deltas if not delta.is_thought), ())
        expected = value.samples[0].logprobs[value.usage.reasoning :]
        assert of_content == expected[: len(of_content)]
        rest = "".join(one.text for one in expected[len(of_content) :])
        assert not rest.strip(), "white space at the end of an output is not streamed"
        n = 0
        for delta in deltas:
            n += len(delta.logprobs)
            assert n == delta.n_tokens
            assert delta.text or delta.is_thought


def test_answer_keeps_the_models_tokens(reasoning_bench: Any, marked: Tokenizer, greedy: Sampler) -> None:
    b = reasoning_bench({"Q": "<think>a</think> \n<tool_call>x y"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(), reasoning=THINK), Gen(0, 1, greedy(max_tokens=1)))
    b.run()
    assert b.text(0) == "<tool_call>x y"
    assert marked.added["<tool_call>"] in b.ids(), "a control token of the model stays one"
    assert marked.added["<think>"] not in b.ids()


def test_thought_may_start_in_the_prompt(reasoning_bench: Any, greedy: Sampler) -> None:
    b = reasoning_bench({"<think>\n": "a</think>b", "Q": "a</think>b"})
    b.submit(Append(0, ("Q", Raw("<think>\n"))), Gen(0, 0, greedy(), reasoning=THINK), program=0)
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(), reasoning=THINK), program=1)
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(), reasoning=wire.Reasoning(is_forced=True)), program=2)
    b.run()
    outputs = [(b.value(0, p).samples[0].text, b.value(0, p).samples[0].reasoning) for p in range(3)]
    assert outputs == [("b", "a"), ("a</think>b", ""), ("b", "a")]


def test_special_tokens_as_markers_are_recognised(reasoning_bench: Any, greedy: Sampler) -> None:
    markers = wire.Reasoning("<|im_start|>", "<|endoftext|>")
    b = reasoning_bench({"Q": "<|im_start|>a<|endoftext|>b"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(ignore_eos=True), reasoning=markers))
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(ignore_eos=True)), program=1)
    b.run()
    assert b.value(0).samples[0].reasoning == "a"
    assert b.text(0).startswith("b")
    assert "<|" not in b.text(0, program=1), "without reasoning they have no text"


def test_markers_may_consist_of_several_tokens_and_frame_the_answer(bench: Callable[..., Any], greedy: Sampler) -> None:
    start = "<|im_start|>"
    markers = wire.Reasoning(f"{start}dog{start}", f"{start}fox", answer=f"{start}lazy", close=start)
    b = bench({"Q": f"{start}dog{start}the quick{start}fox{start}lazyyes{start}no"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(), stream=True, reasoning=markers), Read(0, 1))
    b.run()
    assert (b.text(0), b.value(0).samples[0].reasoning, b.text(1)) == ("yes", "the quick", "Qyes")


def test_reasoning_is_separated_in_each_sample(reasoning_bench: Any, greedy: Sampler) -> None:
    b = reasoning_bench({"Q": "<think>a</think>b"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(n=2), reasoning=THINK))
    b.run()
    assert [(s.text, s.reasoning) for s in b.value(0).samples] == [("b", "a")] * 2


def test_within_finds_the_tokens_between_two_characters() -> None:
    d = Detokenizer([b"ab", b"", b"cd", "é".encode()[:1], "é".encode()[1:], b"ef"], ())
    d.feed(range(6))
    assert d.text == "abcdéef"
    assert [d.n_chars(k) for k in range(7)] == [0, 2, 2, 4, 4, 5, 7]
    assert d.within(0, 7) == ((0, 0), (6, 7))
    assert d.within(2, 5) == ((1, 2), (5, 5))
    assert d.within(1, 6) == ((1, 2), (5, 5))
    assert d.within(2, 4)[1] == (3, 4)
    assert d.within(5, 6) == ((5, 6), (5, 6)), "no token is entirely within"
    assert d.within(7, 7) == ((6, 7), (6, 7))
