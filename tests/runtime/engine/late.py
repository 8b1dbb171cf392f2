"""An asynchronous device and a driver of the engine loop, for the tests of lookahead steps.

The device queues work in order, like a stream. A lazy device executes nothing until a caller waits for a result, and
then only up to that result: reading a result without waiting returns poison values, and the log shows whether the loop
reads a step's tokens before it launches the next one. An eager device executes everything at once, the other extreme of
real hardware. All steps share one logits buffer, as captured steps do.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from banyan.runtime.engine import loop as worker
from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.engine.sampler import PendingSample, sample
from banyan.runtime.engine.scheduling.request import NO_TOKEN, Result
from banyan.runtime.engine.speculation.draft import DraftPosition
from banyan.runtime.protocol.wire import Failed, Finish, Ready, Step, TopLogprobs

POISON = 1 << 40


class Event(NamedTuple):
    """An entry of the log. what: "launch", "draw" (sampling is queued) or "read" (the host waits). step: from 0."""

    what: str
    step: int


class Device(ModelRunner):
    """Replaces the engine's model runner. See the module docstring."""

    def __init__(self, e: worker.EngineLoop, is_lazy: bool = True) -> None:
        super().__init__(e.model.model, e.model.store, e.model.graphs)
        self.log: list[Event] = []
        self.is_lazy = is_lazy
        self._work: deque[Callable[[], None]] = deque()
        self._n_queued = self._n_done = self.n_launched = self._n_drawn = 0
        self._error: Exception | None = None
        self._logits = torch.full((4096, self.model.spec.vocab_size), torch.nan)
        store, move, copy_slots = self.store, self.store.move, self.store.copy_slots
        store.move = lambda moves: self._enqueue(lambda: move(moves)) if moves else None
        store.copy_slots = lambda paths: self._enqueue(lambda some=list(paths): copy_slots(some)) if paths else None
        masks = e.guides.masks
        e.guides.masks = lambda requests, logits: masks(requests, None)  # as on a GPU: the host has no logits
        e.model, e.plans_ahead = self, True

    def _enqueue(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._n_queued += 1
        if not self.is_lazy:
            self.wait_for(self._n_queued)

    def wait_for(self, n: int) -> None:
        """Execute queued work until n items are done."""
        while self._n_done < n:
            self._n_done += 1
            try:
                self._work.popleft()()
            except Exception as e:  # later work continues; the error is raised where the result is read
                self._error = e

    def __call__(self, batch: Batch, copies: Any) -> Tensor:
        logits = self._logits[: len(batch.rows)]
        self.log.append(Event("launch", self.n_launched))
        self.n_launched += 1
        forward = super().__call__
        self._enqueue(lambda: logits.copy_(forward(batch, copies)))
        return logits

    def sample(self, logits: Tensor, batch: Batch, masks: Any = None) -> PendingSample:
        """Replaces the sampler: captures host state now and computes on the device later."""
        drawn = tuple(
            DraftPosition(r, 0, NO_TOKEN, None if r.token_counts is None else dict(r.token_counts))
            for r in batch.sampled_for
        )
        ids = torch.full((len(drawn),), POISON)
        results: list[Result | Exception] = []
        step = self._n_drawn
        self._n_drawn += 1

        def compute() -> None:
            error, self._error = self._error, None
            if error is not None:
                results.append(error)
                ids[:] = 0
                return
            results.append(result := sample(logits, batch._replace(sampled_for=drawn), masks).read())
            ids.copy_(torch.tensor(result.ids, dtype=torch.int64))

        self.log.append(Event("draw", step))
        self._enqueue(compute)
        end = self._n_queued

        def read() -> Result:
            self.log.append(Event("read", step))
            self.wait_for(end)
            (result,) = results
            if isinstance(result, Exception):
                raise result
            return result

        return PendingSample(ids, read)


class Box:
    """Stands in for the link to a server. commands: number of steps launched before they arrive -> commands."""

    def __init__(self, e: worker.EngineLoop, commands: dict[int, list[Any]]) -> None:
        self.e, self.commands = e, commands
        self.n_launched = 0
        self.outputs: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TopLogprobs]] = {}
        self.finished: dict[int, Finish] = {}
        self.failed: list[Failed] = []
        self.others: list[Any] = []
        self.sent_at: list[int] = []  # number of launched steps when each report was sent

    def drain(self, block: bool) -> Iterator[Any]:
        if block and not self.commands:
            raise EOFError
        if block:
            self.n_launched = max(self.n_launched, min(self.commands))
        for at in sorted(at for at in self.commands if at <= self.n_launched):
            yield from self.commands.pop(at)

    def watch(self, fd: int) -> None:
        pass

    def send(self, reports: Iterable[Any]) -> None:
        for report in reports:
            match report:
                case Step():
                    self.sent_at.append(self.n_launched)
                    ids = iter(array("i", report.ids))
                    for rid, n in zip(array("q", report.rids), array("i", report.counts), strict=True):
                        self.outputs.setdefault(rid, []).extend(next(ids) for _ in range(n))
                    for rid, tops in report.logprobs.items():
                        self.logprobs.setdefault(rid, []).extend(tops)
                    assert not self.finished.keys() & {finish.rid for finish in report.finished}, "one finish each"
                    self.finished |= {finish.rid: finish for finish in report.finished}
                case Failed():
                    self.failed.append(report)
                case _:
                    self.others.append(report)


def play(e: worker.EngineLoop, commands: dict[int, list[Any]], is_lazy: bool = True, check: bool = True) -> Box:
    """Run the loop on a `Device` until it ends."""
    device = Device(e, is_lazy)
    with patch.object(worker, "sample", device.sample):
        return loop(e, commands, check)


def loop(e: worker.EngineLoop, commands: dict[int, list[Any]], check: bool = True) -> Box:
    """Run the loop until it ends. check: verify all invariants after each completed step."""
    box = Box(e, commands)
    launch, complete = e.launch, e.complete

    def launch_counted(*before: Any) -> Any:
        in_flight = launch(*before)
        box.n_launched += in_flight is not None
        return in_flight

    def complete_checked(in_flight: Any) -> Step:
        step = complete(in_flight)
        if check:
            e.scheduler.check()
        return step

    e.launch, e.complete = launch_counted, complete_checked  # type: ignore[method-assign]
    e.run(box)
    assert isinstance(box.others[0], Ready)
    e.scheduler.check()
    assert e.scheduler.is_idle
    assert not e._in_flight
    return box
