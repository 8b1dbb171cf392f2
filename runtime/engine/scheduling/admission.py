"""Which programs have their turn: as many as fit into the cache together, the oldest first.

A program that is begun has text in the tree, and needs it again when its tool has answered. Where more are begun than
fit, each evicts what another needs next, and most of what is computed has been computed before: thrashing (Denning,
The working set model for program behavior, 1968). So a request is held back that would evict the texts of older
programs; unless to hold it back costs more, as the batch is then smaller than it could be; or unless it has waited for
too long.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from math import inf
from operator import attrgetter

from banyan.runtime.engine.scheduling.policies import serial
from banyan.runtime.engine.scheduling.request import Request

PAUSES = 4.0
"""A program that has no request counts as gone after so many times the mean pause between two requests of one."""
FIRST_PAUSE = 2.0
"""Seconds: that mean, before it is known."""
GROWTH = 1.1
"""By so much the texts of programs that pause will have grown when they come back."""

_rank = attrgetter("rank")


class AdmittedProgram:
    """One that is begun.

    shared    tokens that stood in the tree before it came, in whole pages, and what tells them from others
    n_own     tokens of it beside those, if all of them are in the tree
    """

    __slots__ = ("_texts", "n_own", "n_running", "paused_since", "rank", "shared")

    def __init__(self, rank: tuple[float, ...], shared: tuple[int, int]) -> None:
        self.rank, self.shared = rank, shared
        self.n_running = 0
        self.paused_since = 0.0
        self.n_own = 0
        self._texts: dict[int, int] = {}  # by state: how many tokens of it are counted

    def grow(self, request: Request, n_cached: int) -> None:
        """The request's state has a text as long as it is now. Where it is new, n_cached of that was there already."""
        state = _state(request)
        self.n_own += request.n_total - self._texts.get(state, n_cached)
        self._texts[state] = request.n_total


class AdmissionControl:
    """The programs that are begun, by age."""

    def __init__(self, page: int) -> None:
        self._page = page
        self._programs: dict[tuple[int, int], AdmittedProgram] = {}
        self._by_rank: list[AdmittedProgram] = []
        self._shared_now: Counter[tuple[int, int]] = Counter()  # of those that run
        self._pause = FIRST_PAUSE

    def __len__(self) -> int:
        return len(self._by_rank)

    def run(self, request: Request, n_cached: int, now: float) -> None:
        """It runs from now on, and with it its program begins, if that is new."""
        program = self._programs.get(_key(request))
        if program is None:
            program = self._programs[_key(request)] = AdmittedProgram(_place(request), self._shared(request, n_cached))
            insort(self._by_rank, program, key=_rank)
        elif not program.n_running and request.n_cached < 0:  # else it was retracted: that is no pause of its own
            self._pause += 0.1 * (now - program.paused_since - self._pause)
        program.n_running += 1
        self._shared_now[program.shared] += 1
        program.grow(request, n_cached)

    def rest(self, request: Request, now: float) -> None:
        """It runs no longer: it has ended, or was retracted."""
        if program := self._programs.get(_key(request)):
            program.n_running -= 1
            program.paused_since = now
            program.grow(request, 0)
            self._shared_now[program.shared] -= 1

    def forget(self, client: int, number: int) -> None:
        """The program is over."""
        if program := self._programs.pop((client, number), None):
            del self._by_rank[bisect_left(self._by_rank, program.rank, key=_rank)]
            self._shared_now[program.shared] -= program.n_running
            if not self._shared_now[program.shared]:
                del self._shared_now[program.shared]

    def has_room(self, request: Request, n_new: int, n_slots: int, now: float) -> bool:
        """Whether n_new tokens of it find room in n_slots, those that nobody uses in this moment, beside the texts of
        older programs that pause."""
        place, latest = _place(request), now - PAUSES * self._pause
        left, seen = n_slots - n_new, set[tuple[int, int]]()
        for program in self._by_rank:
            if left < 0 or program.rank >= place:
                break
            if not program.n_running and program.paused_since > latest:
                left -= int(GROWTH * program.n_own)
                if not self._shared_now[program.shared] and program.shared not in seen:
                    seen.add(program.shared)
                    left -= program.shared[0]
        return left >= 0

    def _shared(self, request: Request, n_cached: int) -> tuple[int, int]:
        n = n_cached - n_cached % self._page
        return n, hash(request.run.ids[: 4 * n])


FIRST_ROWS = 16.0
"""Pace.rows before anything is known."""


class Pace:
    """What a step costs, for itself and for each row: learned from the times between plans, by least squares."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self._last: tuple[float, int] | None = None

    def note(self, now: float, n_rows: int) -> None:
        """A step of n_rows begins; 0: none does."""
        if self._last is not None and (seconds := now - self._last[0]) > 0:
            x, keep = self._last[1], 0.99  # a hundred steps or so count
            self._n, self._x, self._y = keep * self._n + 1, keep * self._x + x, keep * self._y + seconds
            self._xx, self._xy = keep * self._xx + x * x, keep * self._xy + x * seconds
        self._last = (now, n_rows) if n_rows else None

    @property
    def rows(self) -> float:
        """How many rows cost as much as the step itself: up to there, one more costs next to nothing."""
        spread = self._n * self._xx - self._x * self._x
        if self._n < 20 or spread <= 0:
            return FIRST_ROWS
        slope = (self._n * self._xy - self._x * self._y) / spread
        fixed = (self._y - slope * self._x) / self._n
        return max(1.0, min(fixed / slope, 1000.0)) if slope > 0 else 1000.0


def _key(request: Request) -> tuple[int, int]:
    return request.run.client, serial(request)


def _state(request: Request) -> int:
    return request.run.order[1] if len(request.run.order) > 1 else 0


def _place(request: Request) -> tuple[float, ...]:
    """By priority, deadline and age; no two programs share one."""
    run = request.run
    return -run.priority, run.deadline or inf, serial(request), run.client
