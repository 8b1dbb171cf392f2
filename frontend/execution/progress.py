"""The progress bar of a batch, on stderr: items done, tokens per second, cached share of the prompts, time left.

Tokens are counted when a value arrives, not when its run ends, so that a few long runs show progress too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from math import inf
from typing import Any, NamedTuple, Protocol, TypeAlias

from rich import progress
from rich.console import Console
from rich.text import Text

WINDOW = 5.0
"""Seconds over which tokens per second are averaged."""
POLL = 0.25
"""Seconds between two looks at the unfinished runs."""
Counts: TypeAlias = tuple[int, int, int]
"""Prompt, cached and generated tokens."""


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
        self._n_done = self._n_failed = 0
        self._ended = self._counts = (0, 0, 0)  # of the runs that ended, of all
        self._history: deque[tuple[float, int]] = deque([(clock(), 0)])  # (time, tokens generated)
        self._polled_at = -inf

    def begin(self, record: CountedRun) -> None:
        with self._lock:
            self._open[id(record)] = record

    def end(self, record: CountedRun, failed: bool) -> None:
        with self._lock:
            self._open.pop(id(record), None)
            self._ended = _sum([self._ended, *_finished(record)])
            self._n_done += 1
            self._n_failed += failed
            self._polled_at = -inf

    def read(self) -> Reading:
        """The current counts. Without a run that ended, looks at the unfinished ones at most once in POLL seconds."""
        with self._lock:
            now = self._clock()
            if now - self._polled_at >= POLL:
                self._polled_at = now
                self._counts = _sum([self._ended, *chain.from_iterable(map(_finished, self._open.values()))])
                self._history.append((now, self._counts[2]))
                while len(self._history) > 2 and self._history[1][0] <= now - WINDOW:
                    self._history.popleft()
            prompt, cached, generated = self._counts
            then, before = self._history[0]
            rate = (generated - before) / (now - then) if now > then else 0.0
            return Reading(self._n_done, self._n_failed, generated, rate, cached / prompt if prompt else None)


def _finished(record: CountedRun) -> Iterator[Counts]:
    """The counts of each finished gen."""
    for future in map(record.program.future, range(record.n_refs)):
        if future.done() and future.exception() is None:
            usage = future.result().usage
            yield usage.prompt, usage.cached, usage.generated


def _sum(counts: Iterable[Counts]) -> Counts:
    prompt, cached, generated = map(sum, zip(*counts, strict=True))
    return prompt, cached, generated


class _RatesColumn(progress.ProgressColumn):
    """Tokens per second, hit rate and failures."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def render(self, task: progress.Task) -> Text:
        reading = self._meter.read()
        parts = []
        if reading.generated:
            parts.append(Text(f"{reading.tokens_per_second:,.0f} tokens/s", "progress.data.speed"))
        if reading.hit_rate is not None:
            parts.append(Text(f"{reading.hit_rate:.0%} cached", "progress.percentage"))
        if reading.n_failed:
            parts.append(Text(f"{reading.n_failed} failed", "bold red"))
        return Text("  ").join(parts)


class Bar:
    """Reports runs to the progress bar. Thread-safe."""

    def __init__(self, meter: Meter, shown: progress.Progress, total: int, title: str) -> None:
        self._meter, self._shown = meter, shown
        self._task = shown.add_task(title, total=total)

    def begin(self, record: CountedRun) -> None:
        self._meter.begin(record)

    def end(self, record: CountedRun, failed: bool) -> None:
        self._meter.end(record, failed)
        self._shown.advance(self._task)


@contextmanager
def bar(title: str, total: int, console: Console | None = None) -> Iterator[Bar]:
    """Show a progress bar for `total` runs while the block runs, on stderr or in the notebook."""
    meter = Meter()
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        _RatesColumn(meter),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console or Console(stderr=True)) as shown:
        yield Bar(meter, shown, total, title)
