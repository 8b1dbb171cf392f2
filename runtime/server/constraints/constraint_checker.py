"""Constraints on their way to the engine: each is tried in another process first, once, and never on the server's loop.

What passed, and what was refused, is remembered; so is what is under way, and asked for once however many gens wait.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import zmq

from banyan.runtime import launch
from banyan.runtime.constraint import limits
from banyan.runtime.errors import BanyanError, ConstraintBusy, ConstraintCrashed, from_code
from banyan.runtime.protocol import ipc, wire

PREFLIGHT = (sys.executable, "-m", "banyan.runtime.server.constraints.preflight")
QUEUE = 64
"""Constraints of one client that are under way at most; one more is refused as busy."""
KEPT = 16 << 20
"""Characters of constraints that are remembered."""
GRUDGE = 60.0
"""Seconds for which a refusal is remembered."""
MAX_DEATHS = 2

Then = Callable[[wire.ConstraintSpec | BanyanError], None]


class CachedVerdict(NamedTuple):
    verdict: wire.ConstraintSpec | BanyanError
    until: float


class Waiting(NamedTuple):
    """A constraint that is under way, and who is to be told."""

    spec: wire.ConstraintSpec
    owner: int
    thens: list[Then]


class ConstraintChecker:
    """All constraints of a server.

    sockets   what the loop has to poll, and call `receive` for: the preflight's socket, and a file descriptor of its
              life. None before the first constraint comes: the process is started then. `changed` says so.
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
        """`path`: the server's own socket; the preflight's goes beside it. `engine`: of regexes and choices."""
        self._context, self._path, self._vocabulary, self._n_vocab = context, path, vocabulary, n_vocab
        self._most_bytes, self._seconds, self._changed, self._clock = max_bytes, seconds, on_sockets_changed, clock
        self._engine = engine
        self._known: OrderedDict[wire.ConstraintSpec, CachedVerdict] = OrderedDict()
        self._n_kept = 0
        self._waiting: dict[int, Waiting] = {}
        self._by_spec: dict[wire.ConstraintSpec, int] = {}
        self._n_checks = self._n_starts = 0
        self._n_deaths = 0  # of preflights, since the last verdict
        self._child: launch.ChildProcess | None = None
        self.sockets: tuple[zmq.Socket[bytes] | int, ...] = ()

    def check(self, spec: wire.ConstraintSpec, owner: int, then: Then) -> None:
        """`then` is called once, now or on the loop later, with the spec that the engine gets, or with an error.
        `owner`: the client who asks."""
        if known := self._known.get(spec):
            if known.until > self._clock():
                self._known.move_to_end(spec)
                return then(known.verdict)
            self._forget(spec)
        if (number := self._by_spec.get(spec)) is not None:
            self._waiting[number].thens.append(then)
            return None
        try:
            limits.check_size(spec, self._most_bytes)
            if sum(one.owner == owner for one in self._waiting.values()) >= QUEUE:
                raise ConstraintBusy(f"{QUEUE} constraints of this client are being compiled; try again")
        except BanyanError as e:
            return then(e)
        number = self._n_checks
        self._n_checks += 1
        self._waiting[number], self._by_spec[spec] = Waiting(spec, owner, [then]), number
        if self._child is None:
            self._start()
        elif self._is_up:
            self._send(wire.Check(number, spec, owner))
        return None

    def receive(self) -> None:
        """Take the verdicts that are there; see whether the preflight still lives."""
        assert self._child is not None
        with contextlib.suppress(zmq.Again):
            while True:
                self._take(wire.decode_check_result(self._socket.recv(zmq.NOBLOCK)))
        if not self._child.is_alive:
            self.close()
            self._n_deaths += 1
            if self._n_deaths >= MAX_DEATHS:
                self._n_deaths = 0
                for number in list(self._waiting):
                    self._end(number, ConstraintCrashed("the process that compiles constraints does not stay up"))
            if self._waiting:
                self._start()
            else:
                self._changed()

    def close(self) -> None:
        """End the process and the socket. Idempotent."""
        if self._child is not None:
            os.close(self._life)
            self._child.close()
            self._child = None
            self._socket.close(0)
            self._address.unlink(missing_ok=True)
            self.sockets = ()

    def _start(self) -> None:
        """Start a preflight; once it is up, it is given all that waits."""
        self._n_starts += 1
        self._address = ipc.beside(self._path, "c")
        self._socket = ipc.pair(self._context, self._address)
        options = ["--socket", ipc.address(self._address), "--vocabulary", str(self._n_vocab)]
        options += ["--seconds", str(self._seconds), "--engine", self._engine]
        self._child = launch.ChildProcess([*PREFLIGHT, *options])
        self._life = os.pidfd_open(self._child.pid)
        self._is_up = False
        self.sockets = self._socket, self._life
        self._changed()

    def _send(self, order: wire.PreflightOrder) -> None:
        with contextlib.suppress(zmq.Again):  # it is dead, which `_life` will tell
            self._socket.send(wire.encode(order), zmq.NOBLOCK)

    def _take(self, verdict: wire.CheckResult) -> None:
        if verdict.id < 0:  # it is up: before that, a send would wait for it
            self._is_up = True
            self._send(self._vocabulary)
            for number, one in self._waiting.items():
                self._send(wire.Check(number, one.spec, one.owner))
            return
        self._n_deaths = 0
        if verdict.id in self._waiting:
            self._end(verdict.id, verdict.spec or from_code(verdict.code, verdict.message))

    def _end(self, number: int, verdict: wire.ConstraintSpec | BanyanError) -> None:
        spec, _, waiting = self._waiting.pop(number)
        del self._by_spec[spec]
        is_error = isinstance(verdict, BanyanError)
        self._known[spec] = CachedVerdict(verdict, self._clock() + GRUDGE if is_error else math.inf)
        self._n_kept += len(spec.text)
        while self._n_kept > KEPT:
            self._forget(next(iter(self._known)))
        for then in waiting:
            then(verdict)

    def _forget(self, spec: wire.ConstraintSpec) -> None:
        del self._known[spec]
        self._n_kept -= len(spec.text)
