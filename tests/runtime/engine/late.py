"""A device of its own, and a driver of the loop: what the tests of steps ahead run on.

The device is given work in order, as a stream is, and does none of it before somebody waits for a result; then it goes
on to that result and no further. So whoever looks at a result that he has not waited for sees poison, and a loop that
must know the tokens of a step before it launches the next one shows in the log. It can also do all at once, which is
the other end of what a real one may do. Logits are one buffer, as those of captured steps are.
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
    """A step was launched, drawn, or is waited for. step: counted from 0."""

    what: str
    step: int


class Device(ModelRunner):
    """Takes the place of an engine's model. See the module."""

    def __init__(self, e: worker.EngineLoop, is_lazy: bool = True) -> None:
        super().__init__(e.model.model, e.model.store, e.model.graphs)
        self.log: list[Event] = []
        self.is_lazy = is_lazy
        self._work: deque[Callable[[], None]] = deque()
        self._n_given = self._n_done = self.n_launched = self._n_drawn = 0
        self._error: Exception | None = None
        self._logits = torch.full((4096, self.model.spec.vocab_size), torch.nan)
        store, move, copy_slots = self.store, self.store.move, self.store.copy_slots
        store.move = lambda moves: self._give(lambda: move(moves)) if moves else None
        store.copy_slots = lambda paths: self._give(lambda some=list(paths): copy_slots(some)) if paths else None
        masks = e.guides.masks
        e.guides.masks = lambda requests, logits: masks(requests, None)  # as on a GPU: logits are not known
        e.model, e.plans_ahead = self, True

    def _give(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._n_given += 1
        if not self.is_lazy:
            self.wait_for(self._n_given)

    def wait_for(self, n: int) -> None:
        """Until so much of what it was given is done."""
        while self._n_done < n:
            self._n_done += 1
            try:
                self._work.popleft()()
            except Exception as e:  # what is behind it goes on: it is told where it is waited for
                self._error = e

    def __call__(self, batch: Batch, copies: Any) -> Tensor:
        logits = self._logits[: len(batch.rows)]
        self.log.append(Event("launch", self.n_launched))
        self.n_launched += 1
        forward = super().__call__
        self._give(lambda: logits.copy_(forward(batch, copies)))
        return logits

    def sample(self, logits: Tensor, batch: Batch, masks: Any = None) -> PendingSample:
        """In the place of the sampler's: what the host knows is taken now, what the device computes comes later."""
        drawn = tuple(
            DraftPosition(r, 0, NO_TOKEN, None if r.token_counts is None else dict(r.token_counts))
            for r in batch.sampled_for
        )
        ids = torch.full((len(drawn),), POISON)
        told: list[Result | Exception] = []
        step = self._n_drawn
        self._n_drawn += 1

        def compute() -> None:
            error, self._error = self._error, None
            if error is not None:
                told.append(error)
                ids[:] = 0
                return
            told.append(result := sample(logits, batch._replace(sampled_for=drawn), masks).read())
            ids.copy_(torch.tensor(result.ids, dtype=torch.int64))

        self.log.append(Event("draw", step))
        self._give(compute)
        end = self._n_given

        def read() -> Result:
            self.log.append(Event("read", step))
            self.wait_for(end)
            (result,) = told
            if isinstance(result, Exception):
                raise result
            return result

        return PendingSample(ids, read)


class Box:
    """The link to a server. orders: by the number of steps that are launched when they come."""

    def __init__(self, e: worker.EngineLoop, orders: dict[int, list[Any]]) -> None:
        self.e, self.orders = e, orders
        self.n_launched = 0
        self.said: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TopLogprobs]] = {}
        self.finished: dict[int, Finish] = {}
        self.failed: list[Failed] = []
        self.others: list[Any] = []
        self.sent_at: list[int] = []  # how many steps were launched when a report was sent

    def drain(self, block: bool) -> Iterator[Any]:
        if block and not self.orders:
            raise EOFError
        if block:
            self.n_launched = max(self.n_launched, min(self.orders))
        for at in sorted(at for at in self.orders if at <= self.n_launched):
            yield from self.orders.pop(at)

    def watch(self, fd: int) -> None:
        pass

    def send(self, reports: Iterable[Any]) -> None:
        for report in reports:
            match report:
                case Step():
                    self.sent_at.append(self.n_launched)
                    ids = iter(array("i", report.ids))
                    for rid, n in zip(array("q", report.rids), array("i", report.counts), strict=True):
                        self.said.setdefault(rid, []).extend(next(ids) for _ in range(n))
                    for rid, tops in report.logprobs.items():
                        self.logprobs.setdefault(rid, []).extend(tops)
                    assert not self.finished.keys() & {finish.rid for finish in report.finished}, "who ends, ends once"
                    self.finished |= {finish.rid: finish for finish in report.finished}
                case Failed():
                    self.failed.append(report)
                case _:
                    self.others.append(report)


def play(e: worker.EngineLoop, orders: dict[int, list[Any]], is_lazy: bool = True, check: bool = True) -> Box:
    """Run the loop to its end on such a device."""
    device = Device(e, is_lazy)
    with patch.object(worker, "sample", device.sample):
        return loop(e, orders, check)


def loop(e: worker.EngineLoop, orders: dict[int, list[Any]], check: bool = True) -> Box:
    """Run the loop to its end. check: every invariant, whenever a step has landed."""
    box = Box(e, orders)
    launch, land = e.launch, e.complete

    def launched(*before: Any) -> Any:
        flying = launch(*before)
        box.n_launched += flying is not None
        return flying

    def landed(flying: Any) -> Step:
        step = land(flying)
        if check:
            e.scheduler.check()
        return step

    e.launch, e.complete = launched, landed  # type: ignore[method-assign]
    e.run(box)
    assert isinstance(box.others[0], Ready)
    e.scheduler.check()
    assert e.scheduler.is_idle
    assert not e._in_flight
    return box
