"""The progress bar of a batch: its counts, rates, and output on stderr."""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import Future
from typing import Any

import pytest
from rich.console import Console

import banyan as bn
from banyan.execution.progress import POLL, WINDOW, Meter, bar
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire


class FakeRecord:
    """A program record and its program."""

    def __init__(self) -> None:
        self.futures: dict[int, Future[Any]] = {}
        self.program = self

    @property
    def n_refs(self) -> int:
        return len(self.futures)

    def future(self, ref: int) -> Future[Any]:
        return self.futures[ref]

    def add(self, usage: wire.TokenUsage | None = None, error: Exception | None = None) -> Future[Any]:
        future: Future[Any] = Future()
        self.futures[len(self.futures)] = future
        if usage is not None:
            future.set_result(wire.Value(0, 0, 0, (), usage))
        if error is not None:
            future.set_exception(error)
        return future


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_values_are_counted_once_as_they_arrive() -> None:
    clock = Clock()
    meter, record = Meter(clock), FakeRecord()
    assert meter.read() == (0, 0, 0, 0.0, None)
    meter.begin(record)
    record.add(wire.TokenUsage(10, 0, 20))
    pending = record.add()
    clock.now += 1
    assert meter.read() == (0, 0, 20, 20.0, 0.0), "before the run has ended"
    pending.set_result(wire.Value(0, 0, 0, (), wire.TokenUsage(30, 20, 20)))
    record.add(error=ValueError("no"))
    assert meter.read().generated == 20, f"one read in {POLL} s"
    clock.now += 1
    assert meter.read() == (0, 0, 40, 20.0, 0.5)
    meter.end(record, failed=False)
    meter.end(FakeRecord(), failed=True)
    assert meter.read()[:3] == (2, 1, 40)
    clock.now += 1
    assert meter.read() == (2, 1, 40, 40 / 3, 0.5)


def test_remaining_values_are_counted_at_the_end_of_a_run() -> None:
    clock = Clock()
    meter, record = Meter(clock), FakeRecord()
    meter.begin(record)
    record.add(wire.TokenUsage(4, 1, 7))
    meter.end(record, failed=False)
    clock.now += 1
    assert meter.read() == (1, 0, 7, 7.0, 0.25)


def test_rate_covers_the_last_seconds() -> None:
    clock = Clock()
    meter, record = Meter(clock), FakeRecord()
    meter.begin(record)
    for _ in range(20):
        clock.now += 1
        record.add(wire.TokenUsage(1, 0, 10))
        meter.read()
    assert meter.read().tokens_per_second == 10.0
    for _ in range(int(WINDOW) + 1):
        clock.now += 1
        rate = meter.read().tokens_per_second
    assert rate == 0.0


class CostlyMock(bn.Mock):
    def start(self, job: Any) -> None:
        if "bad" in job.text:
            raise ValueError("no")
        job.finish(GenOutcome((wire.Sample("x", "stop"),), wire.TokenUsage(10, 9, 100)))


@bn.function
def item(s: bn.State, word: str) -> None:
    s += word + bn.gen("a")


WORDS = [("good",)] * 5 + [("bad",)]


def test_bar_shows_counts_and_rates() -> None:
    out = io.StringIO()
    with bar("item", 2, Console(file=out, force_terminal=True, width=120)) as progress_bar:
        for failed in (False, True):
            record = FakeRecord()
            progress_bar.begin(record)
            record.add(wire.TokenUsage(10, 9, 100))
            progress_bar.end(record, failed)
    text = out.getvalue()
    for expected in ("item", "2/2", "tokens/s", "90% cached", "1 failed"):
        assert expected in text


@pytest.mark.parametrize("style", ["list", "generator", "as completed", "async list", "async for"])
def test_every_style_of_batch_shows_a_progress_bar(
    style: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    options: dict[str, Any] = {"backend": CostlyMock(), "progress_bar": True, "on_error": "return"}

    async def collect() -> list[Any]:
        if style == "async list":
            return list(await item.run_batch_async(WORDS, **options))
        return [state async for state in item.run_batch_async(WORDS, **options)]

    if style == "list":
        states = item.run_batch(WORDS, **options)
    elif style.startswith("async"):
        states = asyncio.run(collect())
    else:
        states = list(item.run_batch(WORDS, generator_style=True, ordered=style == "generator", **options))
    assert len(states) == 6
    captured = capsys.readouterr()
    assert "6/6" in captured.err
    assert "90% cached" in captured.err
    assert "1 failed" in captured.err
    assert captured.out == ""


def test_progress_bar_is_off_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    item.run_batch(WORDS[:5], backend=CostlyMock())
    assert capsys.readouterr() == ("", "")
