"""How long the server's loop was busy with one piece of work, by kind: while it is, no other client is served."""

from __future__ import annotations

import time
from array import array
from collections import defaultdict

CLOCK = time.perf_counter


class LoopTimes:
    """The longest piece of each kind since the start."""

    def __init__(self) -> None:
        self.clock = CLOCK
        # Arrays, because a float that is made when memory is fullest would keep the 1 MiB around it from the system.
        self._longest: defaultdict[str, array[float]] = defaultdict(lambda: array("d", (0.0,)))

    @property
    def longest(self) -> dict[str, float]:
        """Kind of work -> seconds."""
        return {kind: own[0] for kind, own in self._longest.items()}

    def note(self, kind: str, seconds: float) -> None:
        """A piece of work of this kind took `seconds`."""
        if seconds > (own := self._longest[kind])[0]:
            own[0] = seconds

    def since(self, kind: str, start: float) -> None:
        """A piece of work of this kind began at `start`, by `clock`, and has ended."""
        self.note(kind, self.clock() - start)
