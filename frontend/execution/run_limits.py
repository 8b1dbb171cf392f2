"""Limits and urgency of batches, runs and gens. The client enforces them too, in case the server is gone."""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Any, Protocol

from banyan.backends.base import OpenProgram
from banyan.execution.clock import clock
from banyan.execution.futures import when_all_done
from banyan.lang.sampling import Options
from banyan.runtime.errors import BadProgram, BudgetExceeded, DeadlineExceeded
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire

GRACE = 0.5
"""Seconds after a timeout before the client acts itself. The server (for a gen) and the body (for a batch) report the
timeout more precisely and get this long to do so."""

_MIN_DEADLINE = 1e-6
"""Sent for a deadline that has passed; 0 would mean that there is none."""

_batch_numbers = count()


class LimitedRecord(Protocol):
    """The part of a ProgramRecord that limits act on."""

    program: OpenProgram

    @property
    def is_settled(self) -> bool: ...
    def stop(self, error: Exception) -> None: ...


class TokenBudget:
    """Counts the tokens that a run, or all runs of a batch, generate, and stops them when the budget is exceeded."""

    def __init__(self, scope: str, budget: int) -> None:
        """scope: "run" or "batch", for the error message."""
        self._scope, self._budget, self._spent = scope, budget, 0
        self._lock = threading.Lock()
        self._records: weakref.WeakSet[LimitedRecord] = weakref.WeakSet()

    def add_record(self, record: LimitedRecord) -> None:
        self._records.add(record)
        self._check()

    def count(self, future: ValueFuture[wire.Value]) -> None:
        """Count the tokens of a finished gen."""
        if future.exception() is None:
            with self._lock:
                self._spent += future.result().usage.generated
            self._check()

    def _check(self) -> None:
        if self._spent > self._budget:
            for record in list(self._records):
                record.stop(BudgetExceeded.of(self._scope, self._budget))


class BatchLimits:
    """The limits that all runs of a batch share. timeout, deadline: seconds from now."""

    def __init__(self, timeout: float | None, budget: int | None, deadline: float | None = None) -> None:
        self.number = next(_batch_numbers)
        self.timeout, self.budget = timeout, budget
        now = time.monotonic()
        self.end = now + (timeout or 0.0)
        self.due = None if deadline is None else now + deadline
        self.token_budget = None if budget is None else TokenBudget("batch", budget)


class RunLimits:
    """The limits of one run."""

    __slots__ = ("_alarm", "_budgets")

    def __init__(self, record: LimitedRecord, options: Options, batch: BatchLimits | None = None) -> None:
        """Start the timers and send the limits to the backend."""
        self._alarm = None  # set first: `__del__` reads it even if the backend refuses the limits
        now = time.monotonic()
        ends = [] if options.timeout is None else [(now + options.timeout, "run", options.timeout)]
        if batch is not None and batch.timeout is not None:
            ends.append((batch.end, "batch", batch.timeout))
        end, scope, timeout = min(ends, default=(now, "run", 0.0))
        self._budgets = [] if options.budget is None else [TokenBudget("run", options.budget)]
        if batch is not None and batch.token_budget is not None:
            self._budgets.append(batch.token_budget)
        due = [now + options.deadline] if options.deadline is not None else []
        if batch is not None and batch.due is not None:
            due.append(batch.due)
        record.program.limit(
            wire.ProgramLimits(
                timeout=timeout,
                left=max(0.0, end - now),
                timeout_of="batch" if scope == "batch" else "run",
                budget=options.budget or 0,
                batch=-1 if batch is None else batch.number,
                batch_budget=0 if batch is None else batch.budget or 0,
                priority=options.priority or 0,
                deadline=max(_MIN_DEADLINE, min(due) - now) if due else 0.0,
                durable=_durable_name(options.durable, in_batch=batch is not None),
            )
        )
        if ends:
            error = DeadlineExceeded.of(scope, timeout)
            if end <= now:
                record.stop(error)
            else:
                self._alarm = clock().call(end, partial(_stop, weakref.ref(record), error))
        for budget in self._budgets:
            budget.add_record(record)

    def watch(self, future: ValueFuture[wire.Value]) -> None:
        """Count the tokens of a gen when it finishes."""
        for budget in self._budgets:
            future.add_done_callback(budget.count)

    def __del__(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


def begin(record: LimitedRecord, options: Options, batch: BatchLimits | None = None) -> RunLimits | None:
    """Start the limits of a run; None if it has none."""
    own = options.timeout, options.budget, options.priority, options.deadline, options.durable or None
    shared = () if batch is None else (batch.timeout, batch.budget, batch.due)
    return None if all(limit is None for limit in own + shared) else RunLimits(record, options, batch)


def _durable_name(durable: bool | str, in_batch: bool) -> str:
    """The name under which a restarted server finds the run again; "" if the run is not durable."""
    if isinstance(durable, str) and in_batch:
        raise BadProgram(f"durable is {durable!r}, but each run of a batch needs a name of its own; use durable=True")
    return secrets.token_hex(16) if durable is True else durable or ""


def limit_gen(record: LimitedRecord, ref: int, kind: str, timeout: float, before: Iterable[ValueFuture[Any]]) -> None:
    """Stop the run GRACE seconds after `timeout`, counted once all futures in `before` are done, if the server did not.

    kind: "gen" or "select", whose value is `ref`.
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
