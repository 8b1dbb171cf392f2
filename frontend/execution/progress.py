"""The progress of many runs, on stderr: how many are done, tokens a second, cached share of the prompts, time left.

Counted as values come, not as runs end: also few long runs show that they move.
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
"""Seconds over which tokens a second are measured."""
POLL = 0.25
"""Seconds between two looks at what runs."""


class Running(Protocol):
    """What is counted of a record: its values, whatever they are of."""

    n_refs: int
    program: Any


class Reading(NamedTuple):
    """Where things stand. hit_rate: cached share of the prompt tokens; None where no prompt was counted."""

    n_done: int
    n_failed: int
    generated: int
    tokens_per_second: float
    hit_rate: float | None


class Meter:
    """Counts what runs make. Any thread may begin and end runs, and read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._open: dict[int, tuple[Running, list[int]]] = {}  # by id: the record, and its refs that are not counted
        self._n_seen: dict[int, int] = {}
        self._n_done = self._n_failed = self._prompt = self._cached = self._generated = 0
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)])
        self._looked_at = clock() - POLL

    def begin(self, record: Running) -> None:
        with self._lock:
            self._open[id(record)] = (record, [])
            self._n_seen[id(record)] = 0

    def end(self, record: Running, failed: bool) -> None:
        with self._lock:
            self._count(id(record))
            self._open.pop(id(record), None)
            self._n_seen.pop(id(record), None)
            self._n_done += 1
            self._n_failed += failed

    def read(self) -> Reading:
        """What is known; looks at what runs at most once in POLL seconds."""
        with self._lock:
            now = self._clock()
            if now - self._looked_at >= POLL:
                self._looked_at = now
                for key in tuple(self._open):
                    self._count(key)
                self._marks.append((now, self._generated))
                while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW:
                    self._marks.popleft()
            then, generated = self._marks[0]
            rate = (self._generated - generated) / (now - then) if now > then else 0.0
            hit_rate = self._cached / self._prompt if self._prompt else None
            return Reading(self._n_done, self._n_failed, self._generated, rate, hit_rate)

    def _count(self, key: int) -> None:
        if key not in self._open:
            return
        record, waiting = self._open[key]
        waiting.extend(range(self._n_seen[key], record.n_refs))
        self._n_seen[key] = record.n_refs
        left = []
        for ref in waiting:
            future = record.program.future(ref)
            if not future.done():
                left.append(ref)
            elif future.exception() is None:
                usage = future.result().usage
                self._prompt += usage.prompt
                self._cached += usage.cached
                self._generated += usage.generated
        waiting[:] = left


class _Rates(ProgressColumn):
    """Tokens a second, the hit rate, and what failed."""

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


@contextmanager
def bar(title: str, total: int, console: Console | None = None) -> Iterator[Bar]:
    """Show a bar while the block runs; it gives what is told of runs. In a notebook it is drawn there."""
    meter = Meter()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rates(meter),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Console(stderr=True)) as progress:
        yield Bar(meter, progress, total, title)


class Bar:
    """`begin` a run, `end` it: from any thread."""

    def __init__(self, meter: Meter, progress: Progress, total: int, title: str) -> None:
        self._meter, self._progress = meter, progress
        self._task = progress.add_task(title, total=total)
        self.begin = meter.begin

    def end(self, record: Running, failed: bool) -> None:
        self._meter.end(record, failed)
        self._progress.advance(self._task)
