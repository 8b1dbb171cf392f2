"""Streams: text as it comes, for any number of readers, with errors where it breaks off."""

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


WHOLE = (
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\none two <|im_end|>\n"
    "<|im_start|>assistant\nthree four<|im_end|>\n"
)


@pytest.fixture
def two() -> bn.Mock:
    return bn.Mock({"a": "one two ", "b": "three four"})


async def collect(iterator: Any) -> list[Any]:
    return [piece async for piece in iterator]


def test_a_stream_comes_in_pieces(two: bn.Mock) -> None:
    state = talk.run(stream=True, backend=two)
    assert list(state.text_iter("b")) == ["three ", "four"], "a later variable may be asked for first"
    assert list(state.text_iter("a")) == ["one ", "two "]
    assert "".join(state.text_iter()) == WHOLE
    assert "".join(state.text_iter()) == WHOLE, "a second reader reads it all again"
    assert list(state.text_iter("done")) == ["1"]
    assert (state["a"], state.ret_value, state.text()) == ("one two ", "returned", WHOLE)


def test_the_same_on_an_event_loop(two: bn.Mock) -> None:
    async def main() -> None:
        state = talk.run(stream=True, backend=two)
        whole, b = await asyncio.gather(collect(state.text_async_iter()), collect(state.text_async_iter("b")))
        assert "".join(whole) == WHOLE
        assert b == ["three ", "four"]
        meta = state.get_meta_info("b")
        so_far = {"id": meta["id"], "finish_reason": None, "completion_tokens": 0}
        so_far |= {"prompt_tokens": None, "cached_tokens": None}  # a Mock has no tokens
        assert await collect(state.text_async_iter("b", return_meta_data=True)) == [
            ("three ", so_far),
            ("four", so_far),
            ("", meta),
        ]
        assert await collect(state.text_async_iter("done")) == ["1"]

    asyncio.run(main())


def test_without_streaming_it_comes_in_one_piece(two: bn.Mock) -> None:
    state = talk.run(backend=two)
    assert list(state.text_iter()) == [WHOLE]
    assert list(state.text_iter("a")) == ["one two "]
    assert asyncio.run(collect(state.text_async_iter())) == [WHOLE]
    assert asyncio.run(collect(state.text_async_iter("a", return_meta_data=True))) == [
        ("one two ", state.get_meta_info("a"))
    ]


def test_only_streams_ask_for_deltas(two: bn.Mock) -> None:
    talk.run(backend=two)
    assert not any(call.op.stream for call in two.calls if isinstance(call.op, wire.Gen))
    backend = bn.Mock("x")
    talk.run(backend=backend, opts=bn.Options(stream=True)).sync()
    assert all(call.op.stream for call in backend.calls if isinstance(call.op, wire.Gen))


def test_who_reads_first_waits_for_the_body(two: bn.Mock) -> None:
    gate = threading.Event()
    state = talk.run(gate, stream=True, backend=two)
    whole = state.text_iter()
    assert "".join(next(whole) for _ in range(5)) == WHOLE[: WHOLE.index("two")]
    assert state["a"] == "one two "
    assert "b" not in state
    threading.Timer(0.05, gate.set).start()
    assert state["b"] == "three four"
    assert "".join(whole).startswith("two ")
    with pytest.raises(bn.UnknownVariable):
        state["never"]


def test_an_event_loop_is_never_held_up(two: bn.Mock) -> None:
    gate = threading.Event()

    async def main() -> None:
        state = talk.run(gate, stream=True, backend=two)
        reading = asyncio.create_task(collect(state.text_async_iter("b")))
        longest, last = 0.0, time.monotonic()
        for _ in range(20):
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert not reading.done()
        assert longest < 1.0
        gate.set()
        assert await reading == ["three ", "four"]

    asyncio.run(main())


def test_a_running_program_is_not_written_from_outside(two: bn.Mock) -> None:
    gate = threading.Event()
    state = talk.run(gate, stream=True, backend=two)
    with pytest.raises(bn.BadProgram, match="still runs"):
        state += "x"
    with pytest.raises(bn.BadProgram, match="still runs"):
        state.fork(2)
    gate.set()
    assert state.ret_value == "returned"
    state += "x"
    assert state.text() == WHOLE + "x"


def test_inside_the_body_a_stream_gives_what_is_there(two: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> list[str]:
        s += bn.gen("a")
        return [*s.text_iter(), "|", *s.text_iter("a")]

    assert program.run(stream=True, backend=two).ret_value == ["one ", "two ", "|", "one ", "two "]


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
def test_what_the_body_raises_reaches_every_reader(two: bn.Mock, read: str) -> None:
    state = breaks.run(stream=True, backend=two)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="in the body"):
            READS[read](state)
    assert isinstance(state.error(), ZeroDivisionError)
    assert state["a"] == "one two ", "what was known stays known"


def test_text_comes_up_to_where_it_breaks_off() -> None:
    def script(prompt: str, name: str) -> str:
        if name == "b":
            raise OSError("no luck")
        return "fine"

    seen: list[str] = []
    state = talk.run(stream=True, backend=bn.Mock(script))
    with pytest.raises(bn.ProgramError, match="no luck") as raised:
        seen.extend(state.text_iter())
    assert "".join(seen) == WHOLE[: WHOLE.index("three")].replace("one two ", "fine")
    assert raised.value.gen == "b"
    with pytest.raises(bn.ProgramError, match="no luck"):
        asyncio.run(collect(state.text_async_iter("b")))


def test_a_stream_that_nobody_reads_any_more_is_cancelled() -> None:
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
