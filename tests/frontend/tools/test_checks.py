"""Retries: an invalid output is reported to the model and generated again; only the last one stays in the prompt."""

from __future__ import annotations

import asyncio

import pydantic
import pytest

import banyan as bn
from banyan.runtime.protocol import wire


class Even(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("n must be even")
        return n


@bn.function
def ask(s: bn.State, retries: int) -> Even:
    s += bn.user("Q")
    s += bn.assistant("A: " + bn.gen("x", type=Even, retries=retries) + ".")
    s += bn.user(s.ref("x"))
    return s.value("x")  # type: ignore[no-any-return]


TEXT = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA: {0}.<|im_end|>\n<|im_start|>user\n{0}<|im_end|>\n"


def test_invalid_output_is_retried_until_valid() -> None:
    mock = bn.Mock(['{"n": 1}', '{"n": 3}', '{"n": 4}'])
    state = ask.run(5, backend=mock)
    assert state.ret_value == Even(n=4)
    assert state.text() == TEXT.format('{"n": 4}')
    assert [message["content"] for message in state.messages()] == ["Q", 'A: {"n": 4}.', '{"n": 4}']
    first, second, third = (call.prompt for call in mock.calls)
    assert second.startswith(first + '{"n": 1}<|im_end|>\n<|im_start|>user\nnot a valid Even')
    assert "n: Value error, n must be even\nWrite the Even again" in second
    assert second.endswith("nothing else.<|im_end|>\n<|im_start|>assistant\n")
    assert third.startswith(second + '{"n": 3}<|im_end|>\n')


def test_last_output_stays_and_error_counts_the_retries() -> None:
    mock = bn.Mock('{"n": 1}')
    with pytest.raises(bn.BadOutput, match=r"(?s)n must be even.*the model was told 2 times.*gen 'x', test_checks\.py"):
        ask.run(2, backend=mock)
    assert len(mock.calls) == 3


def test_valid_output_needs_one_call() -> None:
    mock = bn.Mock('{"n": 2}')
    assert ask.run(5, backend=mock).ret_value == Even(n=2)
    assert len(mock.calls) == 1


def test_truncated_output_is_retried() -> None:
    truncated, complete = wire.Sample('{"n"', "length", n_tokens=3), wire.Sample('{"n": 2}', "stop")
    mock = bn.Mock([truncated, complete])
    assert ask.run(1, backend=mock).ret_value == Even(n=2)
    assert "max_tokens cut it" in mock.calls[1].prompt


def test_retries_work_in_plain_text_and_async_programs() -> None:
    mock = bn.Mock({"x": ["[", "[1]"]})

    @bn.function
    async def program(s: bn.AsyncState) -> object:
        s += "Numbers: " + bn.gen("x", type=list[int], retries=1)
        return await s.value("x")

    async def main() -> bn.AsyncState:
        return await program.run_async(backend=mock, stream=True)

    state = asyncio.run(main())
    assert state.ret_value == [1]
    assert mock.calls[1].prompt.startswith("Numbers: [\n\nnot a valid list[int]")


def test_stream_yields_only_the_valid_output() -> None:
    mock = bn.Mock({"x": ["[", "[1]"]})

    @bn.function
    def program(s: bn.State) -> None:
        s += "N: " + bn.gen("x", type=list[int], retries=1) + "!"

    state = program.run(stream=True, backend=mock)
    assert "".join(state.text_iter()) == "N: [1]!"
    assert "".join(state.text_iter("x")) == "[1]"


class FailingValidator(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def odd(cls, n: int) -> int:
        raise RuntimeError("a validator that fails")


def test_validator_exception_is_a_bad_output() -> None:
    with pytest.raises(bn.BadOutput, match="a validator that fails") as raised:
        bn.function(lambda s: s.__iadd__(bn.gen("x", type=FailingValidator, retries=1))).run(
            backend=bn.Mock('{"n": 1}')
        ).value("x")
    assert isinstance(raised.value.__cause__, RuntimeError)


class ExitingValidator(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def leave(cls, n: int) -> int:
        raise SystemExit("enough")


def test_validator_that_exits_ends_the_program() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("x", type=ExitingValidator, retries=3) + bn.gen("y")

    mock = bn.Mock({"x": '{"n": 1}', "y": "never"})
    with pytest.raises(bn.BadOutput, match="raised SystemExit: enough"):
        program.run(backend=mock).sync()
    with pytest.raises(bn.BadOutput, match="raised SystemExit: enough") as found:
        program.run(backend=mock).value("x")
    assert "was told" not in str(found.value), "the model was told nothing"
    assert [call.name for call in mock.calls] == ["x", "x"]


def test_run_option_sets_retries_for_all_typed_gens() -> None:
    @bn.function
    def program(s: bn.State, **own: int) -> None:
        s += "N: " + bn.gen("x", type=list[int], **own) + bn.gen("y")

    def answers() -> bn.Mock:
        return bn.Mock({"x": ["no", "no", "[1]"], "y": "text"})

    assert program.run(backend=answers(), opts=bn.Options(retries=2)).value("x") == [1]
    with pytest.raises(bn.BadOutput):
        program.run(backend=answers()).value("x")
    with pytest.raises(bn.BadOutput):
        program.run(backend=answers(), opts=bn.Options(retries=1)).value("x")
    with pytest.raises(bn.BadOutput):
        program.bind(retries=0).run(backend=answers(), opts=bn.Options(retries=2)).value("x")
    with pytest.raises(bn.BadProgram, match="retries"):
        program.run(backend=answers(), opts=bn.Options(retries=-1))
