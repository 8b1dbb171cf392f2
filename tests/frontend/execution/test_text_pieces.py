"""Text iterators: pieces as they arrive, any number of readers, and errors."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.protocol import wire


@bn.function
def talk(s: bn.State, gate: threading.Event | None = None) -> str:
    s += bn.user("hi")
    s += bn.assistant(bn.gen("a"))
    if gate is not None:
        assert gate.wait(10)
    s += bn.assistant(bn.gen("b"))
    s["done"] = 1
    return "returned"


FULL_TEXT = (
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\none two <|im_end|>\n"
    "<|im_start|>assistant\nthree four<|im_end|>\n"
)


@pytest.fixture
def two_word_mock() -> bn.Mock:
    return bn.Mock({"a": "one two ", "b": "three four"})


async def collect(iterator: Any) -> list[Any]:
    return [piece async for piece in iterator]


def test_text_is_streamed_in_pieces(two_word_mock: bn.Mock) -> None:
    state = talk.run(stream=True, backend=two_word_mock)
    assert list(state.text_iter("b")) == ["three ", "four"], "a later variable may be read first"
    assert list(state.text_iter("a")) == ["one ", "two "]
    assert "".join(state.text_iter()) == FULL_TEXT
    assert "".join(state.text_iter()) == FULL_TEXT, "a second reader reads the same text"
    assert list(state.text_iter("done")) == ["1"]
    assert (state["a"], state.ret_value, state.text()) == ("one two ", "returned", FULL_TEXT)


def test_text_is_streamed_on_an_event_loop(two_word_mock: bn.Mock) -> None:
    async def main() -> None:
        state = talk.run(stream=True, backend=two_word_mock)
        pieces, b = await asyncio.gather(collect(state.text_async_iter()), collect(state.text_async_iter("b")))
        assert "".join(pieces) == FULL_TEXT
        assert b == ["three ", "four"]
        meta = state.get_meta_info("b")
        partial_meta = {"id": meta["id"], "finish_reason": None, "completion_tokens": 0}
        partial_meta |= {"prompt_tokens": None, "cached_tokens": None}  # a Mock counts no tokens
        assert await collect(state.text_async_iter("b", return_meta_data=True)) == [
            ("three ", partial_meta),
            ("four", partial_meta),
            ("", meta),
        ]
        assert await collect(state.text_async_iter("done")) == ["1"]

    asyncio.run(main())


def test_text_is_one_piece_without_streaming(two_word_mock: bn.Mock) -> None:
    state = talk.run(backend=two_word_mock)
    assert list(state.text_iter()) == [FULL_TEXT]
    assert list(state.text_iter("a")) == ["one two "]
    assert asyncio.run(collect(state.text_async_iter())) == [FULL_TEXT]
    assert asyncio.run(collect(state.text_async_iter("a", return_meta_data=True))) == [
        ("one two ", state.get_meta_info("a"))
    ]


def test_only_streams_request_deltas(two_word_mock: bn.Mock) -> None:
    talk.run(backend=two_word_mock)
    assert not any(call.op.stream for call in two_word_mock.calls if isinstance(call.op, wire.Gen))
    backend = bn.Mock("x")
    talk.run(backend=backend, opts=bn.Options(stream=True)).sync()
    assert all(call.op.stream for call in backend.calls if isinstance(call.op, wire.Gen))


def test_reader_waits_for_the_body(two_word_mock: bn.Mock) -> None:
    gate = threading.Event()
    state = talk.run(gate, stream=True, backend=two_word_mock)
    full_text = state.text_iter()
    assert "".join(next(full_text) for _ in range(5)) == FULL_TEXT[: FULL_TEXT.index("two")]
    assert state["a"] == "one two "
    assert "b" not in state
    threading.Timer(0.05, gate.set).start()
    assert state["b"] == "three four"
    assert "".join(full_text).startswith("two ")
    with pytest.raises(bn.UnknownVariable):
        state["never"]


def test_async_reader_does_not_block_the_loop(two_word_mock: bn.Mock) -> None:
    gate = threading.Event()

    async def main() -> None:
        state = talk.run(gate, stream=True, backend=two_word_mock)
        reader = asyncio.create_task(collect(state.text_async_iter("b")))
        max_delay, last = 0.0, time.monotonic()
        for _ in range(20):
            await asyncio.sleep(0.005)
            max_delay, last = max(max_delay, time.monotonic() - last), time.monotonic()
        assert not reader.done()
        assert max_delay < 1.0
        gate.set()
        assert await reader == ["three ", "four"]

    asyncio.run(main())


def test_running_program_cannot_be_appended_to_from_outside(two_word_mock: bn.Mock) -> None:
    gate = threading.Event()
    state = talk.run(gate, stream=True, backend=two_word_mock)
    with pytest.raises(bn.BadProgram, match="still runs"):
        state += "x"
    with pytest.raises(bn.BadProgram, match="still runs"):
        state.fork(2)
    gate.set()
    assert state.ret_value == "returned"
    state += "x"
    assert state.text() == FULL_TEXT + "x"


def test_stream_in_the_body_yields_the_current_text(two_word_mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> list[str]:
        s += bn.gen("a")
        return [*s.text_iter(), "|", *s.text_iter("a")]

    assert program.run(stream=True, backend=two_word_mock).ret_value == ["one ", "two ", "|", "one ", "two "]


# ---- errors --------------------------------------------------------------------------------------------------------


@bn.function
def breaks(s: bn.State) -> None:
    s += "prompt" + bn.gen("a")
    s.sync()
    raise ZeroDivisionError("in the body")


READS = {
    "text_iter": lambda s: list(s.text_iter()),
    "text_iter of what never comes": lambda s: list(s.text_iter("b")),
    "text_async_iter": lambda s: asyncio.run(collect(s.text_async_iter())),
    "text_async_iter of what never comes": lambda s: asyncio.run(collect(s.text_async_iter("b"))),
    "what never comes": lambda s: s["b"],
    "text": lambda s: s.text(),
    "messages": lambda s: s.messages(),
    "sync": lambda s: s.sync(),
    "ret_value": lambda s: s.ret_value,
}


@pytest.mark.parametrize("read", READS)
def test_body_error_reaches_every_reader(two_word_mock: bn.Mock, read: str) -> None:
    state = breaks.run(stream=True, backend=two_word_mock)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="in the body"):
            READS[read](state)
    assert isinstance(state.error(), ZeroDivisionError)
    assert state["a"] == "one two ", "finished values stay readable"


def test_text_before_a_failure_is_streamed() -> None:
    def script(prompt: str, name: str) -> str:
        if name == "b":
            raise OSError("no luck")
        return "fine"

    pieces: list[str] = []
    state = talk.run(stream=True, backend=bn.Mock(script))
    with pytest.raises(bn.ProgramError, match="no luck") as raised:
        pieces.extend(state.text_iter())
    assert "".join(pieces) == FULL_TEXT[: FULL_TEXT.index("three")].replace("one two ", "fine")
    assert raised.value.gen == "b"
    with pytest.raises(bn.ProgramError, match="no luck"):
        asyncio.run(collect(state.text_async_iter("b")))


def test_unread_stream_is_cancelled() -> None:
    gate, ended = threading.Event(), threading.Event()

    @bn.function
    def program(s: bn.State) -> None:
        try:
            assert gate.wait(10)
            s += bn.gen("a")
            s.sync()
        finally:
            ended.set()

    backend = bn.Mock("x")
    state = program.run(stream=True, backend=backend)
    del state
    gate.set()
    assert ended.wait(10)
    assert backend.calls == []
