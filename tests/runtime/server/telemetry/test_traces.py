"""Traces: the spans of a program, as OpenTelemetry's in-memory exporter receives them."""

from __future__ import annotations

import builtins
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol import wire
from banyan.runtime.server.telemetry.traces import Traces, exporter

OPS = (
    wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=4, temperature=0.0), name="x", line="p.py:3"),
    wire.Select(0, 1, ("yes", "no"), name="which"),
)  # fmt: skip


@pytest.fixture
def traced(bench: Callable[..., Any]) -> Iterator[Any]:
    """A bench with `b.spans()`: the exported spans by name."""
    exporter_in_memory = InMemorySpanExporter()
    traces = Traces(exporter_in_memory, "m")
    b = bench({"a": " one two"}, telemetry=traces)

    def spans() -> dict[str, Any]:
        traces._provider.force_flush()
        return {span.name: span for span in exporter_in_memory.get_finished_spans()}

    b.spans, b.traces = spans, traces
    yield b
    traces.close()


def test_program_span_contains_the_spans_of_its_gens(traced: Any) -> None:
    before = time.time_ns()
    traced.submit(*OPS, last=True)
    traced.run()
    spans = traced.spans()
    assert set(spans) == {"program test", "gen x", "select which"}
    root, gen, select = (spans[name] for name in ("program test", "gen x", "select which"))
    assert root.parent is None
    for child in (gen, select):
        assert child.parent.span_id == root.context.span_id
        assert child.context.trace_id == root.context.trace_id
        assert root.start_time <= child.start_time <= child.end_time <= root.end_time
    assert before - 10**9 < root.start_time <= root.end_time < time.time_ns() + 10**9
    assert gen.attributes["banyan.line"] == "p.py:3"
    assert gen.attributes["banyan.tokens.generated"] == 4
    assert gen.attributes["banyan.tokens.prompt"] > 0
    assert gen.attributes["banyan.finish_reason"] == "length"
    events = [event.name for event in gen.events]
    assert events == ["sent", "first"], "the fake engine does not report the start"
    assert [event.timestamp for event in gen.events] == sorted(event.timestamp for event in gen.events)
    assert root.resource.attributes["service.name"] == "banyan"
    assert not traced.traces._programs


def test_failed_program_span_has_the_error_code(traced: Any) -> None:
    traced.submit(wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(n=0), name="bad"), last=True)
    traced.submit(*OPS, wire.Append(0, (wire.Ref(9),)), program=1)
    traced.programs.cancel(b"me", wire.Cancel(1, 1))
    spans = traced.spans()
    assert spans["program test"].status.status_code is StatusCode.ERROR
    assert spans["program test"].attributes["banyan.error"] == "cancelled"
    assert not traced.traces._programs


def test_failed_gen_span_has_the_error_code(traced: Any) -> None:
    traced.submit(wire.Append(0, ("a" * 9000,)), wire.Gen(0, 0, name="long"), last=True)
    traced.run()
    span = traced.spans()["gen long"]
    assert span.attributes["banyan.error"] == "prompt_too_long"
    assert span.status.status_code is StatusCode.ERROR


def test_exporter_is_console_or_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="must be console, or a URL"):
        exporter("collector:4318")
    assert type(exporter("http://localhost:4318/v1/traces")).__name__ == "OTLPSpanExporter"
    real = builtins.__import__

    def import_without_otel(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", import_without_otel)
    with pytest.raises(ConfigError, match=r"pip install .banyan\[otel\]"):
        exporter("console")


def test_server_exports_its_traces_before_it_exits(
    fake_model: Callable[..., Any], boot: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    server_config = config.make(model=str(fake_model(say={"a": " b"})), traces="console")
    server = launch.start(server_config, timeout=60, command=boot)
    try:
        with contextlib.closing(client.connect(server.socket)) as c:
            program = c.program("mine")
            program.submit([*OPS[:2]], last=True)
            assert program.future(0).result(30).samples[0].text == " b"
    finally:
        server.close()
    output = capfd.readouterr().err
    assert '"name": "program mine"' in output
    assert '"name": "gen x"' in output
