"""Checks constraints before they go to the engine. The preflight process checks them by compiling them, so that the
server's loop need not compile any. Results are cached. Gens with the same constraint wait for the same check.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import zmq

from banyan.runtime import launch
from banyan.runtime.constraint import limits
from banyan.runtime.errors import BanyanError, ConstraintBusy, ConstraintCrashed, from_code
from banyan.runtime.protocol import decoders, ipc, wire
from banyan.runtime.server.text.bounded_cache import BoundedCache

PREFLIGHT = (sys.executable, "-m", "banyan.runtime.server.constraints.preflight")
QUEUE = 64
"""Maximum number of constraints of one client that may wait for their check. A further one is refused with
ConstraintBusy."""
WAITING_CHARS = 16 << 20
"""Maximum number of characters in all constraints that wait for their check, including those of clients that have left.
Further constraints are refused with ConstraintBusy."""
CACHE_CHARS = 16 << 20
"""Maximum number of characters in all cached results. Beyond it, the least recently used results are evicted."""
ENTRY = 1 << 10
"""Characters that are counted for each constraint in addition to its text."""
ERROR_TTL = 60.0
"""Seconds for which a refusal is cached."""
MAX_DEATHS = 2
"""If this many preflight processes die one after another without a result, the waiting constraints fail."""

Callback = Callable[[wire.ConstraintSpec | BanyanError], None]


class Waiting(NamedTuple):
    """A constraint that waits for the result of its check. owner: the client's number."""

    spec: wire.ConstraintSpec
    owner: int
    callbacks: list[Callback]


class ConstraintChecker:
    """Checks all constraints of a server.

    cache     spec -> (the spec for the engine, or an error; the time until which that is valid)
    sockets   the server's loop polls these, and calls `receive` when one is readable: the socket of the preflight
              process, and a file descriptor that is readable when the process has ended. Empty until the first
              constraint, which starts the process.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: Path,
        vocabulary: wire.SetVocabulary,
        n_vocab: int,
        *,
        max_bytes: int,
        seconds: float,
        engine: str = "llguidance",
        on_sockets_changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """path: the server's own socket; the socket of the preflight process is created beside it. n_vocab: the size of
        the model's logits. max_bytes: the largest constraint. seconds: the time limit of a check. engine: the library
        for regexes and choices, llguidance or outlines_core. on_sockets_changed: called when `sockets` has changed."""
        self._context, self._path, self._vocabulary, self._n_vocab = context, path, vocabulary, n_vocab
        self._max_bytes, self._seconds, self._clock = max_bytes, seconds, clock
        self._on_sockets_changed = on_sockets_changed
        self._engine = engine
        self.cache: BoundedCache[tuple[wire.ConstraintSpec | BanyanError, float]] = BoundedCache(CACHE_CHARS)
        self._n_waiting_chars = 0  # characters in constraints that are being checked
        self._waiting: dict[int, Waiting] = {}
        self._by_spec: dict[wire.ConstraintSpec, int] = {}
        self._n_checks = self._n_starts = 0
        self._n_deaths = 0  # deaths of preflight processes since the last result
        self._child: launch.ChildProcess | None = None
        self.sockets: tuple[zmq.Socket[bytes] | int, ...] = ()

    def check(self, spec: wire.ConstraintSpec, owner: int, then: Callback) -> None:
        """Check a constraint, and call `then` once with the result: the spec for the engine, or an error. The call
        comes at once if the result is known, else later on the loop. owner: the client's number."""
        if (cached := self.cache.get(spec)) is not None:
            result, expires = cached
            if expires > self._clock():
                return then(result)
        if (number := self._by_spec.get(spec)) is not None:
            self._waiting[number].callbacks.append(then)
            return None
        try:
            limits.check_size(spec, self._max_bytes)
            if sum(one.owner == owner for one in self._waiting.values()) >= QUEUE:
                raise ConstraintBusy(f"{QUEUE} constraints of this client are being compiled; try again")
            if self._n_waiting_chars + ENTRY + _n_chars(spec) > WAITING_CHARS:
                raise ConstraintBusy("too many constraints of all clients are being compiled; try again")
        except BanyanError as e:
            return then(e.with_traceback(None))  # the traceback would make a reference cycle of `then` and its program
        number = self._n_checks
        self._n_checks += 1
        self._n_waiting_chars += ENTRY + _n_chars(spec)
        self._waiting[number], self._by_spec[spec] = Waiting(spec, owner, [then]), number
        if self._child is None:
            self._start()
        elif self._is_ready:
            self._send(wire.Check(number, spec, owner))
        return None

    def receive(self) -> None:
        """Handle the results that have arrived. If the process has died, start another one for the waiting checks."""
        assert self._child is not None
        with contextlib.suppress(zmq.Again):
            while True:
                self._handle(decoders.decode_check_result(self._socket.recv(zmq.NOBLOCK)))
        if not self._child.is_alive:
            self.close()
            self._n_deaths += 1
            if self._n_deaths >= MAX_DEATHS:
                self._n_deaths = 0
                for number in list(self._waiting):
                    self._finish(number, ConstraintCrashed("the process that compiles constraints died repeatedly"))
            if self._waiting:
                self._start()
            else:
                self._on_sockets_changed()

    def close(self) -> None:
        """End the process and close the socket. Idempotent."""
        if self._child is not None:
            os.close(self._life)
            self._child.close()
            self._child = None
            self._socket.close(0)
            self._address.unlink(missing_ok=True)
            self.sockets = ()

    def _start(self) -> None:
        """Start the preflight process. When it reports that it is ready, `_handle` sends it the vocabulary and all
        waiting constraints. If no process can be started now, the waiting constraints fail, and the next `check` tries
        again."""
        try:
            with contextlib.ExitStack() as undo:
                self._start_process(undo)
                undo.pop_all()
        except (OSError, zmq.ZMQError) as e:
            error = ConstraintBusy(f"no process that compiles constraints can be started now: {e}; try again")
            for number in list(self._waiting):
                self._finish(number, error)
        self._on_sockets_changed()

    def _start_process(self, undo: contextlib.ExitStack) -> None:
        self._n_starts += 1
        self._address = ipc.child_path(self._path, "c")
        self._socket = ipc.pair(self._context, self._address)
        undo.callback(self._address.unlink, missing_ok=True)
        undo.callback(self._socket.close, 0)
        options = ["--socket", ipc.address(self._address), "--vocabulary", str(self._n_vocab)]
        options += ["--seconds", str(self._seconds), "--engine", self._engine]
        child = launch.ChildProcess([*PREFLIGHT, *options])
        undo.callback(child.close)
        self._life = os.pidfd_open(child.pid)
        self._child, self._is_ready = child, False
        self.sockets = self._socket, self._life

    def _send(self, command: wire.SetVocabulary | wire.Check) -> None:
        with contextlib.suppress(zmq.Again):  # the process has died; `_life` will report it
            self._socket.send(wire.encode(command), zmq.NOBLOCK)

    def _handle(self, result: wire.CheckResult) -> None:
        if result.id < 0:  # the process is ready; sending before that would block
            self._is_ready = True
            self._send(self._vocabulary)
            for number, one in self._waiting.items():
                self._send(wire.Check(number, one.spec, one.owner))
            return
        self._n_deaths = 0
        if result.id in self._waiting:
            self._finish(result.id, result.spec or from_code(result.code, result.message))

    def _finish(self, number: int, result: wire.ConstraintSpec | BanyanError) -> None:
        spec, _, callbacks = self._waiting.pop(number)
        del self._by_spec[spec]
        self._n_waiting_chars -= ENTRY + _n_chars(spec)
        n_chars, expires = ENTRY + _n_chars(spec), math.inf
        if isinstance(result, BanyanError):
            n_chars, expires = n_chars + len(result.message), self._clock() + ERROR_TTL
        else:
            n_chars += _n_chars(result)
        if not isinstance(result, ConstraintBusy):
            self.cache.put(spec, (result, expires), n_chars)
        for then in callbacks:
            then(result)


def _n_chars(spec: wire.ConstraintSpec) -> int:
    return sum(map(len, (spec.text, spec.end, spec.since, *spec.after)))
