"""`separate_reasoning` splits thoughts from the answer in variables, prompt, messages and streams."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.protocol import wire

OUTPUTS = {"x": "<think>\nhm\n</think>\n\nyes \n", "y": "<think>more</think>no", "z": "plain </think>"}


@bn.function
def program(s: bn.State) -> None:
    s += bn.user("Q")
    s += bn.separate_reasoning(bn.assistant("A: " + bn.gen("x") + f", and {bn.gen('y')}!"), model_type="qwen3")
    s += bn.user("R") + bn.assistant(bn.separate_reasoning(bn.gen("z")))


TEXT = (
    "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA: yes, and no!<|im_end|>\n"
    "<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\nplain </think><|im_end|>\n"
)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_separated_in_gens_with_constants_and_roles(stream: bool) -> None:
    state = program.run(backend=bn.Mock(OUTPUTS), stream=stream)
    assert "".join(state.text_iter()) == state.text() == TEXT
    assert (state["x"], state["x_reasoning_content"]) == ("yes", "hm\n")
    assert (state["y"], state["y_reasoning_content"]) == ("no", "more")
    assert (state["z"], state["z_reasoning_content"]) == ("plain </think>", "")
    assert "".join(state.text_iter("x")) == "yes"
    assert "".join(state.text_iter("x_reasoning_content")) == "hm\n"
    assert state.messages()[1]["content"] == "A: yes, and no!"
    assert "x_reasoning_content" in state
    assert state.error() is None


@pytest.mark.parametrize("output", ["<th", "<think>hm</thi"])
def test_a_stream_ends_with_what_might_have_been_a_mark(output: str) -> None:
    @bn.function
    def ask(s: bn.State) -> None:
        s += bn.separate_reasoning(bn.gen("x"), model_type="qwen3")

    state = ask.run(backend=bn.Mock(output), stream=True)
    assert "".join(state.text_iter("x")) == state["x"]
    assert "".join(state.text_iter("x_reasoning_content")) == state["x_reasoning_content"]


def test_reasoning_is_separated_in_samples_and_branches() -> None:
    outputs = iter(f"<think>{k}</think>{-k}" for k in range(9))

    @bn.function
    def several(s: bn.State) -> None:
        s += bn.separate_reasoning(bn.gen("x", n=2))
        forks = s.fork(2)
        forks += bn.separate_reasoning(bn.gen("y"))
        forks.join()

    state = several.run(backend=bn.Mock(lambda prompt, name: next(outputs)))
    assert (state["x"], state["x_reasoning_content"]) == (["0", "-1"], ["0", "1"])
    assert (state["y"], state["y_reasoning_content"]) == (["-2", "-3"], ["2", "3"])


def test_reasoning_and_answer_are_streamed() -> None:
    outputs = {"x": "<think>\nwell, let me see \n</think>\n\nit is so", "y": "no", "z": "no"}
    state = program.run(backend=bn.Mock(outputs), stream=True)
    assert list(state.text_iter("x_reasoning_content")) == ["well,", " let", " me", " see", " \n"]
    assert list(state.text_iter("x")) == ["it", " is", " so"]
    assert "".join(state.text_iter()) == state.text()
    with bn.stream(program, backend=bn.Mock(outputs)) as run:
        tokens = [e for e in run.events() if isinstance(e, bn.Token) and e.name == "x"]
    assert "".join(e.text for e in tokens if e.is_thought) == "well, let me see \n"
    assert "".join(e.text for e in tokens if not e.is_thought) == "it is so"
    assert tokens[0].is_thought

    async def follow() -> list[tuple[str, bool]]:
        state = await program.run_async(backend=bn.Mock(outputs), stream=True)
        pairs = state.text_async_iter("x_reasoning_content", return_meta_data=True)
        return [(text, meta["finish_reason"] is None) async for text, meta in pairs]

    assert asyncio.run(follow())[-2:] == [(" \n", True), ("", False)]


def test_replay_keeps_the_reasoning(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with bn.Record(bn.Mock(OUTPUTS), path) as recorder:
        first = program.run(backend=recorder, stream=True)
        first.sync()
    replayed = program.run(backend=bn.Replay(path), stream=True)
    for name in ("x", "x_reasoning_content", "y", "y_reasoning_content", "z"):
        assert replayed[name] == first[name]
        assert list(replayed.text_iter(name)) == list(first.text_iter(name))
    plain = program.run(backend=bn.Replay(path))
    assert plain["x_reasoning_content"] == "hm\n"


def test_reasoning_is_separated_in_async_programs() -> None:
    async def main() -> list[str]:
        state = await program.run_async(backend=bn.Mock(OUTPUTS), stream=True)
        pieces = [piece async for piece in state.text_async_iter("x_reasoning_content")]
        return [*pieces, await state.value("y_reasoning_content")]

    assert asyncio.run(main()) == ["hm", "\n", "more"]


def test_type_constrains_only_the_answer() -> None:
    mock = bn.Mock("<think>2 and 2</think>4")
    state = bn.function(lambda s: s.__iadd__(bn.separate_reasoning(bn.gen("x", type=list[int])))).run(backend=mock)
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert op.sampling.constraint is not None
    assert op.sampling.constraint.after == ("</think>",)
    assert op.reasoning == wire.Reasoning()
    with pytest.raises(bn.BadOutput):
        state.value("x")
    assert state["x"] == "4"


@pytest.mark.parametrize("options", [{"type": int}, {"dtype": int}, {"type": float}, {"dtype": "float"}], ids=str)
def test_number_does_not_stop_the_reasoning(options: dict[str, Any]) -> None:
    mock = bn.Mock("<think>I add 2 and 3.</think>\n\n5\n")
    state = bn.function(lambda s: s.__iadd__(bn.separate_reasoning(bn.gen("x", **options)))).run(backend=mock)
    assert (state.value("x"), state["x_reasoning_content"]) == (5, "I add 2 and 3.")
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert op.sampling.stop == ()


def test_model_that_always_reasons_needs_no_opening_mark() -> None:
    s = bn.function(lambda s: s.__iadd__(bn.separate_reasoning(bn.gen("x"), "deepseek-r1")))
    assert s.run(backend=bn.Mock("hm</think>yes"))["x"] == "yes"
    assert s.run(backend=bn.Mock("hm"))["x_reasoning_content"] == "hm"


OUTPUTS_BY_FORMAT = {
    "apertus2509": "<|inner_prefix|>hm<|inner_suffix|>yes",
    "beam": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes",
    "cohere_command4": "hm<|END_THINKING|><|START_TEXT|>yes<|END_TEXT|>",
    "gemma4": "<|channel>thought\nhm<channel|>yes",
    "gpt-oss": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes",
    "inkling": "<|content_thinking|>hm<|end_message|><|message_model|><|content_text|>yes<|end_message|>",
    "k2_horizon": "hm</ifm|think>yes",
    "kimi": "◁think▷hm◁/think▷yes",
    "kimi_k3": "hm<|close|>think<|sep|><|open|>response<|sep|>yes<|close|>response<|sep|><|close|>message<|sep|>",
    "minimax-m3": "<mm:think>hm</mm:think>yes",
    "mistral": "[THINK]hm[/THINK]yes",
    "muse": " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>yes<|eot|>",
    **dict.fromkeys(("deepseek-r1", "gigachat35", "iquest_q1", "minimax", "minimax-append-think"), "hm</think>yes"),
    **dict.fromkeys(("qwen3-thinking", "step3", "step3p5"), "hm</think>yes"),
    **dict.fromkeys(("deepseek-v3", "deepseek-v4", "deepseek-v41", "dots", "glm45"), "<think>hm</think>yes"),
    **dict.fromkeys(("granite_thinking_parser", "hunyuan", "interns1", "kimi_k2"), "<think>hm</think>yes"),
    **dict.fromkeys(("ling3", "mimo", "nanbeige", "nemotron_3", "poolside_v1", "qwen3"), "<think>hm</think>yes"),
}
"""Name of a format in SGLang 0.5.23 -> what a model of that format writes."""


@pytest.mark.parametrize("name", OUTPUTS_BY_FORMAT)
def test_each_format_of_sglang_is_separated(name: str) -> None:
    s = bn.function(lambda s: s.__iadd__(bn.separate_reasoning(bn.gen("x"), name)))
    state = s.run(backend=bn.Mock(OUTPUTS_BY_FORMAT[name]))
    assert (state["x"], state["x_reasoning_content"]) == ("yes", "hm")


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("gpt-oss", "<|channel|>final<|message|>yes"),
        ("muse", " to=user<|message|>yes<|eot|>"),
        ("cohere_command4", "<|START_TEXT|>yes<|END_TEXT|>"),
        ("inkling", "<|content_text|>yes<|end_message|>"),
        ("qwen3", "yes"),
    ],
)
def test_an_answer_without_reasoning_loses_its_marks(name: str, output: str) -> None:
    s = bn.function(lambda s: s.__iadd__(bn.separate_reasoning(bn.gen("x"), name)))
    state = s.run(backend=bn.Mock(output), stream=True)
    assert "".join(state.text_iter("x")) == state["x"] == "yes"
    assert state["x_reasoning_content"] == ""


def test_unknown_model_and_unnamed_gen_are_refused() -> None:
    for name in ("gpt-5", "response_template"):  # SGLang reads the second one's marks off the tokenizer
        with pytest.raises(bn.Unsupported, match=rf"unknown model_type '{name}'; choose one of .*qwen3"):
            bn.separate_reasoning(bn.gen("x"), name)
    with pytest.raises(bn.BadProgram, match="a gen that has a name"):
        bn.separate_reasoning("text")
    assert bn.separate_reasoning().parts == ()
