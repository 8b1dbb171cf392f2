"""The server's real loop in the test's process, driven by a list of events that can be repeated exactly.

The loop polls a `_Poller`, which lets the next event happen: a client sends bytes, the engine takes a step, time
passes. Sockets, threads, child processes and the clock are replaced by objects of this file. Whenever the loop polls,
invariants are checked; one that does not hold raises a `Violation`.
"""

from __future__ import annotations

import math
import re
import select
import time
import traceback
from array import array
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import pytest
import zmq

from banyan.runtime import config
from banyan.runtime.constraint import limits
from banyan.runtime.errors import BanyanError
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.decoders import decode_client, decode_command, decode_report
from banyan.runtime.server import timers, worker
from banyan.runtime.server.engine_link import adapters, kv_hints, replicas
from banyan.runtime.server.engine_link.requests import EngineRequests
from banyan.runtime.server.policy import run_limits, work_queue
from banyan.runtime.server.programs import overview
from banyan.runtime.server.telemetry import loop_times
from banyan.runtime.server.text import token_cache

MAX_SECONDS = 0.05
"""CPU seconds after which a round of the loop is slow."""
MAX_ROUNDS = 10_000
"""Rounds of the loop within which all sent messages must be processed."""
NEIGHBOUR = b"neighbour"
"""A client whose programs must all give the same text."""


class Violation(Exception):
    """A check failed. kind: "bug" (an unexpected exception), "slow" (a round of the loop takes too long), "stuck" (the
    loop does not come to rest), "check" (an invariant of the server is broken), "kept" (data remains after all clients
    left), "neighbour" (a value of NEIGHBOUR is missing or wrong)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Event(NamedTuple):
    """One event. kind: "send" (`client` sends `data`), "leave" (`client` disconnects), "steps" (the engine takes n
    steps), "work" (the server's threads do their work), "wait" (n seconds pass), "check" (invariants are checked),
    "empty" (all clients leave; then none of their data may be left)."""

    kind: str
    client: bytes = b""
    data: bytes = b""
    n: int = 1

    def __str__(self) -> str:
        if self.kind != "send":
            return f"{self.kind} {self.client!r} {self.n}"
        try:
            what: object = decode_client(self.data)
        except wire.UNREADABLE:
            what = self.data
        text = re.sub(r"(.{1,100}?)\1{9,}", r"\1...", repr(what))  # show repeated text once
        return f"{self.client!r} sends {len(self.data)} bytes: {text if len(text) < 1000 else text[:1000] + '...'}"


class Engine(Protocol):
    @property
    def ready(self) -> wire.Ready: ...
    def take(self, command: wire.EngineCommand) -> None: ...
    def step(self) -> Sequence[wire.EngineReport]: ...


class _Listeners:
    """Stands in for Listeners."""

    address, report, peer = "", (), ""

    def __init__(self, *_: Any) -> None:
        self.sockets, self.monitors = (object(),), (object(),)
        self.arrived: deque[tuple[bytes, list[bytes]]] = deque()
        self.sent: list[tuple[bytes, bytes]] = []
        self.present: set[bytes] = set()
        self.n_left = 0  # clients that left since the loop last asked

    def receive(self) -> Iterator[tuple[bytes, list[bytes]]]:
        while self.arrived:
            yield self.arrived.popleft()

    @property
    def has_messages(self) -> bool:
        return bool(self.arrived)

    def send(self, client: bytes, data: bytes) -> bool:
        if client in self.present:
            self.sent.append((client, data))
        return client in self.present

    def has_broken(self) -> bool:
        n, self.n_left = self.n_left, 0
        return n > 0

    def release(self) -> None:
        pass


class _Link:
    """Stands in for EngineLink. Commands and reports pass through their encoding."""

    pid, n_starts, is_gone, host = 0, 1, False, ""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.ready = engine, engine.ready
        self.socket, self.life = object(), math.inf  # no ints, which the poller would take for descriptors
        self.reports: deque[bytes] = deque()
        self.is_busy = False
        self._steps: Iterator[None] = iter(())

    def set_vocabulary(self, vocabulary: wire.SetVocabulary) -> None:
        self.send(vocabulary)

    def send(self, command: wire.EngineCommand) -> None:
        self.engine.take(decode_command(wire.encode(command)))

    def receive(self, handle: Callable[[wire.EngineReport], Iterable[None]], is_late: Callable[[], bool]) -> None:
        while True:
            for _ in self._steps:
                if is_late():
                    self.is_busy = True
                    return
            if not self.reports:
                self.is_busy = False
                return
            self._steps = iter(handle(decode_report(self.reports.popleft())))

    def heartbeat(self) -> None:
        self.send(wire.Ping())

    def listen(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Threads:
    """Stands in for a ThreadPoolExecutor."""

    def __init__(self, **_: Any) -> None:
        self.work: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], None]) -> None:
        self.work.append(work)

    def shutdown(self, **_: Any) -> None:
        pass


class _Constraints:
    """Stands in for a ConstraintChecker: checks the size, and compiles nothing."""

    sockets = ()
    cache = SimpleNamespace(kept=(0, 0))

    def __init__(self, *_: Any, max_bytes: int, **__: Any) -> None:
        self._max_bytes = max_bytes

    def check(self, spec: wire.ConstraintSpec, owner: int, then: Callable[[Any], None]) -> None:
        result: wire.ConstraintSpec | BanyanError = spec
        try:
            limits.check_size(spec, self._max_bytes)
        except BanyanError as e:
            result = e
        then(result)

    def close(self) -> None:
        pass


class _Poller:
    """Stands in for a zmq.Poller. `poll` lets the next event happen."""

    def __init__(self, next_ready: Callable[[int], Iterable[object]]) -> None:
        self._next_ready = next_ready
        self._fds = select.poll()

    def register(self, source: object, flags: int) -> None:
        if isinstance(source, int):
            self._fds.register(source, select.POLLIN)

    def poll(self, timeout: int) -> list[tuple[object, int]]:
        ready = [(source, zmq.POLLIN) for source in self._next_ready(timeout)]
        return [*ready, *self._fds.poll(0)]


class ServerInProcess:
    """A server and its engine, for one run of events. receive: called with (client, data) for each message of the
    server. suspects: numbers of rounds that raise a Violation if they are slow; other slow rounds are only noted.
    options: those of Config.

    slow      numbers of the slow rounds. A round that the machine made slow is probably not slow when the events are
              repeated
    """

    def __init__(
        self,
        model: Path,
        socket: Path,
        engine: Engine,
        receive: Callable[[bytes, bytes], None],
        suspects: Container[int] = (),
        **options: Any,
    ) -> None:
        self._config = config.make(model=str(model), socket=str(socket), **options)
        self._engine, self._receive, self._suspects = engine, receive, suspects
        self._now = 1000.0
        self._n_readings = 0
        self._bugs: list[str] = []
        self._texts: dict[int, Counter[str]] = {}  # ref -> the texts that the neighbour got for it
        self._n_neighbours = 0  # programs of the neighbour
        self._has_more = False  # the loop has work that no event causes
        self._empty: Counter[str] | None = None
        self._n_rounds = 0
        self.slow: set[int] = set()

    def run(self, events: Iterable[Event]) -> None:
        """Let all events happen. Raises Violation."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "Listeners", _Listeners)
            patch.setattr(replicas, "EngineLink", lambda *_: _Link(self._engine))
            patch.setattr(worker, "ThreadPoolExecutor", _Threads)
            patch.setattr(worker, "ConstraintChecker", _Constraints)
            patch.setattr(worker, "Timers", lambda: timers.Timers(self._clock))
            patch.setattr(loop_times, "CLOCK", self._count_reading)
            patch.setattr(worker, "Random", lambda: Random(0))
            patch.setattr(worker, "EngineRequests", lambda *a, **k: EngineRequests(*a, clock=self._clock, **k))
            patch.setattr(zmq, "Poller", lambda: _Poller(self._next_ready))
            for name in ("print_exc", "print_exception"):
                patch.setattr(traceback, name, self._note_bug)
            self._server: Any = worker.Server(self._config, None, None, False, ())
            self._rounds = self._follow(iter(events))
            try:
                self._server.run()
            except Violation:
                raise
            except Exception as e:
                raise Violation("bug", "".join(traceback.format_exception(e))) from e
            finally:
                self._server = None

    def _clock(self) -> float:
        return self._now

    def _count_reading(self) -> float:
        """A clock that advances by 1/40 of the loop's time slice per reading: work yields often, and repeatably."""
        self._n_readings += 1
        return self._n_readings * work_queue.SLICE / 40

    def _note_bug(self, error: BaseException | None = None, **_: Any) -> None:
        self._bugs.append("".join(traceback.format_exception(error)) if error else traceback.format_exc())

    # ---- the rounds of the loop ------------------------------------------------------------------------------------

    def _next_ready(self, timeout: int) -> Iterable[object]:
        self._has_more = timeout == 0
        return next(self._rounds)

    def _follow(self, events: Iterator[Event]) -> Iterator[Iterable[object]]:
        """Yields, for each round of the loop, the sockets that are ready. Checks each round after it."""
        for event in events:
            for ready in self._happen(event):
                start = time.thread_time()
                yield ready
                self._check_round(time.thread_time() - start)
        self._server.stop()
        yield ()

    def _happen(self, event: Event) -> Iterator[Iterable[object]]:
        listeners, link = self._server.listeners, next(iter(self._server.replicas)).link
        match event.kind:
            case "send":
                listeners.present.add(event.client)
                listeners.arrived.append((event.client, [event.data]))
                self._n_neighbours += event.client == NEIGHBOUR and isinstance(decode_client(event.data), wire.Submit)
                yield listeners.sockets
            case "leave":
                listeners.present.discard(event.client)
                listeners.n_left += 1
                yield listeners.monitors
            case "steps":
                for _ in range(event.n):
                    if reports := self._engine.step():
                        link.reports.extend(map(wire.encode, reports))
                        yield (link.socket,)
            case "work":
                for _ in range(len(work := self._server._threads.work)):
                    work.popleft()()
                yield ()
            case "wait":
                self._now += event.n
                yield ()
            case "check":
                for _ in range(MAX_ROUNDS):
                    if not self._has_more:
                        break
                    yield ()
                else:
                    raise Violation("stuck", f"the loop still has work after {MAX_ROUNDS} rounds")
                if problem := self._server.programs.check():
                    raise Violation("check", problem)
            case "empty":
                yield from self._leave_all()
        yield ()  # for calls that the round has scheduled

    def _leave_all(self) -> Iterator[Iterable[object]]:
        """Let all clients leave, then check which data is left. The first time, record it as normal."""
        for kind in ("work", "steps") * 20:
            yield from self._happen(Event(kind))
        if any(set(texts.values()) != {self._n_neighbours} for texts in self._texts.values()):
            raise Violation("neighbour", f"{self._n_neighbours} programs gave {self._texts}")
        for client in tuple(self._server.listeners.present):
            yield from self._happen(Event("leave", client))
        for event in (Event("wait", n=1_000_000), Event("work"), Event("steps"), Event("check")):
            yield from self._happen(event)
        left = sizes(self._server)
        if self._empty is None:
            self._empty = left
        kept = {
            path: f"{self._empty[path]} -> {n}"
            for path, n in left.items()
            if n > max(self._empty[path], BOUNDED.get(path.split(".")[-1].rstrip("[]"), 0))
        }
        if kept:
            raise Violation("kept", str(kept))

    def _check_round(self, seconds: float) -> None:
        if self._bugs:
            raise Violation("bug", "".join(self._bugs))
        self._n_rounds += 1
        if seconds > MAX_SECONDS:
            self.slow.add(self._n_rounds)
            if self._n_rounds in self._suspects:
                raise Violation("slow", f"{seconds * 1000:.0f} ms of the loop")
        listeners = self._server.listeners
        for client, data in listeners.sent:
            if client == NEIGHBOUR:
                self._note_text(wire.decode_server(data))
            self._receive(client, data)
        listeners.sent.clear()

    def _note_text(self, message: wire.ServerMessage) -> None:
        if isinstance(message, wire.Failed):
            raise Violation("neighbour", message.message)
        if isinstance(message, wire.Value):
            self._texts.setdefault(message.ref, Counter())[message.samples[0].text] += 1


BOUNDED = {
    "_ended": 1000 * overview.MAX_PROGRAMS,
    "_adapters": adapters.MAX_ADAPTERS,
    "_shared": run_limits.MAX_SHARED,
    "_cache": token_cache.MAX_BYTES // token_cache.ENTRY,
    "_longest": 100,  # kinds of work
    "_heap": 300,  # timers that are cancelled
    "_kwargs": 10_000,  # of cached templates
    "_estimates": kv_hints.MAX_NAMES,
    "_overdue": 3000,
    "_refusals": worker.MAX_COUNTED_PEERS,
    "_stop_ids": 100,
    "_tools": 10_000,  # of cached templates
    "_values": 10_000,  # of a cache with a limit in bytes
    "_vocabulary": 320,  # made when a stop string first asks for it
    "closed_files": 100,  # the files of durable programs
}
"""Attributes whose entries outlive their client, and how many there may be."""


def sizes(root: object) -> Counter[str]:
    """Path of attributes -> number of items in the containers there, for all objects below `root`. All items of a
    container share a path."""
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while left:
        path, value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict | list | set | deque):
            counts[path] += len(value)
        if isinstance(value, bytes | bytearray | array):
            continue
        if isinstance(value, dict):
            left += [(f"{path}[]", one) for one in value.values()]
        elif isinstance(value, list | set | deque | tuple):
            left += [(f"{path}[]", one) for one in value]
        elif type(value).__module__.startswith("banyan."):
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            left += [
                (f"{path}.{name}", getattr(value, name, None)) for name in (*getattr(value, "__dict__", ()), *slots)
            ]
    return counts


def shortest(events: Sequence[Event], fails: Callable[[Sequence[Event]], bool], seconds: float = 60.0) -> list[Event]:
    """A short subsequence of `events` for which `fails` still holds. Tries for `seconds` to leave out ever shorter
    stretches."""
    kept, size, end = list(events), max(1, len(events) // 2), time.monotonic() + seconds
    while True:
        at = 0
        while at < len(kept) and time.monotonic() < end:
            fewer = kept[:at] + kept[at + size :]
            if fails(fewer):
                kept = fewer
            else:
                at += size
        if size == 1:
            return kept
        size //= 2
