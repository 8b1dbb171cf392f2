"""`Runtime.generate` and `Engine.generate` on a Mock."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.protocol import wire
from banyan.sglang.completions import complete, growing, growing_async, score, start, start_stream


def test_complete_accepts_one_prompt_or_several() -> None:
    mock = bn.Mock(lambda prompt, name: f"<{prompt}>")
    grammar = 'root ::= "b"'
    params = {"max_new_tokens": 3, "min_new_tokens": 1, "sampling_seed": 5, "stop": "!", "ebnf": grammar}
    completion = complete(mock, "a<|im_end|>", params)
    assert isinstance(completion, dict)
    assert completion["text"] == "<a<|im_end|>>"
    assert completion["meta_info"]["finish_reason"] == {"type": "stop"}
    op = mock.calls[0].op
    assert isinstance(op, wire.Gen)
    constraint = wire.ConstraintSpec("grammar", grammar)
    assert op.sampling == wire.Sampling(max_tokens=3, min_tokens=1, seed=5, stop=("!",), constraint=constraint)
    assert mock.submits[0][0] == wire.Append(0, (wire.Raw("a<|im_end|>"),)), "control tokens in the prompt are kept"
    completions = complete(mock, ["a", "b"], [{"temperature": 0}, {"n": 2}])
    assert [result["text"] for result in completions] == ["<a>", "<b>", "<b>"]
    assert [result["text"] for result in complete(mock, ["a", "b"], None)] == ["<a>", "<b>"]


def test_logprobs_are_returned() -> None:
    sample = wire.Sample("t", "stop", logprobs=(wire.TokenLogprob(5, "t", -0.5),))
    mock = bn.Mock(lambda prompt, name: sample)
    completion: Any = complete(mock, "a", {}, return_logprob=True, top_logprobs_num=2, logprob_start_len=None)
    assert completion["meta_info"]["output_token_logprobs"] == [(-0.5, 5, None)]
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert op.sampling.top_logprobs == 2


def test_softmax_of_labels_takes_logprobs_that_underflow() -> None:
    logprobs = [-1000.0, -1000.0 + math.log(3)]
    answers = [wire.Sample("t", "length", logprobs=(wire.TokenLogprob(5, "t", one),)) for one in logprobs]
    assert score(bn.Mock(answers), "q", "i", [1, 2], True, False).scores == [pytest.approx([0.25, 0.75])]
    assert score(bn.Mock(answers), "q", "i", [1, 2], False, False).scores == [[0.0, 0.0]]


def test_score_refuses_an_item_without_labels() -> None:
    with pytest.raises(bn.BadProgram, match="or a list for each item, with at least one id"):
        score(bn.Mock("x"), "q", ["i", "j"], [[1], []], False, False)


def test_stream_yields_growing_texts() -> None:
    mock = bn.Mock("one two")
    *partials, last = growing(start(mock, "a", {}, stream=True))
    assert [partial["text"] for partial in partials] == ["one ", "one two"]
    assert last["text"] == "one two"
    assert last["meta_info"]["finish_reason"]["type"] == "stop"

    async def pieces() -> list[str]:
        return [piece async for piece in start(mock, "a", {}, stream=True).text_async_iter("text")]

    assert asyncio.run(pieces()) == ["one ", "two"]

    async def items() -> list[dict[str, Any]]:
        return [item async for item in growing_async(start_stream(mock, "a", {"n": 1}, None, False, -1, 0))]

    *partials, last = asyncio.run(items())
    assert [partial["text"] for partial in partials] == ["one ", "one two"]
    assert (last["text"], last["meta_info"]["finish_reason"]["type"]) == ("one two", "stop")


@pytest.mark.parametrize(
    ("prompt", "params", "options"),
    [
        (["a"], {}, {}),
        ("a", [{}], {}),
        ("a", {"n": 2}, {}),
        ("a", None, {"return_logprob": True}),
        ("a", None, {"top_logprobs_num": 5}),
        ("a", None, {"logprob_start_len": 0}),
    ],
)
def test_stream_refuses_what_it_would_lose(prompt: Any, params: Any, options: dict[str, Any]) -> None:
    with pytest.raises(bn.Unsupported, match="stream=True needs a single prompt, n=1, and no logprobs"):
        start_stream(bn.Mock("x"), prompt, params, **options)


@pytest.mark.parametrize(
    ("prompt", "params", "error", "match"),
    [
        ([1, 2], {}, bn.BadProgram, "a prompt is text"),
        (["a"], [{}, {}], bn.BadProgram, "2 sampling parameters"),
        ("a", 0.7, bn.BadProgram, "sampling_params has 0.7; give a dict"),
        (["a"], ["x"], bn.BadProgram, "sampling_params has 'x'; give a dict"),
        ("a", {"max_token": 3}, bn.BadProgram, "max_token"),
        ("a", {"skip_special_tokens": False}, bn.Unsupported, "skip_special_tokens=False"),
        ("a", {"choices": ["a"]}, bn.BadProgram, "choices"),
        ("a", {"temperature": -1}, bn.BadProgram, "temperature"),
    ],
)
def test_invalid_arguments_are_refused(prompt: Any, params: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        complete(bn.Mock("x"), prompt, params)
    assert complete(bn.Mock("x"), "a", {"skip_special_tokens": True})["text"] == "x"  # type: ignore[call-overload]


def test_script_error_is_raised() -> None:
    with pytest.raises(bn.ProgramError, match="no luck"):
        complete(bn.Mock(OSError("no luck")), "a", {})
