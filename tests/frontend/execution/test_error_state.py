"""What a run raises carries the run's state and the calls so far."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import banyan as bn


@bn.function
def breaks(s: Any, question: str = "Which dog?") -> None:
    s += bn.user(question) + bn.assistant(bn.gen("name"))
    if s["name"] == "Rex":
        raise ValueError("my bug")


async def breaks_async(s: Any) -> None:
    s += bn.user("Which dog?") + bn.assistant(bn.gen("name"))
    raise ValueError(await s.value("name"))


def run_async(program: Any) -> Any:
    return asyncio.run(program.run_async(backend=bn.Mock("Rex")))


WAYS: dict[str, Callable[[], Any]] = {
    "run": lambda: breaks.run(backend=bn.Mock("Rex")),
    "run_async": lambda: run_async(breaks),
    "async def": lambda: run_async(bn.function(breaks_async)),
    "batch": lambda: list(breaks.run_batch([{}], backend=bn.Mock("Rex"), generator_style=True)),
}


@pytest.mark.parametrize("way", WAYS)
def test_error_of_a_body_carries_the_state_and_its_calls(way: str) -> None:
    with pytest.raises(ValueError, match=r"my bug|Rex") as raised:
        WAYS[way]()
    error: Any = raised.value
    assert [gen.name for gen in error.state.usage.gens] == ["name"]
    assert "Rex" in str(error.state)
    (note,) = error.__notes__
    program, call = note.splitlines()
    assert "error.state" in program
    assert call.startswith("  name = 'Rex' [test_error_state.py:")


def test_batch_error_has_the_state_of_each_item() -> None:
    with pytest.raises(bn.BatchError) as raised:
        breaks.run_batch([{}], backend=bn.Mock("Rex"))
    error: Any = raised.value.errors[0]
    assert error.state["name"] == "Rex"


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    why: str


class OwnStateError(Exception):
    @property
    def state(self) -> None:
        """Cannot be set."""


@pytest.mark.parametrize("error", [FrozenError("bug"), OwnStateError()], ids=lambda error: type(error).__name__)
def test_error_that_refuses_attributes_is_raised_as_it_is(error: Exception) -> None:
    @bn.function
    def fails(s: bn.State, good: bool = False) -> None:
        s += "x" + bn.gen("a")
        if not good:
            raise error

    with pytest.raises(type(error)) as raised:
        fails.run(backend=bn.Mock("Rex"))
    assert raised.value is error
    with pytest.raises(type(error)) as raised:
        run_async(fails)
    assert raised.value is error
    with pytest.raises(bn.BatchError) as failed:
        fails.run_batch([{"good": True}, {}], backend=bn.Mock("Rex"))
    assert failed.value.errors == {1: error}
    assert failed.value.results[0]["a"] == "Rex"


def test_error_of_a_gen_carries_the_state() -> None:
    @bn.function
    def asks(s: Any) -> None:
        s += bn.gen("first") + "." + bn.gen("second")
        s.sync()

    with pytest.raises(bn.ProgramError) as raised:
        asks.run(backend=bn.Mock(["1"]))
    assert raised.value.state["first"] == "1"
    assert str(raised.value.state) == "1.[second failed]"
    assert "\n  first = '1' [" in raised.value.__notes__[0]
    assert "\n  second failed [" in raised.value.__notes__[0]


@bn.function
def second_fails(s: bn.State) -> None:
    s += bn.assistant(bn.gen("first") + "." + bn.gen("second", type=list[int]))


LATER_READS: dict[str, Callable[[bn.State], Any]] = {
    "a variable": lambda s: s["second"],
    "a variable that is not set": lambda s: s["third"],
    "value": lambda s: s.value("second"),
    "get_meta_info": lambda s: s.get_meta_info("second"),
    "text": lambda s: s.text(),
    "messages": lambda s: s.messages(),
    "sync": lambda s: s.sync(),
    "text_iter": lambda s: list(s.text_iter()),
    "partials": lambda s: list(s.partials("second")),
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("read", LATER_READS)
def test_error_of_a_later_read_carries_the_state(read: str, is_streamed: bool) -> None:
    state = second_fails.run(backend=bn.Mock(["1"]), stream=is_streamed)
    with pytest.raises(bn.ProgramError) as raised:
        LATER_READS[read](state)
    assert raised.value.state is state
    assert "1.[second failed]" in str(raised.value.state)
    (note,) = raised.value.__notes__
    assert "second failed [test_error_state.py:" in note


@pytest.mark.parametrize("is_streamed", [False, True])
def test_str_shows_what_is_known_also_as_the_first_read(is_streamed: bool) -> None:
    state = second_fails.run(backend=bn.Mock(["1"]), stream=is_streamed)
    assert str(state) == f"{state}" == "<|im_start|>assistant\n1.[second failed]<|im_end|>\n"


def test_str_raises_in_the_body_whose_prompt_may_take_it() -> None:
    @bn.function
    def quotes_itself(s: bn.State) -> None:
        s += bn.gen("first") + bn.gen("second")
        s += f"So far: {s}"

    with pytest.raises(bn.ProgramError, match="script"):
        quotes_itself.run(backend=bn.Mock(["1"]))


def test_str_of_a_stream_shows_the_start_of_an_unfinished_output() -> None:
    slow = bn.Mock(["1", str([2] * 100)], latency=lambda call: 10 * (call.op.name == "second"))
    state = second_fails.run(backend=slow, stream=True)
    assert next(state.text_iter("second")) == "[2, "
    state.cancel()
    assert "1.[2, " in str(state)
    assert "[second was stopped]" in str(state)


def test_str_waits_also_after_the_error_of_a_later_read() -> None:
    state = second_fails.run(backend=bn.Mock(["1", "[2]"], latency=0.1))
    with pytest.raises(bn.UnknownVariable):
        state["third"]
    assert "1.[2]<" in str(state)


def test_the_inner_of_two_runs_is_named() -> None:
    @bn.function
    def outer(s: Any) -> None:
        breaks.run(backend=bn.Mock("Rex"))

    with pytest.raises(ValueError, match="my bug") as raised:
        outer.run(backend=bn.Mock("unused"))
    assert "program breaks" in raised.value.__notes__[0]
    assert len(raised.value.__notes__) == 1


def test_note_shows_the_last_calls_and_the_start_of_their_texts() -> None:
    @bn.function
    def talks(s: Any) -> None:
        for i in range(20):
            s += bn.gen(f"x{i}")
        s.sync()
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError) as raised:
        talks.run(backend=bn.Mock("a" * 100))
    head, *calls = raised.value.__notes__[0].splitlines()
    assert head.endswith("the last 8 of 20 calls:")
    assert [call.split()[0] for call in calls] == [f"x{i}" for i in range(12, 20)]
    assert f"'{'a' * 60}'..." in calls[0]


def test_error_with_a_state_can_be_sent_to_another_process() -> None:
    with pytest.raises(ValueError, match="my bug") as raised:
        breaks.run(backend=bn.Mock("Rex"))
    copy = pickle.loads(pickle.dumps(raised.value))
    assert repr(copy.state) == str(copy.state) == "<State of program breaks, variables: name>"
    for read in (lambda: copy.state["name"], lambda: copy.state.text()):
        with pytest.raises(bn.BadProgram, match="a state cannot leave its process"):
            read()
    assert not hasattr(copy.state, "_repr_html_")
    assert repr(pickle.loads(pickle.dumps(copy.state))) == repr(copy.state)
