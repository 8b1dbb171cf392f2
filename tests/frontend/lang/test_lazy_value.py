"""Values of gens and selects: text, samples and meta info."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

import banyan as bn
from banyan.runtime.protocol import wire


def run(sample: wire.Sample, options: Any = None, **run_options: Any) -> bn.State:
    @bn.function
    def program(s: bn.State) -> None:
        s += "prompt" + bn.gen("x", **options or {})
        s["set"] = 1

    return program.run(backend=bn.Mock(lambda prompt, name: sample), **run_options)


def test_samples_are_a_list_and_the_prompt_continues_with_the_first() -> None:
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


def test_conditions_on_a_text_that_may_not_be_known_are_refused() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "prompt" + bn.gen("x")
        ref = s.ref("x")
        assert ref in [s, ref]
        for condition in (
            lambda: ref == "7", lambda: ref != 7, lambda: ref in ("7", "8"),
            lambda: ref in {"7", "8"}, lambda: {"7": 1}.get(ref), lambda: {ref: 1},  # type: ignore[call-overload]
        ):  # fmt: skip
            with pytest.raises(bn.BadProgram, match=r"s\['x'\] waits for it"):
                condition()

    program.run(backend=bn.Mock(["7"]))


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (wire.Sample("t", "stop", matched=".", n_tokens=3), {"type": "stop", "matched": "."}),
        (wire.Sample("t", "stop", matched=7, n_tokens=3), {"type": "stop", "matched": 7}),
        (wire.Sample("t", "length", n_tokens=3), {"type": "length", "length": 3}),
    ],
)
def test_gen_meta_info_holds_reason_tokens_and_times(sample: wire.Sample, reason: dict[str, Any]) -> None:
    state = run(sample)
    meta = state.get_meta_info("x")
    assert 0 <= meta.pop("time_to_first_token") <= meta.pop("e2e_latency") < 60
    assert meta.pop("id").endswith("-0-0"), "program, value, sample"
    assert meta == {
        "finish_reason": reason,
        "prompt_tokens": 0,
        "completion_tokens": 3,
        "cached_tokens": 0,
        "drafts": {},
        "spec_verify_ct": 0,
    }
    assert state.get_meta_info("set") is None
    with pytest.raises(bn.UnknownVariable):
        state.get_meta_info("y")


LOGPROBS = (wire.TokenLogprob(5, "t", -0.5, ((5, "t", -0.5), (6, "u", -1.5))),)


@pytest.mark.parametrize("with_text", [False, True])
def test_meta_info_holds_logprobs(with_text: bool) -> None:
    options = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": with_text}
    sample = wire.Sample("t", "stop", logprobs=LOGPROBS)
    t, u = ("t", "u") if with_text else (None, None)
    for state in (run(sample, options), run(sample, **options)):
        meta = state.get_meta_info("x")
        assert meta["output_token_logprobs"] == [(-0.5, 5, t)]
        assert meta["output_top_logprobs"] == [[(-0.5, 5, t), (-1.5, 6, u)]]


def meta_info_of(value: wire.Value, *expr: Any) -> dict[str, Any]:
    """Return the meta info of x for a backend that returns `value`."""

    class FixedMock(bn.Mock):
        def program(self, name: str = "") -> Any:
            program = super().program(name)
            program.submit = lambda ops, last=False: program.future(0).set_result(value)
            return program

    state = bn.function(lambda s: s.__iadd__(list(expr))).run(backend=FixedMock())
    meta: dict[str, Any] = state.get_meta_info("x")
    return meta


def test_meta_info_holds_drafts_and_prompt_logprobs() -> None:
    prompt = (wire.TokenLogprob(3, "a", math.nan), wire.TokenLogprob(4, "b", -1.0, ((5, "c", -0.5), (4, "b", -1.0))))
    usage = wire.TokenUsage(prompt=2, cached=1, generated=9, drafted=8, accepted=5)
    times = wire.Times(ready=2.0, first=2.5, ended=3.5)
    sample = wire.Sample("t", "stop", n_tokens=9, drafts={"tree": (8, 5)})
    value = wire.Value(7, 0, 0, (sample,), usage, times=times, prompt=prompt)
    meta = meta_info_of(value, "p", bn.gen("x", return_logprob=True, logprob_start_len=0, return_text_in_logprobs=True))
    assert (meta["id"], meta["spec_verify_ct"]) == ("7-0-0", 4)
    assert meta["drafts"] == {"tree": {"drafted": 8, "accepted": 5}}
    assert (meta["time_to_first_token"], meta["e2e_latency"]) == (0.5, 1.5)
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (2, 1, 9)
    assert meta["input_token_logprobs"] == [(None, 3, "a"), (-1.0, 4, "b")]
    assert meta["input_top_logprobs"] == [None, [(-0.5, 5, "c"), (-1.0, 4, "b")]]


SCORES = wire.Scores(
    (-1.5, -2.0), (((-1.0, 3), (-2.0, 5)), ((-2.0, 4),)), (1.0, 0.0), (((-3.0, 3), (-3.0, 5)), ((-4.0, 4),))
)


def test_select_meta_info_holds_scores() -> None:
    times, usage = wire.Times(ready=1.0, ended=3.0), wire.TokenUsage(7, 4)
    value = wire.Value(7, 0, 0, (wire.Sample("a", "stop", n_tokens=1),), usage, SCORES, times)
    common = {
        "id": "7-0-0",
        "finish_reason": {"type": "stop"},
        "prompt_tokens": 7,
        "completion_tokens": 0,
        "cached_tokens": 4,
        "time_to_first_token": 2.0,
        "e2e_latency": 2.0,
    }
    assert meta_info_of(value, bn.select("x", ["a", "b"])) == common | {
        "normalized_prompt_logprobs": [-1.5, -2.0],
        "input_token_logprobs": [[(-1.0, 3, None), (-2.0, 5, None)], [(-2.0, 4, None)]],
        "output_token_logprobs": [[], []],
        "weights": [1.0, 0.0],
        "unconditional_token_logprobs": [[(-3.0, 3, None), (-3.0, 5, None)], [(-4.0, 4, None)]],
        "normalized_unconditional_prompt_logprobs": [1.5, 2.0],
    }
    greedy = meta_info_of(value, bn.select("x", ["a", "b"], choices_method=bn.greedy_token_selection))
    assert greedy["greedy_logprob_matrix"] == [[-1.0, -2.0], [-2.0, -2.0]]
    without_scores = meta_info_of(replace(value, scores=None), bn.select("x", ["a", "b"]))
    names = ("normalized_prompt_logprobs", "input_token_logprobs", "output_token_logprobs", "weights")
    assert without_scores == common | dict.fromkeys(names)


EMPTY = wire.Sample("", "stop", matched=2)


@pytest.mark.parametrize(
    ("samples", "options"),
    [
        ((EMPTY,), {}),
        ((EMPTY,), {"top_logprobs_num": 3}),
        ((EMPTY,), {"logprob_start_len": 0}),
        ((EMPTY,), {"type": int, "retries": 2}),
        ((wire.Sample("t", "length", n_tokens=1, logprobs=LOGPROBS), EMPTY), {"n": 2}),
        ((wire.Sample("", "length", logprobs=LOGPROBS),), {"max_tokens": 0}),
    ],
)
def test_meta_info_has_the_same_keys_however_a_gen_ends(
    samples: tuple[wire.Sample, ...], options: dict[str, Any]
) -> None:
    value = wire.Value(0, 0, 0, samples, times=wire.Times(ready=1.0, ended=2.0))
    keys = {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "time_to_first_token"}
    keys |= {"e2e_latency", "drafts", "spec_verify_ct"} | ({"rounds"} if "retries" in options else set())
    plain = meta_info_of(value, "p", bn.gen("x", **{k: v for k, v in options.items() if "logprob" not in k}))
    assert [set(meta) for meta in as_list(plain)] == [keys] * len(samples)
    keys |= {"output_token_logprobs", "output_top_logprobs", "input_token_logprobs", "input_top_logprobs"}
    keys |= {"output_token_logprobs_length"}
    metas = as_list(meta_info_of(value, "p", bn.gen("x", return_logprob=True, **options)))
    assert [set(meta) for meta in metas] == [keys] * len(samples)
    for sample, meta in zip(samples, metas, strict=True):
        assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == len(sample.logprobs)
        assert meta["output_token_logprobs_length"] == len(sample.logprobs)
        assert (meta["time_to_first_token"], meta["e2e_latency"]) == (1.0, 1.0), "there was no first token"


def as_list(meta: Any) -> list[dict[str, Any]]:
    return meta if isinstance(meta, list) else [meta]


def test_joined_values_are_read_as_a_list_of_a_type() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        for branch in forks:
            inner = branch.fork(2)
            inner += bn.gen("b")
            inner.join()
        forks += bn.gen("a")
        for i, branch in enumerate(forks):
            branch["set"] = i
        forks.join()

    state = program.run(backend=bn.Mock({"a": ["1", "2"], "b": ["3", "4", "5", "6"]}))
    assert state.value("a", list[int]) == [int(text) for text in state["a"]]
    assert state.value("a", list[str]) == state.value("a", list) == state.value("a") == state["a"]
    assert sorted(x for inner in state.value("b", list[list[int]]) for x in inner) == [3, 4, 5, 6]
    assert state.value("set", list[int]) == [0, 1]
    for kind in (int, tuple[int, int], dict[str, int]):
        with pytest.raises(bn.BadProgram, match=r"holds the values of 2 branches; read it as list\[...\]"):
            state.value("a", kind)
    with pytest.raises(bn.ForkError, match=r"branch 0 failed: not a valid bool"):
        state.value("a", list[bool])


def test_error_holds_usage_and_attempts() -> None:
    answers = {"a": wire.Sample("x", "stop", n_tokens=7), "b": ["no", "no, again"]}

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a") + bn.gen("b", type=list[int], retries=1) + bn.gen("c")

    state = program.run(backend=bn.Mock(answers))
    with pytest.raises(bn.BadOutput, match="model was told 1 times") as raised:
        state.value("b")
    assert raised.value.attempts == 2
    assert raised.value.usage.generated == 7 + 1 + 2  # words
    with pytest.raises(bn.ProgramError) as other:
        state["c"]
    assert (other.value.attempts, other.value.usage.generated) == (1, 10)
