"""The error tree. Every error has a stable code, says what to do, and is sent from process to process with its code.

    BanyanError
    ├── ConfigError          an option does not exist or has a bad value
    ├── Unsupported          this model, backend or machine cannot do it; names the feature
    ├── BadModel             a model directory cannot be used
    │   └── ModelNotFound    ... because it does not exist
    ├── OutOfMemory          weights or KV pages do not fit; states the sizes
    ├── RuntimeLost          the server cannot be reached, or has ended
    │   ├── ConnectFailed    ... at connect: wrong socket, no server, another protocol version
    │   └── EngineLost       the engine process died; the server lives
    ├── BadMessage           a peer violated the protocol
    └── ProgramError         a program failed; holds its name, the source line and the gen
        ├── BadProgram       ... because its code is wrong: a duplicate or reserved name, an open role, a bad value
        ├── UnknownVariable  ... because it reads a variable that it never creates (also a KeyError)
        ├── PromptTooLong    ... because a prompt exceeds the model's context
        ├── Cancelled        ... because it was cancelled
        ├── DeadlineExceeded ... because its time ran out (also a TimeoutError)
        ├── BudgetExceeded   ... because its token budget ran out
        ├── Overloaded       ... because the client exceeds a limit of the server; states the limit
        ├── Quarantined      ... because engines died while they ran it (also an EngineLost)
        ├── BadOutput        ... because the output of a gen does not have its type (also a ValueError)
        ├── ConstraintError  ... because the constraint of a gen cannot be used
        │   ├── ConstraintSyntax        it is not a valid regex, JSON Schema or grammar
        │   ├── ConstraintUnsupported   it contains a construct that cannot be enforced; names the construct
        │   ├── ConstraintUnsatisfiable no output can match it
        │   ├── ConstraintTooLarge      it exceeds a limit; states the sizes
        │   ├── ConstraintTimeout       it did not compile in time
        │   ├── ConstraintCrashed       its compiler crashed
        │   ├── ConstraintBusy          too many constraints compile at once; try again
        │   └── ConstraintBroke         it reached a limit in the middle of the output
        ├── ToolError        ... because a gen with tools cannot finish, or the model has no format for tool calls
        ├── ForkError        ... because a branch of a fork failed; says which
        ├── ReplayMismatch   ... because a recording lacks what is asked for; names the first difference
        └── BatchError       some runs of a batch failed; holds all results

An error of a gen is raised where the user's code reads the gen's value, with its `__cause__` set. Every exception that
a run or a later read of its State raises, of any class, gets this state as `error.state`, and a note that lists the
run's calls so far.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self, TypeVar

EARLIER_OP = "an earlier op of the same state failed"
"""Begins the message of an error for an op after one that failed."""

E = TypeVar("E", bound="BanyanError")


class BanyanError(Exception):
    """Base class of all errors of Banyan. code: identifies the class in messages between processes. A subclass sets it
    with the class argument `code`."""

    code: ClassVar[str] = "error"
    state: Any = None
    """The state of the run that raised the error, or whose values were read when it was raised; None if there was none.
    Other exceptions that a body raises get this attribute too."""

    def __init_subclass__(cls, code: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.code = code or cls.code

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(BanyanError, ValueError, code="config"): ...


class Unsupported(BanyanError, code="unsupported"): ...


class BadModel(BanyanError, code="bad_model"): ...


class ModelNotFound(BadModel, code="model_not_found"): ...


class OutOfMemory(BanyanError, code="out_of_memory"): ...


class RuntimeLost(BanyanError, code="runtime_lost"):
    AT_EXIT: ClassVar = "this process is ending"
    """The message if this process ends before its programs."""

    @classmethod
    def unless_in(cls, process: int, what: str) -> None:
        """Raise this error unless the current process is the one with the id `process`. Called where the current
        process may be a fork of that process. what: what runs in `process`, for the message."""
        if process != (here := os.getpid()):
            raise cls(f"{what} runs in process {process}, and this is its fork {here}: start another one here")


class ConnectFailed(RuntimeLost, code="connect_failed"): ...


class EngineLost(RuntimeLost, code="engine_lost"): ...


class BadMessage(BanyanError, code="bad_message"): ...


class ProgramError(BanyanError, code="program"):
    """A program failed. program: the program's name. line: where the failed piece was appended, such as "file.py:12".
    gen: the variable of the failed gen. prompt_tail: the last characters of the prompt before the failed piece. All
    four are "" if unknown. attempts: how often the gen was tried. usage: the token counts of the program's gens that
    have finished, a `wire.TokenUsage`; None if unknown."""

    attempts = 1
    usage: Any = None

    def __init__(
        self, message: str, *, program: str = "", line: str = "", gen: str = "", prompt_tail: str = ""
    ) -> None:
        super().__init__(message)
        self.program, self.line, self.gen, self.prompt_tail = program, line, gen, prompt_tail

    def __str__(self) -> str:
        where = [f"program {self.program}"] if self.program else []
        where += [f"gen {self.gen!r}"] if self.gen else []
        where += [self.line] if self.line else []
        text = f"{self.message} [{', '.join(where)}]" if where else self.message
        return f"{text}\n  the prompt ends: {self.prompt_tail!r}" if self.prompt_tail else text


class BadProgram(ProgramError, ValueError, code="bad_program"): ...


class UnknownVariable(ProgramError, KeyError, code="unknown_variable"):
    __str__ = ProgramError.__str__  # that of KeyError is a repr


class PromptTooLong(ProgramError, code="prompt_too_long"):
    @classmethod
    def of(cls, what: str, n_tokens: int, n_most: int) -> Self:
        """Make the error for a prompt of n_tokens, of which the context holds n_most. what: what has the tokens, and a
        verb. Clients of OpenAI's API look for one of the message's two ends."""
        where = f"this model's maximum context length is {n_most} tokens"
        return cls(f"prompt is too long: {what} {n_tokens} tokens; {where}")


class Cancelled(ProgramError, code="cancelled"): ...


class DeadlineExceeded(ProgramError, TimeoutError, code="deadline_exceeded"):
    @classmethod
    def of(cls, what: str, seconds: float) -> Self:
        """Make the error for a timeout of `seconds` that ran out. what: whose timeout it is: "gen", "select", "run" or
        "batch"."""
        return cls(f"the {what}'s timeout of {seconds:g} s ran out")


class BudgetExceeded(ProgramError, code="budget_exceeded"):
    @classmethod
    def of(cls, what: str, n_tokens: int) -> Self:
        """Make the error for a budget of `n_tokens` tokens that ran out. what: whose budget it is: "gen", "run" or
        "batch"."""
        return cls(f"the {what}'s budget of {n_tokens} tokens ran out")


class Overloaded(ProgramError, code="overloaded"): ...


class Quarantined(ProgramError, EngineLost, code="quarantined"):
    """The request is not run again, because engines died repeatedly while they ran it. Other requests continue."""


class BadOutput(ProgramError, ValueError, code="bad_output"):
    """The text of a gen cannot be converted to the type that the gen asks for. `__cause__`: the error of the
    conversion."""


class ConstraintError(ProgramError, ValueError, code="constraint"):
    """The constraint of a gen cannot be used. The gen fails; it never runs unconstrained."""


class ConstraintSyntax(ConstraintError, code="constraint_syntax"): ...


class ConstraintUnsupported(ConstraintError, code="constraint_unsupported"): ...


class ConstraintUnsatisfiable(ConstraintError, code="constraint_unsatisfiable"): ...


class ConstraintTooLarge(ConstraintError, code="constraint_too_large"): ...


class ConstraintTimeout(ConstraintError, code="constraint_timeout"): ...


class ConstraintCrashed(ConstraintError, code="constraint_crashed"): ...


class ConstraintBusy(ConstraintError, code="constraint_busy"): ...


class ConstraintBroke(ConstraintError, code="constraint_broke"): ...


class ToolError(ProgramError, code="tool"):
    """A gen with tools cannot finish. If a tool itself raises an exception, there is no ToolError: the model gets the
    exception's text."""


class ForkError(ProgramError, code="fork"):
    """A branch of a fork failed. index: the branch's index. `__cause__`: the branch's error. Only the user's process
    raises this."""

    def __init__(self, message: str, *, index: int = -1, **where: str) -> None:
        super().__init__(message, **where)
        self.index = index


class ReplayMismatch(ProgramError, code="replay_mismatch"): ...


class BatchError(ProgramError, code="batch_error"):
    """Some items of a batch failed. Only the user's process raises this, after all items have ended. errors: index of
    an item -> its error. results: the states of all items in order, also of those that failed; of a batch with a
    checkpoint, their records."""

    def __init__(
        self, message: str, *, errors: dict[int, BaseException] | None = None, results: Sequence[Any] = (), **where: str
    ) -> None:
        super().__init__(message, **where)
        self.errors, self.results = errors or {}, results


def from_code(code: str, message: str, **where: Any) -> BanyanError:
    """Make the error whose class has this code. An unknown code, which a newer peer may send, gives a BanyanError.
    where: program, line, gen and prompt_tail of a ProgramError; ignored for other errors."""
    classes: list[type[BanyanError]] = [BanyanError]
    for cls in classes:
        if cls.code == code:
            return cls(message, **where) if issubclass(cls, ProgramError) else cls(message)
        classes += cls.__subclasses__()
    return BanyanError(f"{message} (code {code!r})")


def is_limit_of_run(error: BanyanError) -> bool:
    """Whether the error says that the timeout or token budget of a whole run or batch ran out. False for the limits of
    a single gen. The message decides, since the same code stands for all of these limits."""
    is_limit = isinstance(error, DeadlineExceeded | BudgetExceeded)
    return is_limit and error.message.startswith(("the run's", "the batch's"))


def describe_surrogate(error: UnicodeEncodeError) -> str:
    """Describe the lone surrogate at which a text could not be encoded, with up to 20 characters before and after
    it."""
    text, at = error.object, error.start
    return f"the lone surrogate {text[at]!r}, which cannot be encoded: {text[max(0, at - 20) : at + 20]!r}"


def copy_of(error: E) -> E:
    """A copy of `error` with its cause and notes, to be raised in another place. If the same object were raised twice,
    its traceback would show both raises."""
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    if notes := getattr(error, "__notes__", None):
        fresh.__notes__ = list(notes)
    return fresh


@contextmanager
def rust_panics_as(error: type[BanyanError], what: str) -> Iterator[None]:
    """A context manager that turns a panic of a Rust library into `error`. what: the start of the message. Without it,
    a panic could end the process: pyo3 raises it as a BaseException, which `except Exception` does not catch."""
    try:
        yield
    except BaseException as e:
        if (type(e).__module__, type(e).__name__) != ("pyo3_runtime", "PanicException"):
            raise
        raise error(f"{what}: {str(e)[:200]}") from e
