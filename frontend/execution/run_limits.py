"""What a batch, a run and a gen may take, seconds and tokens, as this side keeps it; and how urgent they are.

The server keeps the same limits, to the token, and stops the work. This side does not depend on that: what runs out
fails here too, whatever has become of the server. What is urgent is for the server alone.
"""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from banyan.execution.clock import clock
from banyan.lang.sampling import Options
from banyan.runtime.errors import BadProgram, BudgetExceeded, DeadlineExceeded
from banyan.runtime.protocol import wire

if TYPE_CHECKING:
    from banyan.execution.program_record import ProgramRecord
    from banyan.lang.lazy_value import LazyValue

GRACE = 0.5
"""Seconds beyond their time that those have who can say best that it is up: the server of a gen, the body of a run."""

_SOON = 1e-6
"""Seconds to a deadline that has passed: 0 would be none."""

_numbers = count()


class TokenBudget:
    """Tokens that a run, or all runs of a batch, may make."""

    def __init__(self, of: str, budget: int) -> None:
        self._of, self._budget, self._spent = of, budget, 0
        self._lock = threading.Lock()
        self._records: weakref.WeakSet[ProgramRecord] = weakref.WeakSet()

    def open(self, record: ProgramRecord) -> None:
        """`record` spends from it."""
        self._records.add(record)
        self._settle()

    def spend(self, future: Any) -> None:
        """What a gen came to."""
        if future.exception() is None:
            with self._lock:
                self._spent += future.result().usage.generated
            self._settle()

    def _settle(self) -> None:
        if self._spent > self._budget:
            for record in list(self._records):
                record.stop(BudgetExceeded.of(self._of, self._budget))


class BatchLimits:
    """Of all runs of a batch together. timeout, deadline: seconds from now on."""

    def __init__(self, timeout: float | None, budget: int | None, deadline: float | None = None) -> None:
        self.number = next(_numbers)
        self.timeout, self.budget = timeout, budget
        now = time.monotonic()
        self.end = now + (timeout or 0.0)
        self.due = None if deadline is None else now + deadline
        self.account = None if budget is None else TokenBudget("batch", budget)

    @property
    def left(self) -> float | None:
        """Seconds; None: without end."""
        return None if self.timeout is None else max(0.0, self.end - time.monotonic())


class RunLimits:
    """Of one run."""

    __slots__ = ("_accounts", "_alarm")

    def __init__(self, record: ProgramRecord, options: Options, batch: BatchLimits | None = None) -> None:
        """Begin to count. The backend is told, so that it keeps them too."""
        self._alarm = None  # first: a backend may refuse the rest
        now = time.monotonic()
        ends = [] if options.timeout is None else [(now + options.timeout, "run", options.timeout)]
        if batch is not None and batch.timeout is not None:
            ends.append((batch.end, "batch", batch.timeout))
        end, of, timeout = min(ends, default=(now, "run", 0.0))
        self._accounts = [] if options.budget is None else [TokenBudget("run", options.budget)]
        if batch is not None and batch.account is not None:
            self._accounts.append(batch.account)
        due = [now + options.deadline] if options.deadline is not None else []
        if batch is not None and batch.due is not None:
            due.append(batch.due)
        record.program.limit(
            wire.ProgramLimits(
                timeout=timeout,
                left=max(0.0, end - now),
                timeout_of="batch" if of == "batch" else "run",
                budget=options.budget or 0,
                batch=-1 if batch is None else batch.number,
                batch_budget=0 if batch is None else batch.budget or 0,
                priority=options.priority or 0,
                deadline=max(_SOON, min(due) - now) if due else 0.0,
                durable=_durable(options.durable, is_batch=batch is not None),
            )
        )
        if ends:
            late = DeadlineExceeded.of(of, timeout)
            if end <= now:
                record.stop(late)
            else:
                self._alarm = clock().call(end, partial(_late, weakref.ref(record), late))
        for account in self._accounts:
            account.open(record)

    def watch(self, ref: LazyValue) -> None:
        """`ref` is a gen of the run."""
        for account in self._accounts:
            ref.future.add_done_callback(account.spend)

    def __del__(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


def begin(record: ProgramRecord, options: Options, batch: BatchLimits | None = None) -> RunLimits | None:
    """The limits of a run; None where it has none."""
    own = options.timeout, options.budget, options.priority, options.deadline, options.durable or None
    shared = () if batch is None else (batch.timeout, batch.budget, batch.due)
    return None if all(one is None for one in own + shared) else RunLimits(record, options, batch)


def _durable(asked: bool | str, is_batch: bool) -> str:
    """The name by which a server knows the run again; "": it need not."""
    if isinstance(asked, str) and is_batch:
        raise BadProgram(
            f"durable is {asked!r}, and a batch has many runs, which need a name each; durable=True is one"
        )
    return secrets.token_hex(16) if asked is True else asked or ""


def keep_time(ref: LazyValue, timeout: float, before: list[LazyValue]) -> None:
    """Stop the run if its gen or select `ref` takes longer than `timeout` seconds, once all of `before` are known.

    That is for the server to see, and to fail this one alone: here it is seen GRACE seconds later, where the server
    says nothing.
    """
    left = [one for one in before if not one.is_done]
    record, reference = weakref.ref(ref.record), weakref.ref(ref)

    def late() -> None:
        if (one := reference()) is not None and not one.is_done:
            _late(record, DeadlineExceeded.of("select" if one.choices else "gen", timeout))

    def look(_: object = None) -> None:
        while left:
            if not left[-1].is_done:
                left[-1].future.add_done_callback(look)
                return
            left.pop()
        alarm = clock().call(time.monotonic() + timeout + GRACE, late)
        if (one := reference()) is not None:
            one.future.add_done_callback(lambda _: alarm.cancel())

    look()


def _late(record: weakref.ref[ProgramRecord], error: DeadlineExceeded) -> None:
    if (one := record()) is not None and not one.is_settled:
        one.stop(error)
