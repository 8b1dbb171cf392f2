"""Timeouts and token budgets of programs and gens. A program or gen that exceeds a limit ends with an error that names
the limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from banyan.runtime.errors import BanyanError, BudgetExceeded, DeadlineExceeded
from banyan.runtime.executor.state import RunningState
from banyan.runtime.protocol import wire
from banyan.runtime.server.programs.running_program import Client, RunningProgram
from banyan.runtime.server.programs.scheduling import check_priority, check_seconds
from banyan.runtime.server.timers import Timer, Timers

MAX_SHARED = 1024
"""How many shared budgets are kept per client. For later programs, a budget that was dropped counts from 0 again."""


ENDED = 16
"""How many programs that share a budget are ended in one step when the budget is spent."""


class _Budget:
    """A limit on the generated tokens of a run, a batch or a gen, and the tokens spent so far."""

    __slots__ = ("limit", "of", "programs", "spent")

    def __init__(self, of: str, limit: int) -> None:
        self.of, self.limit, self.spent = of, limit, 0
        self.programs: set[RunningProgram] = set()

    @property
    def error(self) -> BanyanError | None:
        return BudgetExceeded.of(self.of, self.limit) if self.spent > self.limit else None


class Limiter:
    """Enforces the timeouts and token budgets of programs and gens.

    It calls end(program, error) to end a program, and stop(program, state, error) to end the gen or select that runs in
    a state."""

    def __init__(
        self,
        timers: Timers,
        end: Callable[[RunningProgram, BanyanError], None],
        stop: Callable[[RunningProgram, RunningState, BanyanError], None],
    ) -> None:
        self._timers, self._end, self._stop = timers, end, stop
        self._programs: dict[int, tuple[RunningProgram, list[_Budget]]] = {}  # serial of a program -> its budgets
        self._shared: dict[Client, OrderedDict[int, _Budget]] = {}  # by the number of the budget
        self._timeouts: dict[int, Timer] = {}  # by serial
        # (serial of the program, state) -> budget and timeout of its gen or select
        self._gens: dict[tuple[int, int], tuple[_Budget | None, Timer | None]] = {}

    def begin(self, program: RunningProgram, limits: wire.ProgramLimits) -> None:
        """Enforce the limits of a program that starts. BadProgram: a limit has an invalid value."""
        check_priority(limits.priority, limits.deadline)
        check_seconds("timeout", limits.timeout)
        check_seconds("what is left of the timeout", limits.left)
        if limits.timeout:
            error = DeadlineExceeded.of(limits.timeout_of, limits.timeout)
            self._timeouts[program.serial] = self._timers.call(limits.left, partial(self._time_out, program, error))
        budgets = [self._budget(program.client, limit) for limit in limits.budgets]
        if budgets:
            self._programs[program.serial] = program, budgets
        for budget in budgets:
            budget.programs.add(program)
            if budget.error is not None:
                self._timers.call(0.0, partial(self._end, program, budget.error))

    def _time_out(self, program: RunningProgram, error: BanyanError) -> None:
        if not program.is_settled:  # otherwise only the user's code is running, and the client enforces the timeout
            self._end(program, error)

    def _budget(self, client: Client, limit: wire.TokenLimit) -> _Budget:
        budget = _Budget(limit.of, limit.tokens)
        if limit.number < 0:
            return budget
        shared = self._shared.setdefault(client, OrderedDict())
        budget = shared.setdefault(limit.number, budget)
        shared.move_to_end(limit.number)
        if len(shared) > MAX_SHARED:
            shared.popitem(last=False)
        return budget

    def watch(self, program: RunningProgram, state: RunningState, op: wire.Gen | wire.Select) -> None:
        """Enforce the limits of a gen or select that starts in a state."""
        limit = op.budget if isinstance(op, wire.Gen) else 0
        if not (op.timeout or limit):
            return
        timer = None
        if op.timeout:
            error = DeadlineExceeded.of(type(op).__name__.lower(), op.timeout)
            timer = self._timers.call(op.timeout, partial(self._stop, program, state, error))
        budget = _Budget("gen", limit) if limit else None
        if budget is not None:
            self._programs.setdefault(program.serial, (program, []))
        self._gens[program.serial, state.number] = budget, timer

    def rest(self, program: RunningProgram, state: RunningState) -> None:
        """Stop enforcing the timeout and budget of the gen or select that has ended in a state."""
        if (watched := self._gens.pop((program.serial, state.number), None)) is not None and watched[1] is not None:
            watched[1].cancel()

    def spend(self, order: tuple[int, ...], n: int) -> None:
        """Count `n` tokens that a request generated. order: as in wire.Run."""
        if (found := self._programs.get(order[0])) is None:
            return
        program, budgets = found
        gen, _ = self._gens.get((order[0], order[1]), (None, None))
        if gen is not None:
            gen.spent += n
            if gen.error is not None:
                self._stop(program, program.states[order[1]], gen.error)
        for budget in budgets:
            budget.spent += n
        for budget in budgets:
            if budget.error is not None:
                self._end_programs(budget, budget.error)

    def _end_programs(self, budget: _Budget, error: BanyanError) -> None:
        """End all programs that share a budget with `error`, ENDED of them at once and the others in later calls."""
        for _ in range(min(len(budget.programs), ENDED)):
            self._end(budget.programs.pop(), error)
        if budget.programs:
            self._timers.call(0.0, partial(self._end_programs, budget, error))

    def forget(self, program: RunningProgram) -> None:
        """Forget a program that has ended."""
        if (timer := self._timeouts.pop(program.serial, None)) is not None:
            timer.cancel()
        for budget in self._programs.pop(program.serial, (program, []))[1]:
            budget.programs.discard(program)

    def forget_client(self, client: Client) -> None:
        """Forget a client that is gone and whose programs have ended."""
        self._shared.pop(client, None)
