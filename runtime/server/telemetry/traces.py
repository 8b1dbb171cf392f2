"""OpenTelemetry traces: a span for each program, with a child span for each gen and select.

The server's loop creates the span of a gen when the gen has ended. A thread of the SDK sends the spans from a bounded
queue to the collector. If the queue is full, new spans are dropped; the loop never waits.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from banyan.runtime.errors import BanyanError, ConfigError
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire
from banyan.runtime.server.programs.running_program import RunningProgram

_SHUTDOWN_MS = 2000
_MAX_TEXT = 1000
"""Maximum number of characters of a name, a source line or an error in a span. Clients choose them, and the queue holds
2048 spans."""


def exporter(where: str) -> Any:
    """A span exporter. where: "console" (stderr), or the URL of an OTLP collector over HTTP."""
    try:
        if where == "console":
            from opentelemetry.sdk.trace.export import ConsoleSpanExporter

            return ConsoleSpanExporter(out=sys.stderr)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        raise ConfigError("traces need OpenTelemetry: pip install 'banyan[otel]'") from None
    if not where.startswith(("http://", "https://")):
        raise ConfigError(f"traces is {where!r}; it must be console, or a URL such as http://localhost:4318/v1/traces")
    return OTLPSpanExporter(endpoint=where)


class Traces:
    """Creates the spans. exporter: an OpenTelemetry SpanExporter, which sends them."""

    def __init__(self, exporter: Any, model: str) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._trace = trace
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "banyan", "banyan.model": model}), shutdown_on_exit=False
        )
        self._processor = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("banyan")
        self._programs: dict[int, Any] = {}  # by serial: their spans

    def generated(self, program: RunningProgram, op: wire.Gen | wire.Select, outcome: GenOutcome | BanyanError) -> None:
        """Record a gen or select that ended."""
        parent = self._trace.set_span_in_context(self._span(program))
        times = outcome.times if isinstance(outcome, GenOutcome) else wire.Times()
        kind = type(op).__name__.lower()
        span = self._tracer.start_span(
            f"{kind} {op.name[:_MAX_TEXT]}".rstrip(),
            parent,
            start_time=_ns(times.ready) if times.ready else None,
            attributes={
                "banyan.kind": kind,
                "banyan.name": op.name[:_MAX_TEXT],
                "banyan.line": op.line[:_MAX_TEXT],
                "banyan.state": op.state,
            },
        )
        for name in ("sent", "started", "first"):
            if at := getattr(times, name):
                span.add_event(name, timestamp=_ns(at))
        if isinstance(outcome, GenOutcome):
            for name in wire.TokenUsage.__struct_fields__:
                span.set_attribute(f"banyan.tokens.{name}", getattr(outcome.usage, name))
            span.set_attribute("banyan.finish_reason", outcome.samples[0].finish_reason)
        else:
            self._fail(span, outcome)
        span.end(_ns(times.ended) if times.ended else None)

    def program_ended(self, program: RunningProgram, error: BanyanError | None) -> None:
        """Record a program that ended."""
        span = self._span(program)
        if error is not None:
            self._fail(span, error)
        del self._programs[program.serial]
        span.end()

    def close(self) -> None:
        """Export the remaining spans, with a timeout."""
        self._provider.force_flush(_SHUTDOWN_MS)
        self._provider.shutdown()

    def _span(self, program: RunningProgram) -> Any:
        span = self._programs.get(program.serial)
        if span is None:
            name = program.name[:_MAX_TEXT]
            span = self._programs[program.serial] = self._tracer.start_span(
                f"program {name}".rstrip(),
                start_time=int(program.started.timestamp() * 1e9),
                attributes={"banyan.program": name, "banyan.serial": program.serial},
            )
        return span

    def _fail(self, span: Any, error: BanyanError) -> None:
        span.set_attribute("banyan.error", error.code)
        span.set_status(self._trace.StatusCode.ERROR, error.message[:_MAX_TEXT])


def _ns(monotonic: float) -> int:
    """Convert a time on the monotonic clock, as in wire.Times, to nanoseconds since 1970, as in OpenTelemetry."""
    return time.time_ns() - int((time.monotonic() - monotonic) * 1e9)
