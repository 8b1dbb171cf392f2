"""Limits how many programs run side by side: only as many as fit into the cache together, the oldest first.

An admitted program needs the KV of its text again when its tool has answered. If more programs are admitted than fit,
each evicts what another needs next (Denning, The working set model for program behavior, 1968). So a request that would
evict KV of older programs is held back, unless the batch gets too small or the request has waited too long."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from math import inf
from operator import attrgetter

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.step_cost import Cost

PAUSES = 4.0
"""A program without a request counts as gone after this multiple of the mean pause between requests of a program."""
FIRST_PAUSE = 2.0  # initial estimate of that mean, in seconds
GROWTH = 1.1  # factor by which the texts of paused programs are expected to grow before they return
FIRST_ROWS = 16.0  # initial estimate of `StepTime.free_rows`


class AdmittedProgram:
    """A program whose first request has started. shared: (number of tokens, hash) of the prefix that its first request
    found in the tree, in whole pages. n_own: how many other tokens the program has in the tree."""

    def __init__(self, rank: tuple[float, ...], shared: tuple[int, int]) -> None:
        self.rank, self.shared = rank, shared
        self.n_running = self.n_own = 0
        self.paused_since = 0.0
        self._text_lengths: dict[int, int] = {}  # state -> its tokens that are counted in n_own or in shared

    def grow(self, request: Request, n_cached: int) -> None:
        """Add to n_own the tokens by which the request's text has grown since the last call for the same state of the
        program. The first call for a state counts all tokens of the text but n_cached, those that were found in the
        tree."""
        order = request.run.order
        state = order[1] if len(order) > 1 else 0
        self.n_own += request.n_total - self._text_lengths.get(state, n_cached)
        self._text_lengths[state] = request.n_total


class AdmissionControl:
    """Keeps the admitted programs in order of priority, deadline and age, and decides which requests may start."""

    def __init__(self, page: int) -> None:
        self._page = page
        self._programs: dict[tuple[int, int], AdmittedProgram] = {}
        self._by_rank: list[AdmittedProgram] = []
        # shared prefix -> number of running requests that use it
        self._shared_now: Counter[tuple[int, int]] = Counter()
        self._pause = FIRST_PAUSE

    def start(self, request: Request, n_cached: int, now: float) -> None:
        """Record that the request starts to run. If it is the first one of its program, the program is admitted.
        Ignores a request without a program: no later request will continue its text. n_cached: how many of its tokens
        were found in the tree."""
        if request.serial < 0:
            return
        program = self._programs.get(_key(request))
        if program is None:
            n = n_cached - n_cached % self._page
            program = AdmittedProgram(_rank(request), (n, hash(request.run.ids[: 4 * n])))
            self._programs[_key(request)] = program
            insort(self._by_rank, program, key=attrgetter("rank"))
        elif not program.n_running and request.n_cached < 0:  # otherwise it was retracted, which is not a pause
            self._pause += 0.1 * (now - program.paused_since - self._pause)
        program.n_running += 1
        self._shared_now[program.shared] += 1
        program.grow(request, n_cached)

    def stop(self, request: Request, now: float) -> None:
        """Record that the request no longer runs: it has ended or was retracted."""
        if program := self._programs.get(_key(request)):
            program.n_running -= 1
            program.paused_since = now
            program.grow(request, 0)
            self._shared_now[program.shared] -= 1

    def end_program(self, client: int, number: int) -> None:
        """Forget a program that has ended, and whose requests have ended."""
        if program := self._programs.pop((client, number), None):
            del self._by_rank[bisect_left(self._by_rank, program.rank, key=attrgetter("rank"))]
            self._shared_now[program.shared] -= program.n_running
            if not self._shared_now[program.shared]:
                del self._shared_now[program.shared]

    def has_room(self, request: Request, n_new: int, n_slots: int, now: float) -> bool:
        """Whether the cache has room for the KV of n_new more tokens of the request, without evicting KV of older
        programs that have paused recently, and so are expected to continue. n_slots: KV slots that no running request
        uses."""
        rank, earliest = _rank(request), now - PAUSES * self._pause
        left, counted = n_slots - n_new, set[tuple[int, int]]()
        for program in self._by_rank:
            if left < 0 or program.rank >= rank:
                break
            if not program.n_running and program.paused_since > earliest:
                left -= int(GROWTH * program.n_own)
                if not self._shared_now[program.shared] and program.shared not in counted:
                    counted.add(program.shared)
                    left -= program.shared[0]
        return left >= 0


class StepTime:
    """Learns how long a step of n rows takes, from the times between plans."""

    def __init__(self) -> None:
        self._cost = Cost(FIRST_ROWS, 0.0, 1.0)
        self._last: tuple[float, int] | None = None

    def note(self, now: float, n_rows: int) -> None:
        """Record that a step of n_rows rows starts; 0: no step starts."""
        if self._last is not None:
            self._cost.note(0, self._last[1], now - self._last[0])
        self._last = (now, n_rows) if n_rows else None

    @property
    def seconds(self) -> tuple[float, float]:
        """(seconds of a step's fixed part, seconds per row); (0.0, 0.0) if too few steps were seen."""
        return (self._cost.step(0, 0), self._cost.per_row) if self._cost.is_warm else (0.0, 0.0)

    @property
    def free_rows(self) -> float:
        """How many rows together cost as much as the fixed part of a step."""
        return max(1.0, min(self._cost.step(0, 0) / self._cost.per_row, 1000.0))


def _key(request: Request) -> tuple[int, int]:
    return request.run.client, request.serial


def _rank(request: Request) -> tuple[float, ...]:
    """The sort key of a program: (-priority, deadline, serial number, client). The smallest goes first. Two programs
    never have the same key."""
    run = request.run
    return -run.priority, run.deadline or inf, request.serial, run.client
