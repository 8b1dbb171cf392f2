"""Answers the server's questions to the user's process: whether an output is valid, and which choice a select takes."""

from __future__ import annotations

import weakref
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from banyan.backends.base import enforces_schemas
from banyan.execution.program_record import SEEDS, ProgramRecord, Seeds
from banyan.execution.thread_pool import ThreadPool
from banyan.lang.choices import ChoicesDecision
from banyan.lang.meta_info import without_text
from banyan.lang.output_types import OutputType
from banyan.runtime.errors import BadOutput, BadProgram, ProgramError
from banyan.runtime.protocol import wire

N_THREADS = 8
"""The largest number of checks that run concurrently. They have their own threads because validators may be slow."""


class ServerCallback:
    """Runs user code on a pool thread to answer the `Called` messages of one gen or select with `Results`."""

    def __init__(self, record: ProgramRecord, state: int, ref: int) -> None:
        """state, ref: the server's numbers for the state and the value of the gen or select."""
        self._record = weakref.ref(record)  # weak, so that a program that nobody references any more can end
        self._state, self._ref = state, ref
        self._context = copy_context()
        record.program.on_call(ref, self._on_called)

    def _on_called(self, called: wire.Called) -> None:
        """Answer a message on a pool thread. The backend's thread calls this method."""
        self._context.copy().run(_threads.run, lambda: self._reply(called))

    def _seed_calls(self, *number: int) -> None:
        """Give the programs that the user's code calls on this thread their own seeds. number: what tells this use of
        the code from others, in every run of the program. Must be called in a context of its own."""
        record = self._record()
        path = -2, self._state, self._ref, *number
        SEEDS.set(None if record is None else Seeds(record.backend, record.seed, *path))

    def _reply(self, called: wire.Called) -> None:
        self._seed_calls(called.round)
        try:
            texts = self._results(called)
        except BaseException as e:  # also SystemExit, which is meant to end the program
            self._stop(self._error(f"raised {type(e).__name__}: {e}"), e)
        else:
            self._send(called.round, texts)

    def _results(self, called: wire.Called) -> tuple[str, ...]:
        """Run the user's code. Returns the texts of the `Results` message."""
        raise NotImplementedError

    def _error(self, what: str) -> ProgramError:
        """The error that ends the program when the user's code raises. what: the end of the message, "raised ..."."""
        raise NotImplementedError

    def _send(self, round_: int, texts: tuple[str, ...]) -> None:
        if (record := self._record()) is not None:
            with suppress(Exception):  # the record keeps the error and raises it where a value is read
                record.add(wire.Results(self._state, self._ref, round_, texts))
                record.send()

    def _stop(self, error: ProgramError, cause: BaseException) -> None:
        """End the program with `error`."""
        error.__cause__ = cause
        if (record := self._record()) is not None:
            record.stop(error)


class Checker(ServerCallback):
    """Validates the outputs of one gen with `retries`. Answers an invalid output with a text for the model."""

    def __init__(self, record: ProgramRecord, state: int, ref: int, answer: OutputType) -> None:
        self._answer, self._is_enforced = answer, enforces_schemas(record.backend)
        self.n_refused = 0
        """Number of outputs that were not valid."""
        super().__init__(record, state, ref)

    def _results(self, called: wire.Called) -> tuple[str, ...]:
        try:
            self._answer.parse_sample(wire.Sample(called.text, called.finish_reason), self._is_enforced)
        except BadOutput as e:
            self.n_refused += 1
            return (f"{e.message}\nWrite the {self._answer.label} again, and nothing else.",)
        return ()

    def _error(self, what: str) -> ProgramError:
        return BadOutput(f"the check of a {self._answer.label} {what}")


class Chooser(ServerCallback):
    """Decides one select with the user's `choices_method`."""

    def __init__(
        self, record: ProgramRecord, state: int, ref: int, choices: tuple[str, ...], decide: Any, name: str, line: str
    ) -> None:
        self._choices, self._decide, self._name, self._line = choices, decide, name, line
        self.meta_info: dict[str, Any] = {}
        """The meta_info of the method's decision."""
        super().__init__(record, state, ref)

    def _results(self, called: wire.Called) -> tuple[str, ...]:
        scores = called.scores
        assert scores is not None
        decided = self._decide(
            choices=list(self._choices),
            normalized_prompt_logprobs=list(scores.normalized),
            input_token_logprobs=without_text(scores.tokens),
            output_token_logprobs=[[] for _ in scores.tokens],
            unconditional_token_logprobs=without_text(scores.unconditional) or None,
        )
        if not isinstance(decided, ChoicesDecision):  # a plain str, or another class, such as SGLang's own
            decided = ChoicesDecision(getattr(decided, "decision", decided), getattr(decided, "meta_info", None))
        if decided.decision not in self._choices:
            raise BadProgram(f"it returned {decided.decision!r}, which is not one of {', '.join(self._choices)}")
        self.meta_info = dict(decided.meta_info or {})
        return (decided.decision,)

    def _error(self, what: str) -> ProgramError:
        return ProgramError(f"the choices_method of select {self._name!r} {what}", gen=self._name, line=self._line)


_threads = ThreadPool(N_THREADS, "banyan-check")
