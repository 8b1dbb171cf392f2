"""The progress bar of a batch: its counts, rates, and output on stderr."""

from __future__ import annotations

import asyncio
import gc
import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import banyan as bn
from banyan.execution import progress
from banyan.execution.progress import WINDOW, Meter, bar
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire


def value(*counts: int) -> ValueFuture[wire.Value]:
    """A value that has arrived, with its counts of prompt, cached and generated tokens."""
    future = ValueFuture[wire.Value]()
    future.set_result(wire.Value(0, 0, 0, (), wire.TokenUsage(*counts)))
    return future


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_values_are_counted_as_they_arrive() -> None:
    clock = Clock()
    meter = Meter(clock)
    assert meter.tokens_per_second() == 0.0
    meter.count(value(10, 0, 20))
    clock.now += 1
    assert meter.tokens_per_second() == 20.0
    meter.count(value(30, 20, 20))
    failed = ValueFuture[wire.Value]()
    failed.set_exception(ValueError("no"))
    meter.count(failed)
    clock.now += 1
    assert meter.tokens_per_second() == 20.0
    clock.now += 1
    assert meter.tokens_per_second() == 40 / 3
    assert meter.usage == wire.TokenUsage(40, 20, 40)


def test_rate_covers_the_last_seconds() -> None:
    clock = Clock()
    meter = Meter(clock)
    for _ in range(20):
        clock.now += 1
        meter.count(value(1, 0, 10))
        meter.tokens_per_second()
    assert meter.tokens_per_second() == 10.0
    for _ in range(int(WINDOW) + 1):
        clock.now += 1
        rate = meter.tokens_per_second()
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
            record = SimpleNamespace(counters=[])  # what the bar needs of a ProgramRecord
            progress_bar.begin(record)
            for count in record.counters:
                count(value(10, 9, 100))
            progress_bar.end(failed)
    text = out.getvalue()
    for expected in ("item", "2/2", "tokens/s", "90% cached", "1 failed"):
        assert expected in text


def test_file_gets_a_line_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "LINES", 60.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))  # other threads keep their clock
    out = io.StringIO()
    with bar("item", 1000, Console(file=out, force_terminal=False, width=40)) as progress_bar:
        progress_bar.skip(400)
        for _ in range(26):
            clock.now += 5
            progress_bar.end(False)
    lines = out.getvalue().splitlines()
    assert re.findall(r"\d+/1000", out.getvalue()) == ["412/1000", "424/1000", "426/1000"]
    assert all("items/s" in line and "item " in line for line in lines)


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
    assert "item" in captured.err
    assert "6/6" in captured.err
    assert "90% cached" in captured.err
    assert "1 failed" in captured.err
    assert captured.out == ""


def test_dropped_branches_are_not_shown_as_failures(capsys: pytest.CaptureFixture[str]) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks += lambda i: f"{i}" + bn.gen("a")
        s.adopt(forks.first())

    backend = bn.Mock("x", latency=lambda call: 30.0 if call.prompt.endswith("1") else 0.0)
    states = program.run_batch([()] * 3, backend=backend, progress_bar=True)
    assert [state.error() for state in states] == [None] * 3
    err = capsys.readouterr().err
    assert "3/3" in err
    assert "failed" not in err


def test_unread_failures_are_logged_in_spite_of_the_bar(caplog: pytest.LogCaptureFixture) -> None:
    for state in item.run_batch(WORDS, backend=CostlyMock(), progress_bar=True, on_error="return"):
        assert not state._record.error_flag.is_seen
    del state
    gc.collect()
    assert "program item failed unnoticed" in caplog.text


def test_progress_bar_is_off_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    item.run_batch(WORDS[:5], backend=CostlyMock())
    assert capsys.readouterr() == ("", "")
