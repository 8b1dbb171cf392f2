"""What a backend is to the language: something that takes the ops of programs and promises their values.

`banyan.runtime.client.client.Client` has this shape by itself; so has `Mock`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire

Question = Literal["stats", "flush", "check", "info"]


class OpenProgram(Protocol):
    """One program on a backend. Every future resolves, whatever happens to the backend."""

    @property
    def first_error(self) -> BaseException | None:
        """What the first of its values failed with that was not merely cancelled."""

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        """Run `ops` after those sent before. Does not wait for them."""

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        """The value `ref`; may be asked for before it was submitted."""

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        """Call `callback`, which must not wait, with each piece of text of the streaming gen `ref`."""

    def limit(self, limits: wire.ProgramLimits) -> None:
        """Hold the program to `limits`. To be called before the first `submit`.

        The language keeps them itself: this is for backends that can stop at the token, or when the language is gone.
        """

    def foresee(self, n_tokens: int) -> None:
        """Where each request has a price: ask for so many tokens at once, and answer several gens with them.

        To be called before the first `submit`.
        """

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        """Call `callback`, which must not wait, each time that the gen `ref` calls tools; it answers with Results.

        To be called before the gen is submitted.
        """

    def cancel(self) -> None:
        """Stop all work on it. Idempotent; may be called from a finalizer."""


class Backend(Protocol):
    """Runs programs."""

    @property
    def welcome(self) -> wire.Welcome:
        """What it is: model, longest context, chat markers."""

    @property
    def refuses(self) -> frozenset[str]:
        """What it cannot do: options of gens by the names that users write, and "tools", "image", "regex" and so on. A
        program that asks for it gets Unsupported, which names it; what does not stand here is done."""

    def program(self, name: str = "") -> OpenProgram:
        """A new, empty program."""

    def ask(self, what: Question) -> Any:
        """The answer to a question outside any program, as JSON values."""


class Quiet:
    """What many an OpenProgram has no use for: it is not streamed, calls no tools, and needs no limits, no
    foresight and no end."""

    first_error: BaseException | None = None

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        """Nothing streams."""

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        """Nothing calls."""

    def limit(self, limits: wire.ProgramLimits) -> None:
        """The language keeps them."""

    def foresee(self, n_tokens: int) -> None:
        """A gen has no price of its own."""

    def cancel(self) -> None:
        """There is nothing to stop."""
