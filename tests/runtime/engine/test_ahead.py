"""The loop beside a device of its own: what it does while a step is computed, and what it leaves until then.

The device is a thread that computes a step's logits when the loop has come by for orders, and no sooner: a loop that
waited for its results first would wait for ever.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from banyan.runtime.engine import worker
from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.runner import Runner
from banyan.runtime.wire import Abort, Ask, Failed, Finish, Ping, Pong, Ready, Step

PATIENCE = 30.0


class Device(Runner):
    """Computes behind the loop's back."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.model, runner.store)
        self.may_end, self.thread = threading.Event(), None
        self.errors: list[Exception] = []

    def __call__(self, batch: Batch, copies: Any) -> Tensor:
        logits = torch.full((len(batch.rows), self.model.spec.vocab_size), torch.nan)
        self.may_end.clear()

        def compute() -> None:
            try:
                assert self.may_end.wait(PATIENCE), "the loop did nothing while a step was computed"
                logits.copy_(super(Device, self).__call__(batch, copies))
            except Exception as e:
                self.errors.append(e)

        self.thread = threading.Thread(target=compute)
        self.thread.start()
        return logits

    def wait(self) -> None:
        if self.thread is not None:
            self.thread.join(PATIENCE)
        if self.errors:
            raise self.errors.pop()


class Box:
    """Inbox and outbox. orders: by the number of the step in which they come, while it is computed."""

    def __init__(self, e: worker.Engine, orders: dict[int, list[Any]]) -> None:
        self.e, self.orders = e, orders
        self.n_launched = self.n_open = 0
        self.said: dict[int, list[int]] = {}
        self.finished: dict[int, Finish] = {}
        self.failed: list[Failed] = []
        self.others: list[Any] = []
        self.sent_at: list[int] = []  # how many steps were launched when a report was sent
        self.waiting_at: list[int] = []  # how many requests stood in the scheduler after orders were taken in a step

    def drain(self, block: bool) -> Iterator[Any]:
        if block and not self.orders:
            raise EOFError
        if block:
            self.n_launched = min(self.orders)
        yield from self.orders.pop(self.n_launched, ())
        self.waiting_at.append(len(self.e.scheduler.requests))
        if isinstance(self.e.model, Device):
            self.e.model.may_end.set()

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
                    self.finished |= {finish.rid: finish for finish in report.finished}
                case Failed():
                    self.failed.append(report)
                case _:
                    self.others.append(report)


def play(e: worker.Engine, orders: dict[int, list[Any]], monkeypatch: pytest.MonkeyPatch) -> Box:
    """Run the loop to its end, on an asynchronous device."""
    device = Device(e.model)
    e.model, e.is_ahead = device, True
    return loop(e, orders, monkeypatch, device.wait)


def loop(e: worker.Engine, orders: dict[int, list[Any]], monkeypatch: pytest.MonkeyPatch, wait: Any) -> Box:
    box = Box(e, orders)
    launch, plain = e.launch, worker.sample

    def launched() -> Any:
        flying = launch()
        box.n_launched += flying is not None
        return flying

    def sampled(*args: Any) -> Any:
        wait()
        return plain(*args)

    e.launch = launched  # type: ignore[method-assign]
    with monkeypatch.context() as patch:
        patch.setattr(worker, "sample", sampled)
        e.run(box, box)
    assert isinstance(box.others[0], Ready)
    e.scheduler.check()
    assert e.scheduler.is_idle
    return box


def test_orders_are_taken_and_reports_sent_while_a_step_is_computed(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = {rid: [1 + rid, *range(rid % 5 + 1)] for rid in range(12)}
    orders: dict[int, list[Any]] = {rid: [fake.run(rid, prompt), Ping()] for rid, prompt in prompts.items()}
    box = play(fake.engine(n_pages=40, page=4, max_running=5), orders, monkeypatch)
    assert box.said == {rid: fake.greedy(prompt, 8) for rid, prompt in prompts.items()}
    assert not box.failed
    assert sum(isinstance(other, Pong) for other in box.others) == 12
    assert box.sent_at[0] == 2, "the first step's report, once the second is on the device"
    assert box.sent_at == sorted(box.sent_at)


def test_at_the_end_a_report_waits_for_no_step(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    box = play(fake.engine(), {0: [fake.run(0, [1, 2])]}, monkeypatch)
    assert set(box.finished) == {0}
    assert box.sent_at[-1] == box.n_launched


def test_who_is_given_up_keeps_its_pages_until_the_step_has_ended(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool is so small that a page that was let go of too early would be written by two."""
    e = fake.engine(n_pages=8, page=4, max_running=4, context=32)
    orders: dict[int, list[Any]] = {
        0: [fake.run(rid, [rid + 1] * 5) for rid in range(3)],
        2: [Abort(0), Ask(7, "check"), fake.run(3, [9, 9, 9])],
        3: [Abort(2), Abort(77), fake.run(4, [8] * 6)],
        4: [Ask(8, "flush"), Abort(3)],
    }
    box = play(e, orders, monkeypatch)
    reasons = {rid: finish.reason for rid, finish in box.finished.items()}
    assert [reasons[rid] for rid in range(5)] == ["abort", "length", "abort", "abort", "length"]
    assert box.said[1] == fake.greedy([2] * 5, 8)
    assert box.said[4] == fake.greedy([8] * 6, 8)
    assert [other.ok for other in box.others[1:]] == [True, True]
    assert e.cache.n_available == 8


def test_who_is_given_up_in_its_last_step_ends_once(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    box = play(fake.engine(), {0: [fake.run(0, [1, 2])], 8: [Abort(0)]}, monkeypatch)
    assert box.finished[0].reason == "length"
    assert box.said == {0: fake.greedy([1, 2], 8)}


def test_a_step_that_fails_on_the_device_fails_its_own_requests(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    e = fake.engine()
    forward, n = e.model.model.forward, [0]

    def fails_once(*args: Any) -> Any:
        n[0] += 1
        if n[0] == 3:
            raise RuntimeError("a fault on the device")
        return forward(*args)

    e.model.model.forward = fails_once
    box = play(e, {0: [fake.run(0, [1, 2])], 3: [fake.run(1, [3])]}, monkeypatch)
    assert [failed.program for failed in box.failed] == [0]
    assert box.said[1] == fake.greedy([3], 8)
    assert "a fault on the device" in capsys.readouterr().err


def test_where_the_device_is_this_process_a_report_does_not_wait(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: dict[int, list[Any]] = {0: [fake.run(0, [1, 2, 3])]}
    box = loop(fake.engine(), orders, monkeypatch, lambda: None)
    assert box.said == {0: fake.greedy([1, 2, 3], 8)}
    assert box.sent_at == list(range(1, 9)), "each before the next step is launched"
