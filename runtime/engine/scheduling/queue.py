"""Who of the waiting is started next. No torch, no clock, no chance.

There are four orders (`Config.schedule`):

    dfs    the oldest program first; in it depth-first: states in their order, siblings of a fork together
    fair   the program that was given least first; in it as dfs
    lpm    the longest prefix in the tree first
    fcfs   who came first

Under all of them a higher priority goes before a lower one, and of equals an earlier deadline before a later one. With
dfs and fair, tokens are divided evenly among clients that have work: a client goes on for a quantum, so that what it
has in common is used while it is there, and then the turn passes to the client that was given least. Who comes back
after a pause has saved nothing. (Counters: Sheng et al., Fairness in serving large language models, 2024; quanta of
locality: Cao et al., Locality-aware fair scheduling, 2025.)

Whatever the order, of the started every AGED_TURN-th is the one that has waited longest, if that is over PATIENCE, and
much more than those had to wait that are begun in their turn: so nobody starves, and where all have to wait for long,
the order stands.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from math import inf, isnan, nan

from banyan.runtime.config import Schedule
from banyan.runtime.engine.scheduling.policies import Depth, Order, Prefixes, RequestQueue, serial
from banyan.runtime.engine.scheduling.request import Request, ServiceAccount

PATIENCE = 10.0
"""Seconds."""
STRETCH = 3.0
"""Times the wait that is usual now, before the first start of a program."""
AGED_TURN = 4
N_KNOWN = 16384
"""Programs whose accounts are kept when they have no request here. One that is forgotten begins anew."""


class Queue:
    """The waiting requests."""

    def __init__(self, schedule: Schedule, look: Callable[[Request], int]) -> None:
        """look: how many tokens of a request the tree has."""
        self._is_by_program = schedule in ("dfs", "fair")
        self._order: Order
        if schedule == "lpm":
            self._order = Prefixes(look)
        else:
            self._order = Depth(is_fair=schedule == "fair") if self._is_by_program else RequestQueue()
        self._accounts = _Accounts()
        self._arrivals: deque[tuple[float, Request]] = deque()  # when each began to wait, oldest first; some do no more
        self._unstamped: list[Request] = []
        self._usual_wait = 0.0
        self.aged: Request | None = None  # the first, if it is that because of its wait
        self._n_started = 0
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Request]:
        return iter(self._order)

    def enter(self, request: Request, arrival: int) -> None:
        """A new request is here. Gives it its accounts, and its rank: who goes first when pages are short."""
        self._accounts.enter(request)
        run = request.run
        request.key = -run.priority, run.deadline or inf, run.order if self._is_by_program else (), arrival

    def leave(self, request: Request) -> None:
        """It has ended."""
        self._accounts.leave(request)

    def add(self, request: Request) -> None:
        """It waits, from the next `stamp` on; or goes on waiting, where `set_aside` interrupted that."""
        self._n += 1
        request.is_waiting = True
        self._order.add(request)
        if isnan(request.since):
            self._unstamped.append(request)

    def set_aside(self, request: Request) -> None:
        """Take it out for a moment; its wait goes on."""
        self._n -= 1
        request.is_waiting = False
        self._order.remove(request)

    def remove(self, request: Request) -> None:
        """It waits no longer."""
        self.set_aside(request)
        request.since = nan

    def start(self, request: Request, now: float) -> None:
        """It waits no longer, because its turn has come. Who had waited too long does not make way for others again."""
        self._n_started += 1
        if request is not self.aged and not request.program.n_served:
            self._usual_wait += 0.1 * (now - request.since - self._usual_wait)
        self.remove(request)
        if request is self.aged:
            request.key = -inf, *request.key[1:]

    def stamp(self, now: float) -> None:
        """Those that were added since the last call begin to wait now."""
        for request in self._unstamped:
            if request.is_waiting:
                request.since = now
                self._arrivals.append((now, request))
        self._unstamped.clear()
        if len(self._arrivals) > 1024 + 2 * self._n:
            self._arrivals = deque((since, request) for since, request in self._arrivals if request.since == since)

    def first(self, now: float) -> Request:
        """Who is to be started next; the same until something changes. There is one at least."""
        arrivals = self._arrivals
        if self._n_started % AGED_TURN == AGED_TURN - 1:
            while arrivals and arrivals[0][1].since != arrivals[0][0]:
                arrivals.popleft()
            if arrivals and arrivals[0][1].is_waiting:
                since, request = arrivals[0]
                if now - since > max(PATIENCE, STRETCH * self._usual_wait):
                    self.aged = request
                    return request
        self.aged = None
        return self._order.first()

    def is_still_first(self, request: Request, n_cached: int) -> bool:
        """`first` was looked up in the tree just now, and has n_cached tokens there. Where this is no, ask for the
        first again."""
        return self._order.is_still_first(request, n_cached)

    def published(self, request: Request) -> None:
        """Its prompt is in the tree now."""
        self._order.published(request)


class _Accounts:
    """Of all clients that are here, and of programs that were here lately."""

    def __init__(self) -> None:
        self._clients: dict[int, ServiceAccount] = {}
        self._programs: OrderedDict[tuple[int, int], ServiceAccount] = OrderedDict()

    def enter(self, request: Request) -> None:
        client = self._clients.get(request.run.client)
        if client is None:
            least = min((account.n_served for account in self._clients.values()), default=0)
            client = self._clients[request.run.client] = ServiceAccount(least)
        key = request.run.client, serial(request)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = ServiceAccount(0)
        self._programs.move_to_end(key)
        for account in (client, program):
            account.n_here += 1
        request.client, request.program = client, program
        while len(self._programs) > N_KNOWN and not next(iter(self._programs.values())).n_here:
            self._programs.popitem(last=False)

    def leave(self, request: Request) -> None:
        request.program.n_here -= 1
        request.client.n_here -= 1
        if not request.client.n_here:
            del self._clients[request.run.client]
