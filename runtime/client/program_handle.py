"""What a user of the client holds of one program."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from banyan.runtime.client.program_futures import ProgramFutures
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire


class ProgramHandle:
    """The handle of one program on the server. Its futures outlive it; a collected handle closes itself."""

    def __init__(self, inbox: ProgramFutures) -> None:
        self.number, self._inbox = inbox.number, inbox
        # A finalizer may run anywhere, also inside our own locks: it only leaves a note for the I/O thread.
        self._finalizer = weakref.finalize(self, inbox.abandon)
        self._finalizer.atexit = False

    @property
    def name(self) -> str:
        return self._inbox.name

    @property
    def first_error(self) -> BaseException | None:
        """What the first of its values failed with that was not merely cancelled."""
        return self._inbox.first_error

    def limit(self, limits: wire.ProgramLimits) -> None:
        """Have the server hold the program to `limits`. To be called before the first `submit`."""
        self._inbox.limits = limits

    def generate_ahead(self, n_tokens: int) -> None:
        """Nothing is asked for ahead here: a program is one message, and a gen has no request of its own to spare."""

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        """Send `ops` to run after those sent before; `last`: there will be no more. Returns at once.

        RuntimeLost: the server is gone. BadProgram: the program is closed. BadMessage: larger than the server takes.
        """
        self._inbox.submit(tuple(ops), last)

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        """The value `ref`, whenever it comes; asked for before or after. Raises what the program met instead."""
        return self._inbox.future(ref)

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        """Call `callback` on the I/O thread with each piece of text of the streaming gen `ref`, from its start on.

        It must not wait. An exception it raises fails the future of `ref`.
        """
        self._inbox.hear(ref, callback)

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        """Call `callback` on the I/O thread each time that the gen `ref` calls tools. To be called before it is sent.

        It must not wait. An exception it raises fails the future of `ref`.
        """
        self._inbox.on_call(ref, callback)

    def cancel(self) -> None:
        """Stop the program on the server; what is not finished fails with Cancelled, at once. Idempotent."""
        self._inbox.cancel()

    def close(self) -> None:
        """Say that no more ops will come: once all is answered, the server frees what the program had. Idempotent."""
        self._inbox.close()
