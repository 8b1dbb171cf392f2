"""Records for how long pieces of work kept the server's loop busy. During that time no other client is served."""

from __future__ import annotations

import time
from array import array
from collections import defaultdict

CLOCK = time.perf_counter


class LoopTimes:
    """The longest piece of work of each kind since the start, in seconds."""

    def __init__(self) -> None:
        self.clock = CLOCK
        # Arrays, because a new float object could keep 1 MiB of memory around it from being given back to the system.
        self._longest: defaultdict[str, array[float]] = defaultdict(lambda: array("d", (0.0,)))

    @property
    def longest(self) -> dict[str, float]:
        """Kind of work -> seconds."""
        return {kind: own[0] for kind, own in self._longest.items()}

    def note(self, kind: str, seconds: float) -> None:
        """Record that a piece of work of this kind took `seconds`."""
        if seconds > (own := self._longest[kind])[0]:
            own[0] = seconds

    def since(self, kind: str, start: float) -> None:
        """Record that a piece of work of this kind began at time `start` and has ended now."""
        self.note(kind, self.clock() - start)
