"""The queue of waiting requests: which one starts next. Uses no torch, no clock and no randomness.

`Config.schedule` names one of four orders:

    dfs    the oldest program first; within it depth-first: states in their order, siblings of a fork together
    fair   the program that has received the fewest tokens first; within it as dfs
    lpm    the longest prefix in the tree first
    fcfs   first come, first served

In all of them a higher priority goes first, and among equal priorities an earlier deadline. dfs and fair also divide
tokens evenly among clients that have work. A client keeps its turn for at least QUANTUM tokens, so that its prefixes
are used while they are cached; then the client with the fewest tokens gets the turn. A client that returns after a
pause does not get the tokens that it missed. If it had more tokens than the others before the pause, it still waits for
them to catch up. (Sheng et al., Fairness in serving large language models, 2024; Cao et al., Locality-aware fair
scheduling, 2025.)

Every AGED_TURN-th start goes to the request that has waited longest, if it has waited longer than PATIENCE and much
longer than is usual now. So no request starves."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import inf, isnan, nan
from operator import attrgetter

from banyan.radix_cache.digests import n_common
from banyan.runtime.config import Schedule
from banyan.runtime.engine.scheduling.request import Request, ServiceAccount

PATIENCE = 10.0  # seconds
STRETCH = 3.0  # multiple of the usual wait before the first start of a program
AGED_TURN = 4
N_KNOWN = 16384
"""The token counts of up to this many programs and of as many clients are remembered while they have no requests."""
QUANTUM = 2048  # tokens by which a client or program may get ahead of the others
MAX_LEAD = 2 * QUANTUM  # tokens by which a client that returns may be ahead of the one that got least
WORTH_MOVING = 16  # tokens by which a waiting request's cached prefix must change before the request changes its place
_N_NEIGHBORS = 64  # sorted prompts on each side of a published one that are compared with it

_rank = attrgetter("key")


class QueueOrder:
    """The waiting requests, and the order in which they start. This base class orders them by `Request.key`: priority,
    then deadline, then arrival."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=_rank)

    def remove(self, request: Request) -> None:
        del self._requests[bisect_left(self._requests, request.key, key=_rank)]

    def first(self) -> Request:
        return self._requests[0]

    def is_still_first(self, request: Request, n_cached: int) -> bool:
        """Whether the first request stays first, now that n_cached of its tokens were found in the tree."""
        return True

    def published(self, request: Request) -> None:
        """Update the order after the request's prompt has been stored in the tree."""


# ---- by clients and programs ---------------------------------------------------------------------------------------

_Place = tuple[float, int, int]


class _ProgramQueue:
    """The waiting requests of one program, ordered by `Request.key`."""

    def __init__(self, request: Request, is_fair: bool) -> None:
        self.serial, self.account = request.serial, request.program
        self.is_fair = is_fair
        self.requests: list[Request] = []

    @property
    def place(self) -> _Place:
        """The sort key among the programs of one client, smallest first: (deadline, level, serial number of the
        program). deadline: the deadline of the program's first request. level: 0 if is_fair is False. Otherwise the
        number of bits of n_served // QUANTUM, where n_served counts the tokens computed for the program: each doubling
        of n_served raises the level by one. The key decreases only when a request is added in front of the first
        one."""
        level = (self.account.n_served // QUANTUM).bit_length() if self.is_fair else 0
        return self.requests[0].run.deadline or inf, level, self.serial


class _ClientQueue:
    """The programs of one client that have waiting requests."""

    def __init__(self, account: ServiceAccount) -> None:
        self.account = account
        self.programs: dict[int, _ProgramQueue] = {}
        # A heap. An entry's place may be outdated, or its program no longer waits; a program may have several entries.
        self.heap: list[tuple[_Place, int, _ProgramQueue]] = []


class _PriorityQueue:
    """The clients with waiting requests of one priority. turn: the client whose requests start now. turn_end: its turn
    ends when this many tokens have been computed for it in all."""

    def __init__(self) -> None:
        self.clients: dict[int, _ClientQueue] = {}
        self.turn: _ClientQueue | None = None
        self.turn_end = 0

    def next_client(self) -> _ClientQueue:
        """Return the client whose turn it is. The turn goes to the client with the fewest computed tokens. It ends when
        this client has QUANTUM tokens more than the client with the second fewest had when the turn began."""
        clients, turn = self.clients, self.turn
        if len(clients) == 1:
            return next(iter(clients.values()))
        if turn is None or turn.account.n_served >= self.turn_end or not turn.programs:
            by_share = sorted(clients.items(), key=lambda item: (item[1].account.n_served, item[0]))[:2]
            self.turn = turn = by_share[0][1]
            self.turn_end = by_share[1][1].account.n_served + QUANTUM
        return turn


class ProgramOrder(QueueOrder):
    """Orders requests by priority, then by client and program, and within a program depth-first."""

    def __init__(self, is_fair: bool) -> None:
        """is_fair: among the programs of a client, the one with the fewest computed tokens goes first. False: the
        oldest goes first."""
        self._is_fair = is_fair
        self._priorities: dict[int, _PriorityQueue] = {}
        self._numbers = count()  # so that a heap never compares programs

    def __iter__(self) -> Iterator[Request]:
        for priority in self._priorities.values():
            for client in priority.clients.values():
                for program in client.programs.values():
                    yield from program.requests

    def add(self, request: Request) -> None:
        run = request.run
        clients = self._priorities.setdefault(run.priority, _PriorityQueue()).clients
        client = clients.setdefault(run.client, _ClientQueue(request.client))
        program = client.programs.get(request.serial)
        if program is None:
            program = client.programs[request.serial] = _ProgramQueue(request, self._is_fair)
        insort(program.requests, request, key=_rank)
        if program.requests[0] is request:
            heappush(client.heap, (program.place, next(self._numbers), program))
            self._compact(client)

    def remove(self, request: Request) -> None:
        run = request.run
        clients = self._priorities[run.priority].clients
        client = clients[run.client]
        program = client.programs[request.serial]
        del program.requests[bisect_left(program.requests, request.key, key=_rank)]
        if program.requests:
            return
        del client.programs[program.serial]
        self._compact(client)
        if client.programs:
            return
        del clients[run.client]
        if not clients:
            del self._priorities[run.priority]

    def _compact(self, client: _ClientQueue) -> None:
        """Rebuild the heap if most of its entries are outdated."""
        if len(client.heap) > 64 + 2 * len(client.programs):
            client.heap = [(p.place, next(self._numbers), p) for p in client.programs.values()]
            heapify(client.heap)

    def first(self) -> Request:
        client = self._priorities[max(self._priorities)].next_client()
        heap = client.heap
        while True:
            place, number, program = heap[0]
            if client.programs.get(program.serial) is not program:
                heappop(heap)
            elif (current := program.place) != place:
                heapreplace(heap, (current, number, program))
            else:
                return program.requests[0]


# ---- by what is in the tree ----------------------------------------------------------------------------------------


class PrefixOrder(QueueOrder):
    """Orders requests by the length of their prefix in the tree, the longest first. A request is matched with the tree
    when it is added. When a prompt has been stored in the tree, the waiting requests next to it in sorted order are
    matched with it. An eviction is only noticed when a request that needs the evicted prefix comes first."""

    def __init__(self, n_matched: Callable[[Request], int]) -> None:
        self._n_matched = n_matched
        self._n_cached: dict[int, int] = {}  # rid -> how many tokens of the waiting request were in the tree
        # an entry is stale if its length differs from _n_cached
        self._heap: list[tuple[int, float, int, int, Request]] = []
        self._sorted: list[tuple[bytes, bytes, int, Request]] = []  # namespace, ids, rid

    def __iter__(self) -> Iterator[Request]:
        return (request for *_, request in self._sorted)

    def add(self, request: Request) -> None:
        insort(self._sorted, (request.run.namespace, request.run.ids, request.rid, request))
        self._push(request, self._n_matched(request))

    def _push(self, request: Request, n_cached: int) -> None:
        self._n_cached[request.rid] = n_cached
        run = request.run
        heappush(self._heap, (-run.priority, run.deadline or inf, -n_cached, request.rid, request))
        if len(self._heap) > 64 + 4 * len(self._n_cached):
            self._heap = [entry for entry in self._heap if self._n_cached.get(entry[3]) == -entry[2]]
            heapify(self._heap)

    def remove(self, request: Request) -> None:
        del self._n_cached[request.rid]
        del self._sorted[bisect_left(self._sorted, (request.run.namespace, request.run.ids, request.rid))]

    def first(self) -> Request:
        heap = self._heap
        while self._n_cached.get(heap[0][3]) != -heap[0][2]:
            heappop(heap)
        return heap[0][4]

    def is_still_first(self, request: Request, n_cached: int) -> bool:
        if n_cached > self._n_cached[request.rid] - WORTH_MOVING:
            return True
        self._push(request, n_cached)
        return False

    def published(self, request: Request) -> None:
        ids, namespace = request.run.ids, request.run.namespace
        at = bisect_left(self._sorted, (namespace, ids))
        for neighbors in (
            range(at, min(at + _N_NEIGHBORS, len(self._sorted))),
            range(at - 1, max(at - 1 - _N_NEIGHBORS, -1), -1),
        ):
            n = len(ids) // 4
            for i in neighbors:
                other = self._sorted[i]
                if n < self._n_cached[other[2]] + WORTH_MOVING:
                    continue  # it shares at most as much as those between it and the published prompt
                n = n_common(ids, 0, other[1]) if other[0] == namespace else 0
                if n >= self._n_cached[other[2]] + WORTH_MOVING:
                    self._push(other[3], n)


# ---- the queue -------------------------------------------------------------------------------------------------------


class Queue:
    """The waiting requests in the configured order."""

    def __init__(self, schedule: Schedule, n_matched: Callable[[Request], int]) -> None:
        """schedule: one of the orders that the module describes. n_matched: function that returns how many tokens of a
        request are in the tree."""
        self._is_by_program = schedule in ("dfs", "fair")
        self.order: QueueOrder
        if schedule == "lpm":
            self.order = PrefixOrder(n_matched)
        else:
            self.order = ProgramOrder(is_fair=schedule == "fair") if self._is_by_program else QueueOrder()
        self._clients: dict[int, ServiceAccount] = {}  # accounts of clients with requests here
        self._absent: OrderedDict[int, int] = OrderedDict()  # client -> its tokens; recent clients without requests
        # (client, serial number) -> account; also of recent programs without requests
        self._programs: OrderedDict[tuple[int, int], ServiceAccount] = OrderedDict()
        self._arrivals: OrderedDict[Request, None] = OrderedDict()  # waiting or set aside; longest wait first
        self._unstamped: list[Request] = []  # requests whose wait starts at the next `start_waits`
        self._usual_wait = 0.0
        self.aged: Request | None = None  # the request that is first because it waited too long
        self._n_started = 0
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Request]:
        return iter(self.order)

    @property
    def n_clients(self) -> int:
        """How many clients have registered requests."""
        return len(self._clients)

    def register(self, request: Request, arrival: int) -> None:
        """Set the accounts of a new request (the tokens computed for its client and for its program) and its `key`, by
        which requests are ordered. arrival: a number that grows with each request."""
        run = request.run
        client = self._clients.get(run.client)
        if client is None:
            least = min((account.n_served for account in self._clients.values()), default=0)
            n_served = max(least, min(self._absent.pop(run.client, 0), least + MAX_LEAD))
            client = self._clients[run.client] = ServiceAccount(n_served)
        key = run.client, request.serial
        program = self._programs.setdefault(key, ServiceAccount(0))
        self._programs.move_to_end(key)
        for account in (client, program):
            account.n_requests += 1
        request.client, request.program = client, program
        while len(self._programs) > N_KNOWN and not next(iter(self._programs.values())).n_requests:
            self._programs.popitem(last=False)
        request.key = -run.priority, run.deadline or inf, run.order if self._is_by_program else (), arrival

    def unregister(self, request: Request) -> bool:
        """Forget a request that has ended. Returns whether it was the last one of a program that has ended."""
        request.program.n_requests -= 1
        request.client.n_requests -= 1
        if not request.client.n_requests:
            self._absent[request.run.client] = self._clients.pop(request.run.client).n_served
            if len(self._absent) > N_KNOWN:
                self._absent.popitem(last=False)
        return request.program.has_ended and self.end_program(request.run.client, request.serial)

    def end_program(self, client: int, serial: int) -> bool:
        """Record that a program will send no more requests. Its account is deleted when its last request ends. Returns
        whether the program has no requests now."""
        if (account := self._programs.get((client, serial))) is None:
            return True
        account.has_ended = True
        if account.n_requests:
            return False
        del self._programs[client, serial]
        return True

    def add(self, request: Request) -> None:
        """Add a request. Its wait begins at the next `start_waits`; if `set_aside` removed it, its old wait
        continues."""
        self._n += 1
        request.is_waiting = True
        self.order.add(request)
        if isnan(request.waiting_since):
            self._unstamped.append(request)

    def set_aside(self, request: Request) -> None:
        """Take a request out of the queue because it cannot start yet. It keeps its waiting time. Call `add` to queue
        it again."""
        self._n -= 1
        request.is_waiting = False
        self.order.remove(request)

    def remove(self, request: Request) -> None:
        """Remove a request that waits or is set aside, and end its wait."""
        if request.is_waiting:
            self.set_aside(request)
        self._arrivals.pop(request, None)
        request.waiting_since = nan

    def start(self, request: Request, now: float) -> None:
        """Remove a request because it starts to run. If it starts because it has waited too long, it will not be
        preempted again."""
        self._n_started += 1
        # A request that this plan retracted, with its first step in flight, has not waited.
        if request is not self.aged and not request.program.n_served and not isnan(request.waiting_since):
            self._usual_wait += 0.1 * (now - request.waiting_since - self._usual_wait)
        self.remove(request)
        if request is self.aged:
            request.key = -inf, *request.key[1:]

    def start_waits(self, now: float) -> None:
        """Start the wait of the requests that were added since the last call."""
        for request in self._unstamped:
            if request.is_waiting:
                request.waiting_since = now
                self._arrivals[request] = None
        self._unstamped.clear()

    def first(self, now: float) -> Request:
        """The request to start next; the same until something changes. The queue must not be empty."""
        if self._n_started % AGED_TURN == AGED_TURN - 1:
            request = next((one for one in self._arrivals if one.is_waiting), None)
            if request is not None and now - request.waiting_since > max(PATIENCE, STRETCH * self._usual_wait):
                self.aged = request
                return request
        self.aged = None
        return self.order.first()
