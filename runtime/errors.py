"""The one error tree. Every error has a code, says what to do, and crosses the wire unchanged.

    BanyanError
    ├── ConfigError          an option that does not exist, or a value it cannot have
    ├── Unsupported          a thing this model, backend or machine cannot do; names the thing
    ├── BadModel             a model directory that cannot be used
    │   └── ModelNotFound    ... because there is none
    ├── OutOfMemory          weights or KV pages do not fit; says the numbers
    ├── RuntimeLost          the server cannot be reached, or is gone
    │   ├── ConnectFailed    ... from the start: wrong socket, no server, another protocol version
    │   └── EngineLost       the engine process died under a living server
    ├── BadMessage           a peer sent what the protocol does not allow
    └── ProgramError         a program failed; holds the program, source line and gen it failed at
        ├── BadProgram       ... for its own text: duplicate or reserved names, open roles, bad values
        ├── UnknownVariable  ... it reads a variable that it never makes (also a KeyError)
        ├── PromptTooLong    ... a prompt beyond the model's context
        ├── Cancelled        ... because someone asked for it
        ├── DeadlineExceeded ... because its time was up (also a TimeoutError)
        ├── BudgetExceeded   ... because it may make no more tokens
        ├── Overloaded       ... because the server has all that it takes from this client; says how much that is
        ├── Quarantined      ... because engines died of it (also an EngineLost)
        ├── BadOutput        ... the text of a gen is not what it was to be (also a ValueError)
        ├── ConstraintError  ... the constraint of a gen cannot be used
        │   ├── ConstraintSyntax        it is no regex, no JSON Schema, no grammar
        │   ├── ConstraintUnsupported   it holds what cannot be enforced; names the construct
        │   ├── ConstraintUnsatisfiable no output could match it
        │   ├── ConstraintTooLarge      beyond a limit; says the numbers
        │   ├── ConstraintTimeout       it did not compile in the time there is
        │   ├── ConstraintCrashed       its compiler ended on it
        │   ├── ConstraintBusy          too many are compiled at once; try again
        │   └── ConstraintBroke         it met a limit in the middle of the output
        ├── ToolError        ... a gen with tools does not come to its end, or this model has no form for calls
        ├── ForkError        ... a branch of a fork failed; says which
        ├── ReplayMismatch   ... a recording is asked for what it does not hold; names the first difference
        └── BatchError       some runs of a batch failed; holds the results of all

An error rises where the user reads, with its cause chained (the shape is httpx's and trio's: one tree, drawn, tested).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self


class BanyanError(Exception):
    """Base of all errors of Banyan. `code` is stable and what crosses the wire."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(BanyanError, ValueError):
    code = "config"


class Unsupported(BanyanError):
    code = "unsupported"


class BadModel(BanyanError):
    code = "bad_model"


class ModelNotFound(BadModel):
    code = "model_not_found"


class OutOfMemory(BanyanError):
    code = "out_of_memory"


class RuntimeLost(BanyanError):
    code = "runtime_lost"


class ConnectFailed(RuntimeLost):
    code = "connect_failed"


class EngineLost(RuntimeLost):
    code = "engine_lost"


class BadMessage(BanyanError):
    code = "bad_message"


class ProgramError(BanyanError):
    """A program failed.

    program: its name. line: "file.py:12", where the failing piece was appended. gen: the variable it would have
    made. prompt_tail: the last characters of the prompt at that point. All are "" where they are not known. attempts:
    how often the gen was tried. usage: tokens of the program's gens until then, a `wire.Usage` (None: not known).
    What caused it, where that was an error of its own, is the `__cause__`.
    """

    code = "program"
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


class BadProgram(ProgramError, ValueError):
    code = "bad_program"


class UnknownVariable(ProgramError, KeyError):
    code = "unknown_variable"
    __str__ = ProgramError.__str__  # KeyError would print a repr


class PromptTooLong(ProgramError):
    code = "prompt_too_long"


class Cancelled(ProgramError):
    code = "cancelled"


class DeadlineExceeded(ProgramError, TimeoutError):
    code = "deadline_exceeded"

    @classmethod
    def of(cls, what: str, seconds: float) -> Self:
        """what: whose time it was: a gen's, a select's, a run's or a batch's."""
        return cls(f"the {what}'s timeout of {seconds:g} s ran out")


class BudgetExceeded(ProgramError):
    code = "budget_exceeded"

    @classmethod
    def of(cls, what: str, n_tokens: int) -> Self:
        """what: whose tokens they were: a gen's, a run's or a batch's."""
        return cls(f"the {what}'s budget of {n_tokens} tokens ran out")


class Overloaded(ProgramError):
    code = "overloaded"


class Quarantined(ProgramError, EngineLost):
    """A request in whose steps engines died again and again. It is not run any more; all others go on."""

    code = "quarantined"


class BadOutput(ProgramError, ValueError):
    """The text of a gen is no value of its type. Its cause is what the type had against it."""

    code = "bad_output"


class ConstraintError(ProgramError, ValueError):
    """The output of a gen was to match something that cannot be used. The gen fails; it never runs unconstrained."""

    code = "constraint"


class ConstraintSyntax(ConstraintError):
    code = "constraint_syntax"


class ConstraintUnsupported(ConstraintError):
    code = "constraint_unsupported"


class ConstraintUnsatisfiable(ConstraintError):
    code = "constraint_unsatisfiable"


class ConstraintTooLarge(ConstraintError):
    code = "constraint_too_large"


class ConstraintTimeout(ConstraintError):
    code = "constraint_timeout"


class ConstraintCrashed(ConstraintError):
    code = "constraint_crashed"


class ConstraintBusy(ConstraintError):
    code = "constraint_busy"


class ConstraintBroke(ConstraintError):
    code = "constraint_broke"


class ToolError(ProgramError):
    """A gen with tools cannot go on. What a tool raises is none: that goes to the model, as text."""

    code = "tool"


class ForkError(ProgramError):
    """A branch of a fork failed. index: which one. `__cause__`: what happened there. Raised on the user's side only."""

    code = "fork"

    def __init__(self, message: str, *, index: int = -1, **where: str) -> None:
        super().__init__(message, **where)
        self.index = index


class ReplayMismatch(ProgramError):
    code = "replay_mismatch"


class BatchError(ProgramError):
    """Some items of a batch failed, each with its own error. Raised on the user's side only, when all have ended.

    errors: item's index -> what happened. results: the state of every item, in order, also of those that failed.
    """

    code = "batch_error"

    def __init__(
        self, message: str, *, errors: dict[int, BaseException] | None = None, results: Sequence[Any] = (), **where: str
    ) -> None:
        super().__init__(message, **where)
        self.errors, self.results = errors or {}, results


def _tree(cls: type[BanyanError]) -> dict[str, type[BanyanError]]:
    found: dict[str, type[BanyanError]] = {cls.code: cls}
    for sub in cls.__subclasses__():
        found |= _tree(sub)
    return found


def from_code(code: str, message: str, **where: Any) -> BanyanError:
    """The error that `code` names; an unknown code (a newer peer) is a plain BanyanError that keeps it in the text.

    `where` (program, line, gen, prompt_tail) is used by ProgramErrors and dropped by the others.
    """
    cls = _tree(BanyanError).get(code)
    if cls is None:
        return BanyanError(f"{message} (code {code!r})")
    return cls(message, **where) if issubclass(cls, ProgramError) else cls(message)


@contextmanager
def rust_panics_as(error: type[BanyanError], what: str) -> Iterator[None]:
    """Raises a panic of a library written in Rust as `error`; what: the start of its message.

    pyo3 raises panics as PanicException. Each library has its own class of that name, and it is no Exception: without
    this, a panic passes all handlers and ends the process.
    """
    try:
        yield
    except BaseException as e:
        if (type(e).__module__, type(e).__name__) != ("pyo3_runtime", "PanicException"):
            raise
        raise error(f"{what}: {str(e)[:200]}") from e
