"""Choices and the ways to score them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, get_args

import pytest

import banyan as bn
from banyan.runtime.protocol.wire import ChoicesMethod


def test_the_methods_are_those_of_the_wire() -> None:
    ours = (bn.token_length_normalized, bn.greedy_token_selection, bn.unconditional_likelihood_normalized)
    assert ours == get_args(ChoicesMethod)
    for method in ours:
        assert bn.select("x", ["a"], choices_method=method).method == method


@pytest.mark.parametrize("method", ["best", object(), 3, bn.ChoicesSamplingMethod])
def test_another_method_is_unsupported(method: Any) -> None:
    with pytest.raises(bn.Unsupported, match="token_length_normalized"):
        bn.select("x", ["a"], choices_method=method)


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        (None, "list of strings"),
        ([], "at least one"),
        ("yes", "list of strings"),
        (["a", ""], "non-empty"),
        (["a", 1], "1"),
        (["a", "b", "a"], "'a' is in the list twice"),
    ],
)
def test_choices_that_cannot_be(choices: Any, why: str) -> None:
    with pytest.raises(bn.BadProgram, match=why):
        bn.select("x", choices)


def test_choices_are_copied() -> None:
    choices = ["a", "b"]
    select = bn.select("x", choices)
    choices.append("c")
    assert select.choices == ("a", "b")


# ---- methods of one's own ------------------------------------------------------------------------------------------


class Worst(bn.ChoicesSamplingMethod):
    """The least likely, to be told from all that ships."""

    def __init__(self, wants: bool = False) -> None:
        self.wants, self.told = wants, dict[str, Any]()

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return self.wants

    def __call__(self, **told: Any) -> bn.ChoicesDecision:
        self.told = told
        scores = told["normalized_prompt_logprobs"]
        return bn.ChoicesDecision(told["choices"][scores.index(min(scores))], {"worst": min(scores)})


SCORES = {"red": -0.1, "green": -2.0, "blue": -1.0}


@bn.function
def paint(s: bn.State, method: Any) -> None:
    s += "It is " + bn.select("color", list(SCORES), choices_method=method) + ", " + bn.gen("why")


def test_a_method_of_ones_own_decides() -> None:
    method, mock = Worst(), bn.Mock({"color": SCORES, "why": "so"})
    state = paint.run(method, backend=mock)
    assert state.text() == "It is green, so"
    assert mock.calls[-1].prompt == "It is green, "
    assert state.get_meta_info("color")["worst"] == -2.0
    assert state.get_meta_info("color")["normalized_prompt_logprobs"] == list(SCORES.values())
    assert method.told == {
        "choices": list(SCORES),
        "normalized_prompt_logprobs": list(SCORES.values()),
        "input_token_logprobs": [[(score, 0, None)] for score in SCORES.values()],
        "output_token_logprobs": [[], [], []],
        "unconditional_token_logprobs": None,
    }
    assert state.dist("color")["red"] > 0.5, "what the model thinks is another matter"


def test_the_body_does_not_wait_for_it() -> None:
    go = threading.Event()

    def slow(choices: list[str], **_: Any) -> str:
        go.wait(30)
        return choices[-1]

    state = paint.run(slow, backend=bn.Mock({"color": SCORES, "why": "so"}))
    go.set()
    assert state["color"] == "blue"


def test_on_an_event_loop_and_in_branches() -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> list[str]:
        forks = s.fork(3)
        forks += bn.gen("x", choices=list(SCORES), choices_method=Worst())
        forks.join()
        return await s.value("x")  # type: ignore[no-any-return]

    assert asyncio.run(program.run_async(backend=bn.Mock({"x": SCORES}))).ret_value == ["green"] * 3


def broken(**_: Any) -> str:
    raise KeyError("oops")


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (broken, "choices_method of select 'color' raised KeyError: 'oops'"),
        (lambda **_: "black", "it returned 'black', which is not one of red, green, blue"),
        (lambda **_: None, "it returned None"),
    ],
)
def test_a_method_that_fails_fails_its_program(method: Any, why: str) -> None:
    state = paint.run(method, backend=bn.Mock({"color": SCORES, "why": "so"}))
    with pytest.raises(bn.ProgramError, match=why) as raised:
        state["why"]
    assert "test_choices.py" in raised.value.line


def test_a_backend_that_tells_no_scores_is_no_place_for_it() -> None:
    with pytest.raises(bn.Unsupported, match="chooses without telling"):
        paint.run(Worst(), backend=bn.Mock({"color": "red"}))["color"]


def test_it_takes_no_temperature() -> None:
    with pytest.raises(bn.BadProgram, match="temperature"):
        bn.select("x", ["a"], temperature=0.5, choices_method=Worst())


def test_a_recording_of_it(tmp_path: Path) -> None:
    with bn.Record(bn.Mock({"color": SCORES, "why": "so"}), tmp_path / "tape") as recorder:
        assert paint.run(Worst(), backend=recorder).text() == "It is green, so"
    assert paint.run(Worst(), backend=bn.Replay(tmp_path / "tape")).text() == "It is green, so"


def test_compiled_it_runs_all_the_same() -> None:
    compiled = bn.compile(paint.bind(method=Worst()))
    assert compiled.run(backend=bn.Mock({"color": SCORES, "why": "so"}))["color"] == "green"


def test_gen_with_choices_takes_what_a_choice_has_a_use_for() -> None:
    assert bn.gen("x", choices=["a", "b"], return_logprob=True) == bn.select("x", ["a", "b"]), "they are told anyway"
    with pytest.raises(bn.BadProgram, match="takes no max_tokens, stop: a choice is scored"):
        bn.gen("x", choices=["a", "b"], max_tokens=4, stop="\n")
