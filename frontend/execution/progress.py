"""The progress bar of a batch, on stderr: items done, tokens per second, cached share of the prompts, time left.

Tokens are counted when a value arrives, not when its run ends, so that a few long runs show progress too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

WINDOW = 5.0
"""Seconds over which tokens per second are averaged."""
POLL = 0.25
"""Seconds between two looks at the unfinished runs."""


class CountedRun(Protocol):
    """The part of a ProgramRecord that the meter reads."""

    n_refs: int
    program: Any


class Reading(NamedTuple):
    """The counts at one time. hit_rate: cached share of the prompt tokens; None before the first prompt."""

    n_done: int
    n_failed: int
    generated: int
    tokens_per_second: float
    hit_rate: float | None


class Meter:
    """Counts the tokens of running programs. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._open: dict[int, CountedRun] = {}  # by id
        self._n_seen: dict[int, int] = {}  # values of each run that were seen
        self._unfinished: dict[int, list[int]] = {}  # those of them that are not counted yet
        self._n_done = self._n_failed = self._prompt = self._cached = self._generated = 0
        self._history: deque[tuple[float, int]] = deque([(clock(), 0)])  # (time, tokens generated)
        self._polled_at = clock() - POLL

    def begin(self, record: CountedRun) -> None:
        with self._lock:
            self._open[id(record)] = record
            self._n_seen[id(record)], self._unfinished[id(record)] = 0, []

    def end(self, record: CountedRun, failed: bool) -> None:
        with self._lock:
            self._count(id(record))
            for counts in (self._open, self._n_seen, self._unfinished):
                counts.pop(id(record), None)
            self._n_done += 1
            self._n_failed += failed

    def read(self) -> Reading:
        """The current counts. Looks at the unfinished runs at most once in POLL seconds."""
        with self._lock:
            now = self._clock()
            if now - self._polled_at >= POLL:
                self._polled_at = now
                for key in self._open:
                    self._count(key)
                self._history.append((now, self._generated))
                while len(self._history) > 2 and self._history[1][0] <= now - WINDOW:
                    self._history.popleft()
            then, generated = self._history[0]
            rate = (self._generated - generated) / (now - then) if now > then else 0.0
            hit_rate = self._cached / self._prompt if self._prompt else None
            return Reading(self._n_done, self._n_failed, self._generated, rate, hit_rate)

    def _count(self, key: int) -> None:
        if (record := self._open.get(key)) is None:
            return
        refs = [*self._unfinished[key], *range(self._n_seen[key], record.n_refs)]
        self._n_seen[key], self._unfinished[key] = record.n_refs, []
        for ref in refs:
            future = record.program.future(ref)
            if not future.done():
                self._unfinished[key].append(ref)
            elif future.exception() is None:
                usage = future.result().usage
                self._prompt += usage.prompt
                self._cached += usage.cached
                self._generated += usage.generated


class _RatesColumn(ProgressColumn):
    """Tokens per second, hit rate and failures."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def render(self, task: Task) -> Text:
        reading = self._meter.read()
        text = Text()
        if reading.generated:
            text.append(f"{reading.tokens_per_second:,.0f} tokens/s", "progress.data.speed")
        if reading.hit_rate is not None:
            text.append(f"{'  ' if text else ''}{reading.hit_rate:.0%} cached", "progress.percentage")
        if reading.n_failed:
            text.append(f"{'  ' if text else ''}{reading.n_failed} failed", "bold red")
        return text


class Bar:
    """Reports runs to the progress bar. Thread-safe."""

    def __init__(self, meter: Meter, progress: Progress, total: int, title: str) -> None:
        self._meter, self._progress = meter, progress
        self._task = progress.add_task(title, total=total)

    def begin(self, record: CountedRun) -> None:
        self._meter.begin(record)

    def end(self, record: CountedRun, failed: bool) -> None:
        self._meter.end(record, failed)
        self._progress.advance(self._task)


@contextmanager
def bar(title: str, total: int, console: Console | None = None) -> Iterator[Bar]:
    """Show a progress bar for `total` runs while the block runs, on stderr or in the notebook."""
    meter = Meter()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RatesColumn(meter),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Console(stderr=True)) as progress:
        yield Bar(meter, progress, total, title)
