"""The orders in which requests are started. queue.py holds one of them, and sees to what all have in common."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import inf
from operator import attrgetter
from typing import Protocol

from banyan.radix_cache.node import n_common
from banyan.runtime.engine.scheduling.request import Request, ServiceAccount

QUANTUM = 2048
"""Tokens that a client or a program may get ahead of the others."""
WORTH_MOVING = 16
"""Tokens: a waiting request whose prefix in the tree is longer, or shorter, by less keeps its place."""
_N_LOOK = 64  # waiting requests on each side of a prompt that are told when it is in the tree

_rank = attrgetter("key")


class Order(Protocol):
    """Waiting requests, and which of them is the first."""

    def add(self, request: Request) -> None: ...

    def remove(self, request: Request) -> None: ...

    def first(self) -> Request:
        """There is one at least."""

    def is_still_first(self, request: Request, n_cached: int) -> bool:
        """The first was looked up in the tree just now."""

    def published(self, request: Request) -> None:
        """Its prompt is in the tree now."""

    def __iter__(self) -> Iterator[Request]: ...


class RequestQueue:
    """In rank."""

    def __init__(self) -> None:
        self._line: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)

    def add(self, request: Request) -> None:
        insort(self._line, request, key=_rank)

    def remove(self, request: Request) -> None:
        del self._line[bisect_left(self._line, request.key, key=_rank)]

    def first(self) -> Request:
        return self._line[0]

    def is_still_first(self, request: Request, n_cached: int) -> bool:
        return True

    def published(self, request: Request) -> None:
        pass


# ---- by clients and programs ---------------------------------------------------------------------------------------


class _ProgramQueue:
    """Of one program those that wait, in rank. key: its place among its client's; it never falls while they wait."""

    __slots__ = ("account", "deadline", "key", "line", "serial")

    def __init__(self, request: Request, is_fair: bool) -> None:
        self.serial, self.account = serial(request), request.program
        self.deadline = request.run.deadline or inf
        self.line: list[Request] = []
        self.key = self.place(is_fair)

    def place(self, is_fair: bool) -> tuple[float, int, int]:
        """Deadline; with `is_fair`, how often what it was given has doubled, from a quantum on; age."""
        level = (self.account.n_served // QUANTUM).bit_length() if is_fair else 0
        return self.deadline, level, self.serial


class _Client:
    """The programs of one client that have somebody waiting."""

    def __init__(self, account: ServiceAccount) -> None:
        self.account = account
        self.programs: dict[int, _ProgramQueue] = {}
        self.heap: list[tuple[tuple[float, int, int], int, _ProgramQueue]] = []  # some wait no more


class _Class:
    """All that wait with one priority. turn: the client that goes on until it was given `upto`."""

    def __init__(self) -> None:
        self.clients: dict[int, _Client] = {}
        self.turn: _Client | None = None
        self.upto = 0


class Depth:
    """By priority; then by client; then by program; and in it depth-first."""

    def __init__(self, is_fair: bool) -> None:
        """is_fair: among programs, too, who was given least goes first; else the oldest."""
        self._is_fair = is_fair
        self._classes: dict[int, _Class] = {}
        self._numbers = count()  # a heap never compares programs

    def __iter__(self) -> Iterator[Request]:
        for some in self._classes.values():
            for client in some.clients.values():
                for program in client.programs.values():
                    yield from program.line

    def add(self, request: Request) -> None:
        run = request.run
        some = self._classes.get(run.priority)
        if some is None:
            some = self._classes[run.priority] = _Class()
        client = some.clients.get(run.client)
        if client is None:
            client = some.clients[run.client] = _Client(request.client)
        program = client.programs.get(serial(request))
        if program is None:
            program = client.programs[serial(request)] = _ProgramQueue(request, self._is_fair)
            heappush(client.heap, (program.key, next(self._numbers), program))
        insort(program.line, request, key=_rank)

    def remove(self, request: Request) -> None:
        run = request.run
        some = self._classes[run.priority]
        client = some.clients[run.client]
        program = client.programs[serial(request)]
        del program.line[bisect_left(program.line, request.key, key=_rank)]
        if program.line:
            return
        del client.programs[program.serial]
        if len(client.heap) > 64 + 2 * len(client.programs):
            client.heap = [(p.key, next(self._numbers), p) for p in client.programs.values()]
            heapify(client.heap)
        if client.programs:
            return
        del some.clients[run.client]
        if not some.clients:
            del self._classes[run.priority]

    def first(self) -> Request:
        client = self._client(self._classes[max(self._classes)])
        heap = client.heap
        while True:
            key, number, program = heap[0]
            if client.programs.get(program.serial) is not program:
                heappop(heap)
            elif (now := program.place(self._is_fair)) != key:
                program.key = now
                heapreplace(heap, (now, number, program))
            else:
                return program.line[0]

    def _client(self, some: _Class) -> _Client:
        """Whose turn it is: who has it keeps it for a quantum, then who was given least has it."""
        clients, turn = some.clients, some.turn
        if len(clients) == 1:
            return next(iter(clients.values()))
        if turn is None or turn.account.n_served >= some.upto or not turn.programs:
            by_share = sorted(clients.items(), key=lambda item: (item[1].account.n_served, item[0]))[:2]
            some.turn = turn = by_share[0][1]
            some.upto = by_share[1][1].account.n_served + QUANTUM
        return turn

    def is_still_first(self, request: Request, n_cached: int) -> bool:
        return True

    def published(self, request: Request) -> None:
        pass


def serial(request: Request) -> int:
    """Of its program; -1 if it is of none."""
    return request.run.order[0] if request.run.order else -1


# ---- by what is in the tree ----------------------------------------------------------------------------------------


class Prefixes:
    """The longest prefix in the tree first. Each is looked up once; then, of what changes in the tree, those are told
    whom it concerns: of sorted prompts, they stand beside the one that was published. What was evicted is noticed when
    its request comes to be the first."""

    def __init__(self, look: Callable[[Request], int]) -> None:
        self._look = look
        self._n_cached: dict[int, int] = {}  # by rid: those that wait, and how much of them the tree had
        self._heap: list[tuple[int, float, int, int, Request]] = []  # stale where the length is not that above
        self._sorted: list[tuple[bytes, bytes, int, Request]] = []  # namespace, ids, rid

    def __iter__(self) -> Iterator[Request]:
        return (request for *_, request in self._sorted)

    def add(self, request: Request) -> None:
        insort(self._sorted, (request.run.namespace, request.run.ids, request.rid, request))
        self._place(request, self._look(request))

    def _place(self, request: Request, n_cached: int) -> None:
        self._n_cached[request.rid] = n_cached
        run = request.run
        heappush(self._heap, (-run.priority, run.deadline or inf, -n_cached, request.rid, request))
        if len(self._heap) > 64 + 4 * len(self._n_cached):
            self._heap = [entry for entry in self._heap if self._holds(entry[2], entry[4])]
            heapify(self._heap)

    def _holds(self, n: int, request: Request) -> bool:
        return self._n_cached.get(request.rid) == -n

    def remove(self, request: Request) -> None:
        del self._n_cached[request.rid]
        i = bisect_left(self._sorted, (request.run.namespace, request.run.ids, request.rid))
        del self._sorted[i]

    def first(self) -> Request:
        while not self._holds(self._heap[0][2], self._heap[0][4]):
            heappop(self._heap)
        return self._heap[0][4]

    def is_still_first(self, request: Request, n_cached: int) -> bool:
        if n_cached > self._n_cached[request.rid] - WORTH_MOVING:
            return True
        self._place(request, n_cached)
        return False

    def published(self, request: Request) -> None:
        ids, namespace = request.run.ids, request.run.namespace
        at = bisect_left(self._sorted, (namespace, ids))
        for side in (range(at, min(at + _N_LOOK, len(self._sorted))), range(at - 1, max(at - 1 - _N_LOOK, -1), -1)):
            for i in side:
                other = self._sorted[i]
                n = n_common(ids, 0, other[1]) if other[0] == namespace else 0
                if n < self._n_cached[other[2]] + WORTH_MOVING:
                    break
                self._place(other[3], n)
