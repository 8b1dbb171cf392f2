"""Runs one HTTP request to the model as a program on the server, and brings its values to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from banyan.runtime.client.program_futures import ProgramHandle
from banyan.runtime.errors import BadProgram, BanyanError
from banyan.runtime.future import ValueFuture
from banyan.runtime.gateway.endpoint import HTTPRequest
from banyan.runtime.gateway.errors import http_error
from banyan.runtime.gateway.gateway import Mailbox
from banyan.runtime.protocol import wire

Arrival = tuple[int, wire.Delta | wire.Value]
"""The ref of a value, and what has arrived for it: a piece of its text or, at the end, the whole value."""


class ModelCall:
    """Sends ops of a program to the server, and collects the values that they make. Use it in an `async with` block:
    the end of the block calls `cancel`."""

    def __init__(
        self, mailbox: Mailbox, program: ProgramHandle, state: int | None = None, field: str = "messages"
    ) -> None:
        """state: the state that this call uses, if other calls use the same program; `cancel` then drops only this
        state. None: the program belongs to this call, and `cancel` ends it. field: the field of the request that has
        the prompt, for errors."""
        self.keeps_state = False
        """Whether later calls continue the state, so that it is not dropped."""
        self._mailbox, self._program, self._state, self._field = mailbox, program, state, field
        self._arrived: list[Arrival] = []
        self._error: BanyanError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.n_open = 0
        """The number of values that have not arrived yet."""

    @classmethod
    def start(
        cls,
        request: HTTPRequest,
        ops: Sequence[wire.Op],
        *,
        name: str,
        limits: wire.ProgramLimits | None = None,
        field: str = "messages",
    ) -> Self:
        """Send a program for `request`, to which no more ops will be added, and return its call. field: as in __init__.
        Raises BanyanError if the program cannot be sent."""
        program = request.client.program(name)
        call = cls(request.gateway.mailbox, program, field=field)
        if limits is not None:
            program.limit(limits)
        try:
            call.submit(ops, last=True)
        except OverflowError as e:
            raise BadProgram("a number of the request has more than 64 bits") from e
        return call

    def submit(self, ops: Sequence[wire.Op], *, last: bool) -> None:
        """Add ops to the program, and wait for the values that they make. last: whether no more ops follow."""
        for op in ops:
            if isinstance(op, wire.Gen | wire.Read):
                self.n_open += 1
                if isinstance(op, wire.Gen) and op.stream:
                    self._program.on_delta(op.ref, partial(self._post_delta, op.ref))
                self._program.future(op.ref).add_done_callback(partial(self._post_end, op.ref))
        self._program.submit(ops, last)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Stop what is not needed any more. Idempotent.

        If the program belongs to this call, it is cancelled if values are still missing. If other calls share the
        program, only the call's state is dropped; with `keeps_state`, it is kept.
        """
        if self._state is None:
            if self.n_open:
                self._program.cancel()
        elif not self.keeps_state:
            with suppress(BanyanError):  # the program is over, or the server is gone
                self._program.submit((wire.Drop(self._state),))

    async def arrivals(self) -> list[Arrival]:
        """Wait until pieces or values arrive, and return all that have arrived; []: all values have been returned.
        HTTPError: a value failed."""
        while not self._arrived and self._error is None and self.n_open:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise http_error(self._error, self._field) from self._error
        arrived, self._arrived = self._arrived, []
        return arrived

    async def values(self) -> dict[int, wire.Value]:
        """Wait for all values, and return them by ref. HTTPError: a value failed."""
        found: dict[int, wire.Value] = {}
        while arrived := await self.arrivals():
            found.update({ref: item for ref, item in arrived if isinstance(item, wire.Value)})
        return found

    # ---- on the client's I/O thread --------------------------------------------------------------------------------

    def _post_delta(self, ref: int, delta: wire.Delta) -> None:
        self._mailbox.post(partial(self._take, ref, delta))

    def _post_end(self, ref: int, future: ValueFuture[wire.Value]) -> None:
        error = future.exception()
        self._mailbox.post(partial(self._end, ref, future.result() if error is None else error))

    # ---- on the event loop -----------------------------------------------------------------------------------------

    def _take(self, ref: int, item: wire.Delta | wire.Value) -> None:
        self._arrived.append((ref, item))
        self._wake()

    def _end(self, ref: int, outcome: wire.Value | BaseException) -> None:
        self.n_open -= 1
        self._program.forget(ref)
        if isinstance(outcome, wire.Value):
            self._take(ref, outcome)
            return
        self._error = self._error or (outcome if isinstance(outcome, BanyanError) else BanyanError(repr(outcome)))
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
