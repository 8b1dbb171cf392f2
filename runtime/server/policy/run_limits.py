"""What programs and gens may take: seconds and tokens. What runs out ends them, with an error that says what it was."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count

from banyan.runtime.errors import BanyanError, BudgetExceeded, DeadlineExceeded
from banyan.runtime.executor.state import RunningState
from banyan.runtime.protocol import wire
from banyan.runtime.server.programs.running_program import Client, RunningProgram

N_BATCHES = 1024
"""Batches with a budget that are remembered, all clients together. One that is forgotten starts to count anew."""


class Timer:
    """One call to come. `cancel` takes it back."""

    __slots__ = ("action", "timers")

    def __init__(self, timers: Timers, action: Callable[[], None]) -> None:
        self.timers = timers
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        if self.action is not None:
            self.action = None
            self.timers.cancelled()


class Timers:
    """Calls at their times, for a loop that asks for those that are due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()  # of two at one time, the first made is the first called
        self._n_cancelled = 0

    def now(self) -> float:
        return self._clock()

    def call(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Call `action` so many seconds from now."""
        timer = Timer(self, action)
        heappush(self._heap, (self._clock() + seconds, next(self._numbers), timer))
        return timer

    def cancelled(self) -> None:
        self._n_cancelled += 1
        if self._n_cancelled > 100 + len(self._heap) // 2:  # most are taken back long before their time
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapify(self._heap)
            self._n_cancelled = 0

    def wait(self, most: float) -> float:
        """Seconds until the next one is due; `most` where none is before that."""
        return max(0.0, min(most, self._heap[0][0] - self._clock())) if self._heap else most

    def run(self) -> None:
        """Call all that are due."""
        while self._heap and self._heap[0][0] <= self._clock():
            timer = heappop(self._heap)[2]
            if timer.action is None:
                self._n_cancelled -= 1
            else:
                action, timer.action = timer.action, None
                action()


class _Ledger:
    """Tokens that a run, a batch or a gen may still make."""

    __slots__ = ("budget", "of", "programs", "spent")

    def __init__(self, of: str, budget: int) -> None:
        self.of, self.budget, self.spent = of, budget, 0
        self.programs: set[RunningProgram] = set()

    @property
    def error(self) -> BanyanError | None:
        if self.spent <= self.budget:
            return None
        return BudgetExceeded.of(self.of, self.budget)


class Limiter:
    """Holds programs to their limits.

    end(program, error): end all that it does. stop(program, state, error): end what its state generates.
    """

    def __init__(
        self,
        timers: Timers,
        end: Callable[[RunningProgram, BanyanError], None],
        stop: Callable[[RunningProgram, RunningState, BanyanError], None],
    ) -> None:
        self._timers, self._end, self._stop = timers, end, stop
        self._programs: dict[int, tuple[RunningProgram, list[_Ledger]]] = {}  # by serial: those with a budget
        self._batches: OrderedDict[tuple[Client, int], _Ledger] = OrderedDict()
        self._deadlines: dict[int, Timer] = {}  # by serial
        self._gens: dict[tuple[int, int], tuple[_Ledger | None, Timer | None]] = {}  # by serial and state

    def begin(self, program: RunningProgram, limits: wire.ProgramLimits) -> None:
        """The program begins, under these limits."""
        if limits.timeout:
            error = _late(limits.timeout_of, limits.timeout)
            self._deadlines[program.serial] = self._timers.call(limits.left, partial(self._late, program, error))
        ledgers = [_Ledger("run", limits.budget)] if limits.budget else []
        if limits.batch >= 0 and limits.batch_budget:
            ledgers.append(self._batch((program.client, limits.batch), limits.batch_budget))
        for ledger in ledgers:
            ledger.programs.add(program)
        if ledgers:
            self._programs[program.serial] = program, ledgers
        for ledger in ledgers:
            if ledger.error is not None:
                self._timers.call(0.0, partial(self._end, program, ledger.error))

    def _late(self, program: RunningProgram, error: BanyanError) -> None:
        if not program.is_settled:  # else its time is its user's, who holds it to that
            self._end(program, error)

    def _batch(self, key: tuple[Client, int], budget: int) -> _Ledger:
        ledger = self._batches.setdefault(key, _Ledger("batch", budget))
        self._batches.move_to_end(key)
        if len(self._batches) > N_BATCHES:
            self._batches.popitem(last=False)
        return ledger

    def watch(self, program: RunningProgram, state: RunningState, op: wire.Gen | wire.Select) -> None:
        """A gen or select begins in `state`."""
        budget = op.budget if isinstance(op, wire.Gen) else 0
        if not (op.timeout or budget):
            return
        timer = None
        if op.timeout:
            of = "gen" if isinstance(op, wire.Gen) else "select"
            timer = self._timers.call(op.timeout, partial(self._stop, program, state, _late(of, op.timeout)))
        ledger = _Ledger("gen", budget) if budget else None
        if ledger is not None:
            self._programs.setdefault(program.serial, (program, []))
        self._gens[program.serial, state.number] = ledger, timer

    def rest(self, program: RunningProgram, state: RunningState) -> None:
        """What was generated in `state` is over."""
        if (watched := self._gens.pop((program.serial, state.number), None)) is not None and watched[1] is not None:
            watched[1].cancel()

    def spend(self, order: tuple[int, ...], n: int) -> None:
        """`n` tokens were made where `order` says: the program's serial, the state's number, and so on."""
        if (found := self._programs.get(order[0])) is None:
            return
        program, ledgers = found
        gen, _ = self._gens.get((order[0], order[1]), (None, None))
        if gen is not None:
            gen.spent += n
            if gen.error is not None:
                self._stop(program, program.states[order[1]], gen.error)
        for ledger in ledgers:
            ledger.spent += n
        for ledger in ledgers:
            if ledger.error is not None:
                for one in tuple(ledger.programs):
                    self._end(one, ledger.error)

    def forget(self, program: RunningProgram) -> None:
        """The program is over."""
        if (timer := self._deadlines.pop(program.serial, None)) is not None:
            timer.cancel()
        for ledger in self._programs.pop(program.serial, (program, []))[1]:
            ledger.programs.discard(program)


def _late(of: str, seconds: float) -> BanyanError:
    return DeadlineExceeded.of(of, seconds)
