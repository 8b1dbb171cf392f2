"""Passes the events of requests and programs to goodput, metrics and traces, if the config asks for them."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

from banyan.runtime.config import Config, slo
from banyan.runtime.errors import BanyanError
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.requests import EngineRequest
from banyan.runtime.server.programs.running_program import RunningProgram
from banyan.runtime.server.telemetry.metrics import Metrics
from banyan.runtime.server.telemetry.traces import Traces, exporter


class Goodput:
    """Counts the requests and programs that have ended since the server's start, and how many of them met the service
    levels. The levels `ttft` and `itl` apply to requests, and `program` to whole programs."""

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
        """Count a program that has finished after `seconds`."""
        if self._program is not None:
            self._count("programs", 1, seconds <= self._program)

    def _count(self, what: str, n: int, is_good: bool) -> None:
        self.counts[what] += n
        self.counts[f"good_{what}"] += n * is_good


class Observer:
    """Gets the events of a server. All methods are called on the server's loop, and none of them blocks."""

    def __init__(self, config: Config, model: str, undo: contextlib.ExitStack) -> None:
        """model: the model's name, for traces. undo: gets the calls that close metrics and traces. Raises ConfigError
        if a package that they need is not installed, or an address is in use."""
        self.goodput = Goodput(config.slo)
        self.metrics = Metrics(config.metrics) if config.metrics else None
        if self.metrics is not None:
            undo.callback(self.metrics.close)
        self.traces = Traces(exporter(config.traces), model) if config.traces else None
        if self.traces is not None:
            undo.callback(self.traces.close)

    @property
    def wants_counters(self) -> bool:
        """Whether to ask the engine for its counters from time to time."""
        return self.metrics is not None

    def counters(self, counters: dict[str, Any]) -> None:
        """Take new counters of the engine, with those of the server under "server"."""
        if self.metrics is not None:
            self.metrics.update(counters)

    def step(self, report: wire.Step) -> None:
        """Record an engine step: how many requests got tokens in it."""
        if self.metrics is not None and report.rids:
            self.metrics.batches.observe(len(report.rids) // 8)

    def request_ended(self, request: EngineRequest) -> None:
        """Record a request that finished without error."""
        self.goodput.request(request)
        if self.metrics is not None:
            self.metrics.request(request)

    def generated(self, program: RunningProgram, op: wire.Gen | wire.Select, outcome: GenOutcome | BanyanError) -> None:
        """Record a gen or select that ended, with or without error."""
        program.last = datetime.now()
        if self.traces is not None:
            self.traces.generated(program, op, outcome)

    def program_ended(self, program: RunningProgram, error: BanyanError | None) -> None:
        """Record a program that ended. error: its error, if it failed."""
        # The difference of two local times would be wrong across a change to or from daylight saving time.
        seconds = max(0.0, program.last.timestamp() - program.started.timestamp())
        if error is None:
            self.goodput.program(seconds)
        if self.metrics is not None:
            self.metrics.programs.observe(seconds)
        if self.traces is not None:
            self.traces.program_ended(program, error)
