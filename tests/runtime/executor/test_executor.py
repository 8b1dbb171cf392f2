from __future__ import annotations

from typing import Any

import pytest

from banyan.runtime.executor import executor as executor_module
from banyan.runtime.executor.executor import Executor, ProgramObserver
from banyan.runtime.executor.generation import Generation
from banyan.runtime.executor.generator import Attempt, Done, GenOutcome
from banyan.runtime.protocol import wire
from banyan.runtime.server.text.prompt import PromptText
from steps import n_calls


class Waiting(Attempt):
    """An attempt that the test ends."""

    def start(self) -> None:
        pass


class Manual:
    """A generator that keeps its attempts, so that the test ends them."""

    def __init__(self, prompt: type[PromptText] = PromptText) -> None:
        self.attempts: list[Waiting] = []
        self._prompt = prompt

    def prompt(self, program: Any) -> PromptText:
        return self._prompt()

    def attempt(self, program: Any, generation: Generation, done: Done) -> Waiting:
        self.attempts.append(Waiting(generation.op, generation.prompt, generation.round, done))
        return self.attempts[-1]

    def read(self, *args: Any) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        for attempt in self.attempts:
            attempt.finish(GenOutcome((wire.Sample("out", "stop"),)))


def started(*ops: wire.Op) -> tuple[Executor, Manual]:
    generator = Manual()
    executor = Executor(generator, ProgramObserver())
    for op in ops:
        executor.queue(op)
    executor.is_last = True
    executor.pump()
    return executor, generator


def test_end_of_dropped_branches_takes_linear_time() -> None:
    def n_calls_with(n: int) -> int:
        children = tuple(range(1, n + 1))
        executor, generator = started(
            wire.Fork(0, children), *(wire.Gen(child, child) for child in children), wire.Join(0, children),
            *map(wire.Drop, children),
        )  # fmt: skip
        n_calls_of_finish = n_calls(generator.finish)
        assert executor.is_settled
        return n_calls_of_finish

    assert n_calls_with(80) < 5 * n_calls_with(20)


class CountedPrompt(PromptText):
    """A prompt that takes token ids without a tokenizer."""

    def append_part(self, part: Any) -> None:
        super().append_part("x")


def test_append_of_token_ids_counts_its_values_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    refs = executor_module._refs
    monkeypatch.setattr(executor_module, "_refs", lambda parts: looked.append(len(parts)) or refs(parts))
    executor = Executor(Manual(CountedPrompt), ProgramObserver())
    executor.queue(wire.Append(0, tuple(wire.TokenIds(b"1234") for _ in range(50))))
    executor.pump()
    assert executor.is_settled
    assert len(looked) <= 1 + 50, "once when it comes, and each time that it may have to wait"


def test_dropped_parent_stops_if_its_unforked_children_have_ended() -> None:
    executor, generator = started(wire.Gen(0, 0), wire.Fork(0, (1, 2)), wire.Drop(1), wire.Drop(2))
    (attempt,) = generator.attempts
    assert not attempt.is_over, "state 0 may still be read"
    executor.queue(wire.Drop(0))
    executor.pump()
    assert attempt.is_over
    assert executor.is_settled
