"""A gen whose client accepts each output or rejects it with a message for the next attempt."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, BeginTurn, EndTurn, Gen, Read, Ref, Results

Sampler = Callable[..., wire.Sampling]


def test_accepted_output_is_the_value(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one", "one": "two"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(), retries=2), Gen(0, 1, greedy()), Read(0, 2))
    b.run()
    (called,) = b.messages(wire.Called)
    assert (called.ref, called.round, called.calls, called.text, called.finish_reason) == (0, 0, (), "one", "stop")
    assert b.messages(wire.Value) == [], "the gen waits for the client"
    b.submit(Results(0, 0, 0, ()))
    b.run()
    assert b.text(2) == "aonetwo"
    assert b.value(0).usage == called.usage


def test_chat_retry_adds_turns_and_the_state_keeps_only_the_last_output(
    bench: Any, greedy: Sampler, role: SimpleNamespace
) -> None:
    b = bench({"Q<|im_end|>\n<|im_start|>assistant\nA: ": "bad", "wrong<|im_end|>\n<|im_start|>assistant\n": "good"})
    b.submit(
        Append(0, (*role.user("Q"), BeginTurn("assistant"), "A: ")),
        Gen(0, 0, greedy(), retries=1),
        Append(0, (".", EndTurn())),
        Read(0, 1),
    )
    b.run()
    first = b.messages(wire.Called)[0].usage
    b.submit(Results(0, 0, 0, ("that is wrong",)))
    b.run()
    assert b.prompts()[1] == (
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA: bad<|im_end|>\n"
        "<|im_start|>user\nthat is wrong<|im_end|>\n<|im_start|>assistant\n"
    )
    assert b.engine.runs[1].ids.startswith(b.engine.runs[0].ids), "the prompt of the retry extends the first prompt"
    assert b.text(0) == "good"
    assert b.text(1) == "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA: good.<|im_end|>\n"
    assert len(b.messages(wire.Called)) == 1, "the last attempt needs no acceptance"
    assert b.value(0).usage.generated > first.generated
    assert b.value(0).times.ready < b.value(0).times.ended


def test_stream_numbers_the_attempt_of_each_piece(bench: Any, greedy: Sampler) -> None:
    b = bench({"Q": "one two", "no\n\n": "three four five"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(), stream=True, retries=2))
    b.run()
    b.submit(Results(0, 0, 0, ("no",)))
    b.run()
    b.submit(Results(0, 0, 1, ()))
    deltas = b.messages(wire.Delta)
    texts = ["".join(delta.text for delta in deltas if delta.round == n) for n in range(3)]
    assert texts == ["one two", "three four five", ""]
    assert [delta.round for delta in deltas] == sorted(delta.round for delta in deltas)
    assert b.text(0) == "three four five"


def test_retry_in_plain_text_appends_output_and_message(bench: Any, greedy: Sampler) -> None:
    b = bench({"Q": "bad", "no\n\n": "worse", "nor this\n\n": "good"})
    b.submit(Append(0, ("Q",)), Gen(0, 0, greedy(), retries=5), Read(0, 1))
    for n, messages in enumerate((("no",), ("nor this",), ())):
        b.run()
        b.submit(Results(0, 0, n, messages))
    b.run()
    assert b.prompts()[1:] == ["Qbad\n\nno\n\n", "Qbad\n\nno\n\nworse\n\nnor this\n\n"]
    assert b.text(1) == "Qgood"


def test_unrelated_results_are_ignored_and_readers_wait(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one"})
    b.submit(
        Append(0, ("a",)), Gen(0, 0, greedy(), retries=1), wire.Fork(0, (1,)), Append(1, (Ref(0), "!")), Read(1, 1)
    )
    b.submit(Results(0, 0, 0, ("early",)))
    b.run()
    b.submit(Results(0, 9, 0, ("x",)), Results(0, 0, 7, ("x",)), Results(1, 0, 0, ("x",)))
    b.run()
    assert b.messages(wire.Value) == []
    b.submit(Results(0, 0, 0, ()))
    b.submit(Results(0, 0, 0, ("late",)))
    assert b.text(1) == "aoneone!"


def test_cancel_and_failure_end_the_retries(bench: Any, greedy: Sampler) -> None:
    b = bench({"a": "one"})
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(), retries=1))
    b.run()
    b.programs.cancel(b"me", wire.Cancel(0, 9))
    assert b.failed(None).code == "cancelled"
    assert len(b.requests) == len(b.programs) == 0
    b.submit(Append(0, ("a",)), Gen(0, 0, greedy(n=2), retries=1), program=1)
    assert "one sample" in b.failed(0, program=1).message
