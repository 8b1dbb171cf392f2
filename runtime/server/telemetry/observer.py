"""What is seen of requests and programs as they end, to whoever was asked for: service levels, metrics, traces."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

from banyan.runtime.config import Config
from banyan.runtime.errors import BanyanError
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.requests import EngineRequest
from banyan.runtime.server.programs.running_program import RunningProgram
from banyan.runtime.server.telemetry.goodput import Goodput
from banyan.runtime.server.telemetry.metrics import Metrics
from banyan.runtime.server.telemetry.traces import Traces, exporter


class Observer:
    """Called on the server's loop; nothing here waits."""

    def __init__(self, config: Config, model: str, undo: contextlib.ExitStack) -> None:
        """undo: what has to be closed. ConfigError: an extra is not installed, or an address cannot be had."""
        self.goodput = Goodput(config.slo)
        self.metrics = Metrics(config.metrics) if config.metrics else None
        if self.metrics is not None:
            undo.callback(self.metrics.close)
        self.traces = Traces(exporter(config.traces), model) if config.traces else None
        if self.traces is not None:
            undo.callback(self.traces.close)

    @property
    def wants_counters(self) -> bool:
        """Whether the engine is to be asked for its counters, now and then."""
        return self.metrics is not None

    def note(self, counters: dict[str, Any]) -> None:
        """The engine's counters, and the server's own under "server"."""
        if self.metrics is not None:
            self.metrics.note(counters)

    def step(self, report: wire.Step) -> None:
        if self.metrics is not None and report.rids:
            self.metrics.step(len(report.rids) // 8)

    def ended(self, request: EngineRequest) -> None:
        """It has ended well."""
        self.goodput.request(request)
        if self.metrics is not None:
            self.metrics.request(request)

    def generated(self, program: RunningProgram, op: wire.Gen | wire.Select, outcome: GenOutcome | BanyanError) -> None:
        """A gen or select has ended, one way or the other."""
        program.last = datetime.now()
        if self.traces is not None:
            self.traces.generated(program, op, outcome)

    def over(self, program: RunningProgram, error: BanyanError | None) -> None:
        """A program has ended; error: what it failed with."""
        seconds = max(0.0, (program.last - program.started).total_seconds())
        if error is None:
            self.goodput.program(seconds)
        if self.metrics is not None:
            self.metrics.program(seconds)
        if self.traces is not None:
            self.traces.over(program, error)
