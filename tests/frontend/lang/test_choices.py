"""Choices and the methods that score them."""

from __future__ import annotations

import asyncio
import enum
import threading
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

import banyan as bn
from banyan.runtime.protocol.wire import ChoicesMethod


def test_builtin_methods_match_the_wire() -> None:
    builtin = (bn.token_length_normalized, bn.greedy_token_selection, bn.unconditional_likelihood_normalized)
    assert builtin == get_args(ChoicesMethod)
    for method in builtin:
        assert bn.select("x", ["a"], choices_method=method).method == method


@pytest.mark.parametrize("method", ["best", object(), 3, bn.ChoicesSamplingMethod])
def test_unknown_method_is_unsupported(method: Any) -> None:
    with pytest.raises(bn.Unsupported, match="token_length_normalized"):
        bn.select("x", ["a"], choices_method=method)


@pytest.mark.parametrize(
    ("choices", "match"),
    [
        (None, "list of strings"),
        (2, "list of strings"),
        ([], "at least one"),
        ("yes", "list of strings"),
        (["a", ""], "non-empty"),
        (["a", 1], "1"),
        (Literal["a", "b"], r"^choices is .*; write gen\(type=\.\.\.\) for it"),
        (enum.Enum("Pair", ["a", "b"]), r"^choices is .*; write gen\(type=\.\.\.\) for it"),
    ],
)
def test_invalid_choices_are_refused(choices: Any, match: str) -> None:
    with pytest.raises(bn.BadProgram, match=match):
        bn.select("x", choices)


def test_members_of_a_str_enum_are_choices() -> None:
    assert bn.select("x", enum.StrEnum("Pair", ["a", "b"])).choices == ("a", "b")


def test_choices_are_copied() -> None:
    choices = ["a", "b"]
    select = bn.select("x", choices)
    choices.append("c")
    assert select.choices == ("a", "b")


# ---- custom methods ------------------------------------------------------------------------------------------------


class LeastLikely(bn.ChoicesSamplingMethod):
    """Chooses the least likely, unlike every built-in method."""

    def __init__(self, needs_unconditional: bool = False) -> None:
        self.needs_unconditional, self.arguments = needs_unconditional, dict[str, Any]()

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return self.needs_unconditional

    def __call__(self, **arguments: Any) -> bn.ChoicesDecision:
        self.arguments = arguments
        scores = arguments["normalized_prompt_logprobs"]
        return bn.ChoicesDecision(arguments["choices"][scores.index(min(scores))], {"worst": min(scores)})


SCORES = {"red": -0.1, "green": -2.0, "blue": -1.0}


@bn.function
def paint(s: bn.State, method: Any) -> None:
    s += "It is " + bn.select("color", list(SCORES), choices_method=method) + ", " + bn.gen("why")


def test_custom_method_decides() -> None:
    method, mock = LeastLikely(), bn.Mock({"color": SCORES, "why": "so"})
    state = paint.run(method, backend=mock)
    assert state.text() == "It is green, so"
    assert mock.calls[-1].prompt == "It is green, "
    assert state.get_meta_info("color")["worst"] == -2.0
    assert state.get_meta_info("color")["normalized_prompt_logprobs"] == list(SCORES.values())
    assert method.arguments == {
        "choices": list(SCORES),
        "normalized_prompt_logprobs": list(SCORES.values()),
        "input_token_logprobs": [[(score, 0, None)] for score in SCORES.values()],
        "output_token_logprobs": [[], [], []],
        "unconditional_token_logprobs": None,
    }
    assert state.dist("color")["red"] > 0.5, "dist still gives the model's probabilities"


def test_body_does_not_wait_for_the_method() -> None:
    release = threading.Event()

    def slow(choices: list[str], **_: Any) -> str:
        release.wait(30)
        return choices[-1]

    state = paint.run(slow, backend=bn.Mock({"color": SCORES, "why": "so"}))
    release.set()
    assert state["color"] == "blue"


def test_custom_method_decides_in_async_branches() -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> list[str]:
        forks = s.fork(3)
        forks += bn.gen("x", choices=list(SCORES), choices_method=LeastLikely())
        forks.join()
        return await s.value("x")  # type: ignore[no-any-return]

    assert asyncio.run(program.run_async(backend=bn.Mock({"x": SCORES}))).ret_value == ["green"] * 3


def raise_key_error(**_: Any) -> str:
    raise KeyError("oops")


@pytest.mark.parametrize(
    ("method", "match"),
    [
        (raise_key_error, "choices_method of select 'color' raised KeyError: 'oops'"),
        (lambda **_: "black", "it returned 'black', which is not one of red, green, blue"),
        (lambda **_: None, "it returned None"),
    ],
)
def test_failing_method_fails_its_program(method: Any, match: str) -> None:
    with pytest.raises(bn.ProgramError, match=match) as raised:  # by `run`, if the method fails before the body ends
        paint.run(method, backend=bn.Mock({"color": SCORES, "why": "so"}))["why"]
    assert "test_choices.py" in raised.value.line


def test_custom_method_needs_a_backend_with_scores() -> None:
    with pytest.raises(bn.Unsupported, match="needs the scores of the choices"):
        paint.run(LeastLikely(), backend=bn.Mock({"color": "red"}))["color"]


def test_custom_method_takes_no_temperature() -> None:
    with pytest.raises(bn.BadProgram, match="temperature"):
        bn.select("x", ["a"], temperature=0.5, choices_method=LeastLikely())


def test_custom_method_can_be_recorded_and_replayed(tmp_path: Path) -> None:
    with bn.Record(bn.Mock({"color": SCORES, "why": "so"}), tmp_path / "tape") as recorder:
        assert paint.run(LeastLikely(), backend=recorder).text() == "It is green, so"
    assert paint.run(LeastLikely(), backend=bn.Replay(tmp_path / "tape")).text() == "It is green, so"


def test_custom_method_decides_in_a_compiled_program() -> None:
    compiled = bn.compile(paint.bind(method=LeastLikely()))
    assert compiled.run(backend=bn.Mock({"color": SCORES, "why": "so"}))["color"] == "green"


def test_gen_with_choices_accepts_only_select_options() -> None:
    assert bn.gen("x", choices=["a", "b"], return_logprob=True) == bn.select("x", ["a", "b"]), (
        "scores are always reported"
    )
    with pytest.warns(UserWarning, match="ignores max_tokens, stop: a choice is scored") as caught:
        assert bn.gen("x", choices=["a", "b"], max_tokens=4, stop="\n") == bn.select("x", ["a", "b"])
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.raises(bn.BadProgram, match="does not take type, retries: choices are scored"):
        bn.gen("x", choices=["a", "b"], type=int, retries=1)


def test_temperature_none_is_the_default() -> None:
    assert bn.select("x", ["a"], temperature=None).temperature == bn.select("x", ["a"]).temperature  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"seed": 2**70}, {"seed": "a"}, {"seed": 1.5}, {"temperature": "a"}], ids=str)
def test_invalid_option_of_a_select_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(bn.BadProgram, match=next(iter(options))):
        bn.select("x", ["a"], **options)
    with pytest.raises(bn.BadProgram, match=next(iter(options))):
        bn.gen("x", choices=["a"], **options)


def test_a_choice_that_is_listed_twice_counts_once() -> None:
    state = paint_twice.run(backend=bn.Mock({"color": {"red": -1.0, "blue": -1.0}}))
    assert state["color"] == "red"
    assert state.get_meta_info("color")["weights"] == [1.0, 0.0, 0.0]
    assert state.get_meta_info("color")["normalized_prompt_logprobs"] == [-1.0, -1.0, -1.0]
    assert state.dist("color") == {"red": 0.5, "blue": 0.5}
    method = LeastLikely()
    state = paint_twice.run(method, backend=bn.Mock({"color": {"red": -2.0, "blue": -1.0}}))
    assert state["color"] == "red"
    assert method.arguments["choices"] == ["red", "blue", "red"]
    assert state.get_meta_info("color")["weights"] == [1.0, 0.0, 0.0]


@bn.function
def paint_twice(s: bn.State, method: Any = bn.token_length_normalized) -> None:
    s += "It is " + bn.select("color", ["red", "blue", "red"], choices_method=method)
