"""Goodput: of what ended, how much kept to the service levels that were asked for."""

from __future__ import annotations

from banyan.runtime.config import slo
from banyan.runtime.server.engine_link.requests import EngineRequest


class Goodput:
    """Counts since the start. Requests are judged by `ttft` and `itl`, whole programs by `program`."""

    def __init__(self, levels: str) -> None:
        self.levels = slo(levels)
        self._first, self._gap = self.levels.get("ttft"), self.levels.get("itl")
        self._program = self.levels.get("program")
        self.counts = {f"{good}{what}": 0 for what in ("requests", "tokens", "programs") for good in ("", "good_")}

    def request(self, request: EngineRequest) -> None:
        """It has ended well. One that was to make no tokens (a select's) is not judged."""
        if not request.first or (self._first is None and self._gap is None):
            return
        n = len(request.ids) // 4
        is_good = self._first is None or request.first - request.sent <= self._first
        if self._gap is not None and n > 1:
            is_good = is_good and (request.ended - request.first) / (n - 1) <= self._gap
        self._count("requests", 1, is_good)
        self._count("tokens", n, is_good)

    def program(self, seconds: float) -> None:
        """One has ended that took so long."""
        if self._program is not None:
            self._count("programs", 1, seconds <= self._program)

    def _count(self, what: str, n: int, is_good: bool) -> None:
        self.counts[what] += n
        self.counts[f"good_{what}"] += n * is_good
