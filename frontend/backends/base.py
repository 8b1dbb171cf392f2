"""The interface of backends: a backend takes the ops of programs, and returns futures of the values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire

Question = Literal["stats", "flush", "check", "info"]


class OpenProgram(Protocol):
    """One program on a backend. Every future gets a value or an error, even if the backend fails."""

    @property
    def first_error(self) -> BaseException | None:
        """The first error of the program's values, other than Cancelled; None if there is none."""

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        """Run `ops` after those that were submitted before. Does not wait for them. last: no more ops will follow."""

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        """The future of the value with the number `ref`. May be called before the op of the value is submitted."""

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        """Call `callback`, which must not wait, with each piece of the stream of gen `ref`.

        Must be called before the op is submitted.
        """

    def limit(self, limits: wire.ProgramLimits) -> None:
        """Set the program's limits, before the first `submit`.

        The language enforces limits itself. A backend may enforce them too, at the exact token, or ignore them.
        """

    def generate_ahead(self, n_tokens: int) -> None:
        """Generate up to `n_tokens` tokens with one request, and answer several gens from them.

        For backends that charge per request; others ignore the call. Must be called before the first `submit`.
        """

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        """Call `callback` each time that gen or select `ref` needs a Results message from the client. The message holds
        the results of tool calls, the result of checking an output, or the choice of a select that the user's code
        decides. `callback` must not wait.

        Must be called before the op is submitted.
        """

    def cancel(self) -> None:
        """Stop the program. Idempotent; may be called from a finalizer."""


class Backend(Protocol):
    """Runs programs."""

    @property
    def welcome(self) -> wire.Welcome:
        """The model's description: its name, its longest context, its chat markers."""

    @property
    def refuses(self) -> frozenset[str]:
        """The features that the backend lacks: options of gens, by their names for users, and "tools", "image", "regex"
        and so on. A program that uses one of them fails with Unsupported, which names the feature."""

    def program(self, name: str = "") -> OpenProgram:
        """A new, empty program."""

    def ask(self, what: Question) -> Any:
        """Ask the backend about itself. Waits, and returns the answer as JSON values.

        what: "info" (the model and the options), "stats" (counters), "check" (check the server's invariants) or "flush"
        (evict all KV that no program uses). A backend without a server gives the same answer to all of them, or raises
        Unsupported.
        """


class ProgramDefaults:
    """Base class for OpenPrograms. Its methods do nothing; a subclass overrides the methods that it needs."""

    first_error: BaseException | None = None

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None: ...

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None: ...

    def limit(self, limits: wire.ProgramLimits) -> None: ...

    def generate_ahead(self, n_tokens: int) -> None: ...

    def cancel(self) -> None: ...


def enforces_schemas(backend: Backend) -> bool:
    """Whether an output that ended by itself is valid for the JSON schema of its gen. If not, it is checked when it is
    read. A Mock counts as such a backend: its script decides."""
    return getattr(backend, "enforces_schemas", True)


def is_recorder(backend: Backend) -> bool:
    """Whether the backend only records a program, so that no model runs."""
    return getattr(backend, "is_recorder", False)  # an attribute: recorders need much that the others must not import
