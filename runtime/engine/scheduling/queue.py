"""The queue of waiting requests: which one starts next. No torch, no clock, no chance.

`Config.schedule` names one of four orders:

    dfs    the oldest program first; within it depth-first: states in their order, siblings of a fork together
    fair   the program that has received the fewest tokens first; within it as dfs
    lpm    the longest prefix in the tree first
    fcfs   first come, first served

In all of them a higher priority goes first, and among equals an earlier deadline. dfs and fair also divide tokens
evenly among clients that have work: a client keeps its turn for a quantum of tokens, so that its prefixes are used
while they are cached, then the one with the fewest tokens gets it. A client that returns after a pause has saved up
nothing. (Sheng et al., Fairness in serving large language models, 2024; Cao et al., Locality-aware fair scheduling,
2025.)

Every AGED_TURN-th start goes to the request that has waited longest, if it has waited longer than PATIENCE and much
longer than is usual now, so none starves."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from math import inf, isnan, nan

from banyan.runtime.config import Schedule
from banyan.runtime.engine.scheduling.policies import ArrivalOrder, PrefixOrder, ProgramOrder, QueueOrder, serial
from banyan.runtime.engine.scheduling.request import Request, ServiceAccount

PATIENCE = 10.0  # seconds
STRETCH = 3.0  # multiple of the usual wait before the first start of a program
AGED_TURN = 4
N_KNOWN = 16384  # Programs whose accounts are kept while they have no request here. A forgotten one starts from zero.


class Queue:
    """The waiting requests in the configured order."""

    def __init__(self, schedule: Schedule, n_matched: Callable[[Request], int]) -> None:
        """n_matched: how many tokens of a request are in the tree."""
        self._is_by_program = schedule in ("dfs", "fair")
        self.order: QueueOrder
        if schedule == "lpm":
            self.order = PrefixOrder(n_matched)
        else:
            self.order = ProgramOrder(is_fair=schedule == "fair") if self._is_by_program else ArrivalOrder()
        self._clients: dict[int, ServiceAccount] = {}  # of those with requests here
        self._programs: OrderedDict[tuple[int, int], ServiceAccount] = OrderedDict()  # of recent ones too
        self._arrivals: deque[tuple[float, Request]] = deque()  # start of each wait, oldest first; some are over
        self._unstamped: list[Request] = []  # whose wait starts at the next `start_waits`
        self._usual_wait = 0.0
        self.aged: Request | None = None  # the first, where it is first because of its wait
        self._n_started = 0
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Request]:
        return iter(self.order)

    def register(self, request: Request, arrival: int) -> None:
        """Give a new request its accounts and its rank."""
        run = request.run
        client = self._clients.get(run.client)
        if client is None:
            least = min((account.n_served for account in self._clients.values()), default=0)
            client = self._clients[run.client] = ServiceAccount(least)
        key = run.client, serial(request)
        program = self._programs.setdefault(key, ServiceAccount(0))
        self._programs.move_to_end(key)
        for account in (client, program):
            account.n_requests += 1
        request.client, request.program = client, program
        while len(self._programs) > N_KNOWN and not next(iter(self._programs.values())).n_requests:
            self._programs.popitem(last=False)
        request.key = -run.priority, run.deadline or inf, run.order if self._is_by_program else (), arrival

    def unregister(self, request: Request) -> None:
        """The request has ended."""
        request.program.n_requests -= 1
        request.client.n_requests -= 1
        if not request.client.n_requests:
            del self._clients[request.run.client]

    def add(self, request: Request) -> None:
        """The request waits, counted from the next `start_waits`, or from before where `set_aside` removed it."""
        self._n += 1
        request.is_waiting = True
        self.order.add(request)
        if isnan(request.waiting_since):
            self._unstamped.append(request)

    def set_aside(self, request: Request) -> None:
        """Take the request out until it is added again. Its wait goes on."""
        self._n -= 1
        request.is_waiting = False
        self.order.remove(request)

    def remove(self, request: Request) -> None:
        """The request waits no longer."""
        self.set_aside(request)
        request.waiting_since = nan

    def start(self, request: Request, now: float) -> None:
        """The request starts running. One that started because of its wait will not be preempted again."""
        self._n_started += 1
        if request is not self.aged and not request.program.n_served:
            self._usual_wait += 0.1 * (now - request.waiting_since - self._usual_wait)
        self.remove(request)
        if request is self.aged:
            request.key = -inf, *request.key[1:]

    def start_waits(self, now: float) -> None:
        """The wait of requests added since the last call starts now."""
        for request in self._unstamped:
            if request.is_waiting:
                request.waiting_since = now
                self._arrivals.append((now, request))
        self._unstamped.clear()
        if len(self._arrivals) > 1024 + 2 * self._n:
            self._arrivals = deque((since, r) for since, r in self._arrivals if r.waiting_since == since)

    def first(self, now: float) -> Request:
        """The request to start next; the same until something changes. The queue must not be empty."""
        arrivals = self._arrivals
        if self._n_started % AGED_TURN == AGED_TURN - 1:
            while arrivals and arrivals[0][1].waiting_since != arrivals[0][0]:
                arrivals.popleft()
            if arrivals and arrivals[0][1].is_waiting:
                since, request = arrivals[0]
                if now - since > max(PATIENCE, STRETCH * self._usual_wait):
                    self.aged = request
                    return request
        self.aged = None
        return self.order.first()
