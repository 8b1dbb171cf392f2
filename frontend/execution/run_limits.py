"""Timeouts, token budgets, priorities and deadlines of batches, runs and gens. The client also enforces timeouts and
budgets itself, in case the server no longer responds."""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, Literal, NamedTuple, Protocol

from banyan.backends.base import OpenProgram
from banyan.execution.clock import Alarm, clock
from banyan.lang.sampling import Options
from banyan.runtime.errors import BadProgram, BudgetExceeded, DeadlineExceeded
from banyan.runtime.future import ValueFuture, when_all_done
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_BUDGETS

GRACE = 0.5
"""Seconds that the client waits after a timeout before it stops the run. In this time the server (for a gen) or the
body (for a batch) can report the timeout itself, with the gen and its line."""

_MIN_DEADLINE = 1e-6
"""Seconds. Sent for a deadline that has passed, because 0 means that there is no deadline."""

_budget_numbers = count()


class RunEnd(NamedTuple):
    """When a run must end: the time, whose timeout it is, and the timeout in seconds."""

    at: float
    of: Literal["run", "batch"]
    timeout: float


class LimitedRecord(Protocol):
    """The part of a ProgramRecord that limits use: its program, its token counters and limits, and a way to stop it."""

    program: OpenProgram
    counters: list[Callable[[ValueFuture[wire.Value]], None]]
    budgets: Sequence[TokenBudget]
    ends: Sequence[RunEnd]
    priority: int
    due: float | None

    @property
    def is_settled(self) -> bool: ...
    def stop(self, error: Exception) -> None: ...


class TokenBudget:
    """Counts the output tokens of a run, or of all runs of a batch, and of the runs that they call. The tokens of a gen
    are counted when the gen is done. Once they exceed the budget, all runs that were added and still run are stopped
    with BudgetExceeded.

    limit: the budget for a server, which counts each token and stops the runs in the same way, but earlier."""

    def __init__(self, scope: Literal["run", "batch"], budget: int) -> None:
        self.limit, self._spent = wire.TokenLimit(budget, next(_budget_numbers), scope), 0
        self._lock = threading.Lock()
        self._records: weakref.WeakSet[LimitedRecord] = weakref.WeakSet()

    def add_record(self, record: LimitedRecord) -> None:
        """Count the gens of `record` from now on."""
        record.counters.append(partial(self._count, weakref.ref(record)))
        with self._lock:
            self._records.add(record)
        self._check(record)

    def _count(self, record: weakref.ref[LimitedRecord], future: ValueFuture[wire.Value]) -> None:
        if future.exception() is None:
            with self._lock:
                self._spent += future.result().usage.generated
            self._check(record())

    def _check(self, last: LimitedRecord | None) -> None:
        """If the budget is exceeded, stop all runs whose body still runs or whose values are not all known. last: the
        run that was just added or has just spent tokens; this run is stopped in any case."""
        if self._spent > self.limit.tokens:
            with self._lock:
                records = list(self._records)
            for record in records:
                if record is last or not record.is_settled:
                    record.stop(BudgetExceeded.of(self.limit.of, self.limit.tokens))


class Limits:
    """The limits of a run, or those that all runs of a batch share. end: when unfinished runs are stopped. budget:
    counts the output tokens of all runs together. due: when they should be done; only the order of waiting gens depends
    on it. None: no such limit."""

    def __init__(
        self, of: Literal["run", "batch"], timeout: float | None, budget: int | None, deadline: float | None
    ) -> None:
        """timeout, deadline: seconds from now. budget: a number of tokens."""
        now = time.monotonic()
        self.end = None if timeout is None else RunEnd(now + timeout, of, timeout)
        self.budget = None if budget is None else TokenBudget(of, budget)
        self.due = None if deadline is None else now + deadline


def begin(record: LimitedRecord, options: Options, batch: Limits | None = None) -> Alarm | None:
    """Start the limits of a run, and send them to the backend. Returns the alarm of its timeout; None: no timeout.
    record.budgets, record.ends, record.due: those of the run that calls this one; those of this run are added."""
    own = options.timeout, options.budget, options.deadline
    limits = [] if own == (None, None, None) else [Limits("run", *own)]
    if batch is not None:
        limits.append(batch)
    dues = [] if record.due is None else [record.due]
    for one in limits:
        if one.budget is not None:
            record.budgets = (*record.budgets, one.budget)
        if one.end is not None:
            record.ends = (*record.ends, one.end)
        if one.due is not None:
            dues.append(one.due)
    record.due = min(dues, default=None)
    if not (record.budgets or record.ends or dues or record.priority or options.durable):
        return None
    now = time.monotonic()
    end = min(record.ends, default=RunEnd(now, "run", 0.0))
    record.program.limit(
        wire.ProgramLimits(
            timeout=end.timeout,
            left=max(0.0, end.at - now),
            timeout_of=end.of,
            budgets=tuple(budget.limit for budget in record.budgets[-MAX_BUDGETS:]),
            priority=record.priority,
            deadline=0.0 if record.due is None else max(_MIN_DEADLINE, record.due - now),
            durable=_durable_name(options.durable, in_batch=batch is not None),
        )
    )
    alarm = None
    if record.ends:
        error = DeadlineExceeded.of(end.of, end.timeout)
        if end.at <= now:
            record.stop(error)
        else:
            alarm = clock().call(end.at, partial(_stop, weakref.ref(record), error))
    for budget in record.budgets:
        budget.add_record(record)
    return alarm


def _durable_name(durable: bool | str | None, in_batch: bool) -> str:
    """Returns the name under which a restarted server finds the run again; "" if the run is not durable. BadProgram:
    `durable` is a name, which all runs of the batch would share."""
    if isinstance(durable, str) and in_batch:
        raise BadProgram(f"durable is {durable!r}, but each run of a batch needs its own name; use durable=True")
    return secrets.token_hex(16) if durable is True else durable or ""


def limit_gen(record: LimitedRecord, ref: int, kind: str, timeout: float, before: Iterable[ValueFuture[Any]]) -> None:
    """Stop the run if value `ref` is still unknown GRACE seconds after its timeout.

    timeout: seconds, counted once all futures in `before` are done. kind: "gen" or "select", for the error message.
    """
    weak_record = weakref.ref(record)

    def on_timeout() -> None:
        if (found := weak_record()) is not None and not found.program.future(ref).done():
            _stop(weak_record, DeadlineExceeded.of(kind, timeout))

    def start() -> None:
        if (found := weak_record()) is not None:
            alarm = clock().call(time.monotonic() + timeout + GRACE, on_timeout)
            found.program.future(ref).add_done_callback(lambda _: alarm.cancel())

    when_all_done([future for future in before if not future.done()], start)


def _stop(record: weakref.ref[LimitedRecord], error: DeadlineExceeded) -> None:
    if (found := record()) is not None and not found.is_settled:
        found.stop(error)
