"""Goodput: how many requests, tokens and programs met the service levels of Config.slo."""

from __future__ import annotations

from banyan.runtime.config import slo
from banyan.runtime.server.engine_link.requests import EngineRequest


class Goodput:
    """Counts what has ended since the server's start, and how much of it met the service levels. The levels `ttft` and
    `itl` apply to requests, and `program` to whole programs."""

    def __init__(self, levels: str) -> None:
        self.levels = slo(levels)
        self._ttft, self._itl = self.levels.get("ttft"), self.levels.get("itl")
        self._program = self.levels.get("program")
        self.counts = {f"{good}{what}": 0 for what in ("requests", "tokens", "programs") for good in ("", "good_")}

    def request(self, request: EngineRequest) -> None:
        """Count a request that has finished. Requests without output tokens (those of a select) do not count."""
        if not request.first or (self._ttft is None and self._itl is None):
            return
        n = len(request.ids) // 4
        is_good = self._ttft is None or request.first - request.sent <= self._ttft
        if self._itl is not None and n > 1:
            is_good = is_good and (request.ended - request.first) / (n - 1) <= self._itl
        self._count("requests", 1, is_good)
        self._count("tokens", n, is_good)

    def program(self, seconds: float) -> None:
        """Count a program that has finished after so many seconds."""
        if self._program is not None:
            self._count("programs", 1, seconds <= self._program)

    def _count(self, what: str, n: int, is_good: bool) -> None:
        self.counts[what] += n
        self.counts[f"good_{what}"] += n * is_good
