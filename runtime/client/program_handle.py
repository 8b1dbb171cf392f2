"""The public handle of one program on the server."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from banyan.runtime.client.program_futures import ProgramFutures
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire


class ProgramHandle:
    """Handle of one program. Its futures outlive it. The program is closed when the handle is garbage collected."""

    def __init__(self, futures: ProgramFutures) -> None:
        self.number, self.name, self._futures = futures.number, futures.name, futures
        # A finalizer may run while our own locks are held, so it only queues a call for the I/O thread.
        self._finalizer = weakref.finalize(self, futures.abandon)
        self._finalizer.atexit = False

    @property
    def first_error(self) -> BaseException | None:
        """The first error of one of its values, except Cancelled."""
        return self._futures.first_error

    def limit(self, limits: wire.ProgramLimits) -> None:
        """Set the limits of the program. Call it before the first `submit`."""
        self._futures.limits = limits

    def generate_ahead(self, n_tokens: int) -> None:
        """Does nothing here; backends for paid APIs generate `n_tokens` tokens beyond a stop."""

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        """Send `ops` to run after those sent before. last: no more ops follow. Returns at once.

        RuntimeLost: the server is gone. BadProgram: the program is closed. BadMessage: larger than the server allows.
        """
        self._futures.submit(tuple(ops), last)

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        """The future of value `ref`, before or after the op that makes it was submitted."""
        return self._futures.future(ref)

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        """Call `callback` on the I/O thread with each piece of text of the streaming gen `ref`, from the first one on.

        It must not block. An exception in it fails the future of `ref`.
        """
        self._futures.on_delta(ref, callback)

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        """Call `callback` on the I/O thread with each Called of `ref`. Call it before `ref` is submitted.

        It must not block. An exception in it fails the future of `ref`.
        """
        self._futures.on_call(ref, callback)

    def cancel(self) -> None:
        """Stop the program on the server. Everything unfinished fails with Cancelled at once. Idempotent."""
        self._futures.cancel()

    def close(self) -> None:
        """Submit no more ops. The server frees the program once it has finished. Idempotent."""
        self._futures.close()
