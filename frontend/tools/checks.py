"""What the server asks the user's process about: whether an output counts, and which choice to take."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from banyan.execution.program_record import ProgramRecord
from banyan.execution.thread_pool import ThreadPool
from banyan.lang.choices import ChoicesDecision
from banyan.lang.meta_info import meta_of_select
from banyan.lang.output_types import OutputType
from banyan.runtime.errors import BadOutput, BadProgram, ProgramError
from banyan.runtime.protocol import wire

N_THREADS = 8
"""Checks that run at once at most: a validator is the user's code, and may take its time."""


class _PendingCheck:
    """Answers for one gen or select, on a thread of a pool."""

    def __init__(self, record: ProgramRecord, state: int, ref: int) -> None:
        """state, ref: of the gen, as the server numbers them."""
        self._record = weakref.ref(record)  # whoever waits for the gen holds it; a program that nobody holds ends
        self._state, self._ref = state, ref
        self._context = copy_context()
        record.program.on_call(ref, self._called)

    def _called(self, called: wire.Called) -> None:
        """Called by the backend, on its thread."""
        self._context.copy().run(_threads.run, lambda: self._reply(called))

    def _reply(self, called: wire.Called) -> None:
        try:
            texts = self._texts(called)
        except BaseException as e:  # SystemExit and its like are meant for the program
            error = self._failed(e)
            error.__cause__ = e
            if (record := self._record()) is not None:
                record.stop(error)
            return
        if (record := self._record()) is not None:
            with suppress(Exception):  # the record keeps it for those who observe
                record.add(wire.Results(self._state, self._ref, called.round, texts))
                record.flush()

    def _texts(self, called: wire.Called) -> tuple[str, ...]:
        """What is answered."""
        raise NotImplementedError

    def _failed(self, error: BaseException) -> ProgramError:
        """What the program ends with where the user's code raises."""
        raise NotImplementedError


class Checker(_PendingCheck):
    """Checks the outputs of one gen with retries."""

    def __init__(self, record: ProgramRecord, state: int, ref: int, answer: OutputType) -> None:
        self._answer = answer
        self.n_refused = 0
        """Outputs that did not count."""
        super().__init__(record, state, ref)

    def _texts(self, called: wire.Called) -> tuple[str, ...]:
        try:
            self._answer.parse_sample(wire.Sample(called.text, called.finish_reason))
        except BadOutput as e:
            self.n_refused += 1
            return (self._answer.advice(e),)
        return ()

    def _failed(self, error: BaseException) -> ProgramError:
        return BadOutput(f"the check of a {self._answer.label} raised {type(error).__name__}: {error}")


class Chooser(_PendingCheck):
    """Decides one select by a method of the user's."""

    def __init__(
        self, record: ProgramRecord, state: int, ref: int, choices: tuple[str, ...], decide: Any, name: str, line: str
    ) -> None:
        self._choices, self._decide, self._name, self._line = choices, decide, name, line
        self.meta_info: dict[str, Any] = {}
        """What the method had to say, beside its decision."""
        super().__init__(record, state, ref)

    def _texts(self, called: wire.Called) -> tuple[str, ...]:
        assert called.scores is not None
        told = meta_of_select(called.scores, None)
        made = self._decide(
            choices=list(self._choices),
            normalized_prompt_logprobs=told["normalized_prompt_logprobs"],
            input_token_logprobs=told["input_token_logprobs"],
            output_token_logprobs=told["output_token_logprobs"],
            unconditional_token_logprobs=told.get("unconditional_token_logprobs"),
        )
        decision = made if isinstance(made, ChoicesDecision) else ChoicesDecision(*_decided(made))
        if decision.decision not in self._choices:
            raise BadProgram(f"it decided for {decision.decision!r}, which is none of {', '.join(self._choices)}")
        self.meta_info = dict(decision.meta_info or {})
        return (decision.decision,)

    def _failed(self, error: BaseException) -> ProgramError:
        why = f"the choices_method of select {self._name!r} raised {type(error).__name__}: {error}"
        return ProgramError(why, gen=self._name, line=self._line)


def _decided(made: Any) -> tuple[Any, Any]:
    """Of a decision of another class, such as SGLang's own; or of a plain str."""
    return getattr(made, "decision", made), getattr(made, "meta_info", None)


def _renew() -> None:
    global _threads
    _threads = ThreadPool(N_THREADS, "banyan-check")


_threads = ThreadPool(N_THREADS, "banyan-check")
os.register_at_fork(after_in_child=_renew)  # threads do not follow into a forked child
