"""How long the server's loop was busy with one piece of work, by kind: while it is, no other client is served."""

from __future__ import annotations

import time

CLOCK = time.perf_counter


class LoopTimes:
    """longest: kind of work -> seconds of its longest piece since the start."""

    def __init__(self) -> None:
        self.clock = CLOCK
        self.longest: dict[str, float] = {}

    def note(self, kind: str, seconds: float) -> None:
        """A piece of work of this kind took so long."""
        if seconds > self.longest.get(kind, 0.0):
            self.longest[kind] = seconds

    def since(self, kind: str, start: float) -> None:
        """A piece of work of this kind began at `start`, by `clock`, and has ended."""
        self.note(kind, self.clock() - start)
