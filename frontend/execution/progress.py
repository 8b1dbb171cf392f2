"""The progress bar of a batch, on stderr or in a notebook: items done, items and tokens per second, cached share, time
left.

Tokens are counted when a value arrives, not when its run ends, so that progress is visible during long runs too. If
stderr is a file, where no bar can be drawn, one line is written per minute.
"""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import progress
from rich.console import Console
from rich.text import Text

from banyan.runtime.executor.generation import add_usage
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from banyan.views.notebook import LiveDisplay, in_notebook

WINDOW = 5.0
"""Seconds over which tokens per second are averaged."""
LINES = 60.0
"""Seconds between lines in a file."""


class Meter(progress.ProgressColumn):
    """Counts the tokens of a batch and shows them as a column of the progress bar. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.n_failed = 0
        """Runs that failed."""
        self.usage = wire.TokenUsage()
        """The tokens of all values so far."""
        self._clock, self._counts_lock = clock, threading.Lock()
        self._history: deque[tuple[float, int]] = deque([(clock(), 0)])  # (time, tokens generated until then)

    def count(self, future: ValueFuture[wire.Value]) -> None:
        """Count the tokens of a value that has arrived."""
        if future.exception() is None:
            with self._counts_lock:
                self.usage = add_usage(self.usage, future.result().usage)

    def tokens_per_second(self) -> float:
        """The tokens that were generated per second, over the last WINDOW seconds."""
        with self._counts_lock:
            now, n_generated = self._clock(), self.usage.generated
            self._history.append((now, n_generated))
            while len(self._history) > 2 and self._history[1][0] <= now - WINDOW:
                self._history.popleft()
            then, before = self._history[0]
            return (n_generated - before) / (now - then) if now > then else 0.0

    def render(self, task: progress.Task) -> Text:
        usage, rate = self.usage, self.tokens_per_second()
        parts = []
        if task.speed:
            parts.append(Text(f"{task.speed:,.3g} items/s" if task.speed < 100 else f"{task.speed:,.0f} items/s"))
        if usage.generated:
            parts.append(Text(f"{rate:,.0f} tokens/s", "progress.data.speed"))
        if usage.prompt:
            parts.append(Text(f"{usage.cached / usage.prompt:.0%} cached", "progress.percentage"))
        if self.n_failed:
            parts.append(Text(f"{self.n_failed} failed", "bold red"))
        return Text("  ").join(parts)


class Bar:
    """The progress bar of a batch. Its methods may be called from any thread."""

    def __init__(self, meter: Meter, shown: progress.Progress, task: progress.TaskID, to: Console | None) -> None:
        """to: the file to which a line is written once a minute, if no bar is shown."""
        self._meter, self._shown, self._task, self._to = meter, shown, task, to
        self._next_line = time.monotonic() + LINES

    def begin(self, record: Any) -> None:
        """Count the values of a run that starts, as they arrive. record: the run's ProgramRecord."""
        record.counters.append(self._meter.count)

    def skip(self, n: int) -> None:
        """Count `n` runs that had ended before the bar was shown."""
        self._shown.advance(self._task, n)

    def end(self, failed: bool) -> None:
        """Count a run that has ended."""
        self._meter.n_failed += failed
        self._shown.advance(self._task)
        if self._to is not None and (now := time.monotonic()) >= self._next_line:
            self._next_line = now + LINES
            self._to.print(self._shown.get_renderable())


@contextmanager
def bar(title: str, total: int | None, console: Console | None = None) -> Iterator[Bar]:
    """Show a progress bar while the block runs, on stderr or in the notebook. total: the number of runs; None: not
    known."""
    meter = Meter()
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        meter,
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    if console is None and in_notebook():  # rich itself would need ipywidgets
        shown = progress.Progress(*columns, disable=True)
        task = shown.add_task(title, total=total)
        display = LiveDisplay(lambda: _html(shown), title)
        try:
            yield Bar(meter, shown, task, None)
        finally:
            display.close()
        return
    console = console or Console(stderr=True)
    if not console.is_terminal:
        console.width = max(console.width, 120)  # stderr is a file
    with progress.Progress(*columns, console=console) as shown:
        yield Bar(meter, shown, shown.add_task(title, total=total), None if console.is_terminal else console)


def _html(shown: progress.Progress) -> str:
    """The bar as HTML, in the colors that rich gives it."""
    console = Console(record=True, file=io.StringIO(), width=120, force_jupyter=False, force_terminal=True)
    console.print(shown.get_renderable())
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
