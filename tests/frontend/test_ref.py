"""What is told of a value: its text, all its samples, and how it came about."""

from __future__ import annotations

from typing import Any

import pytest

import banyan as bn
from banyan.runtime import wire


def run(sample: wire.Sample, **options: Any) -> bn.State:
    @bn.function
    def program(s: bn.State) -> None:
        s += "prompt" + bn.gen("x", **options)
        s["set"] = 1

    return program.run(backend=bn.Mock(lambda prompt, name: sample))


def test_with_n_samples_the_variable_is_a_list_and_the_prompt_goes_on_with_the_first() -> None:
    backend = bn.Mock(["one", "two", "three"])

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("U") + bn.assistant(bn.gen("x", n=3))
        s += s.ref("x")

    state = program.run(backend=backend)
    assert state["x"] == ["one", "two", "three"]
    assert state.text().endswith("assistant\none<|im_end|>\none")
    assert state.messages()[1]["content"] == "one"
    assert [meta["finish_reason"]["type"] for meta in state.get_meta_info("x")] == ["stop"] * 3
    assert list(state.text_iter("x")) == ["one"]


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (wire.Sample("t", "stop", matched=".", n_tokens=3), {"type": "stop", "matched": "."}),
        (wire.Sample("t", "stop", matched=7, n_tokens=3), {"type": "stop", "matched": 7}),
        (wire.Sample("t", "length", n_tokens=3), {"type": "length", "length": 3}),
    ],
)
def test_meta_info_of_a_gen(sample: wire.Sample, reason: dict[str, Any]) -> None:
    state = run(sample)
    assert state.get_meta_info("x") == {
        "finish_reason": reason,
        "prompt_tokens": 0,
        "completion_tokens": 3,
        "cached_tokens": 0,
    }
    assert state.get_meta_info("set") is None
    with pytest.raises(bn.UnknownVariable):
        state.get_meta_info("y")


LOGPROBS = (wire.TokenLogprob(5, "t", -0.5, ((5, "t", -0.5), (6, "u", -1.5))),)


@pytest.mark.parametrize("with_text", [False, True])
def test_logprobs(with_text: bool) -> None:
    state = run(
        wire.Sample("t", "stop", logprobs=LOGPROBS),
        return_logprob=True,
        top_logprobs_num=2,
        return_text_in_logprobs=with_text,
    )
    t, u = ("t", "u") if with_text else (None, None)
    meta = state.get_meta_info("x")
    assert meta["output_token_logprobs"] == [(-0.5, 5, t)]
    assert meta["output_top_logprobs"] == [[(-0.5, 5, t), (-1.5, 6, u)]]


def test_logprobs_are_asked_for() -> None:
    backend = bn.Mock("x")

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("x", max_tokens=0, top_logprobs_num=4)

    program.run(return_logprob=True, return_text_in_logprobs=True, backend=backend)
    assert isinstance(op := backend.calls[0].op, wire.Gen)
    assert (op.sampling.logprobs, op.sampling.top_logprobs, op.sampling.max_tokens) == (True, 4, 0)


def test_meta_info_of_a_select() -> None:
    scores = wire.Scores((-1.0, -2.0), (((-1.0, 3),), ((-2.0, 4),)), (1.0, 0.0), (((-3.0, 3),), ((-4.0, 4),)))

    class Scoring(bn.Mock):
        def program(self, name: str = "") -> Any:
            made = super().program(name)
            made.submit = lambda ops, last=False: made.future(0).set_result(
                wire.Value(0, 0, 0, (wire.Sample("a", "stop"),), scores=scores)
            )
            return made

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.select("x", ["a", "b"])

    state = program.run(backend=Scoring())
    assert state["x"] == "a"
    assert state.get_meta_info("x") == {
        "normalized_prompt_logprobs": [-1.0, -2.0],
        "input_token_logprobs": [[(-1.0, 3, None)], [(-2.0, 4, None)]],
        "weights": [1.0, 0.0],
        "unconditional_token_logprobs": [[(-3.0, 3, None)], [(-4.0, 4, None)]],
    }
