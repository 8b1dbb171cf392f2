"""The metrics endpoint: counts and times, which continue when the engine is replaced."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from banyan.runtime import launch
from banyan.runtime.client import client
from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol import wire
from banyan.runtime.server.telemetry.metrics import Metrics
from waits import wait_until

Serve = Callable[..., launch.ServerProcess]


def read_metrics(port: int) -> dict[str, float]:
    """Name and labels -> value, for all samples."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^(banyan_\S+) (\S+)$", text, re.M)}


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    created = Metrics("0")
    yield created
    created.close()


def test_engine_counters_continue_after_a_restart(metrics: Metrics) -> None:
    def update(starts: int, steps: int, cached: int) -> None:
        engine = {"steps": steps, "cached_tokens": cached, "running": 3, "waiting": 4}
        cache = {"n_free": 5, "n_cached": 6, "n_query_tokens": 8, "n_hit_tokens": 2, "evicted": {"unused": 7}}
        replicas = {"0": {"starts": starts, "engine": engine}}
        server = {"engine_starts": starts, "programs": 9}
        metrics.update({"engine": engine, "cache": cache, "server": server, "replicas": replicas})

    update(1, 100, 40)
    update(1, 120, 50)
    first = read_metrics(metrics.port)
    assert first["banyan_steps_total"] == 120
    assert first['banyan_tokens_total{origin="cached"}'] == 50
    assert first['banyan_pages{holder="cached"}'] == 6
    assert first['banyan_evicted_pages_total{reason="unused"}'] == 7
    assert first["banyan_hit_rate"] == 0.25
    assert (first["banyan_running_requests"], first["banyan_waiting_requests"], first["banyan_programs"]) == (3, 4, 9)
    update(2, 10, 1)
    second = read_metrics(metrics.port)
    assert second["banyan_steps_total"] == 130
    assert second['banyan_tokens_total{origin="cached"}'] == 51
    assert second["banyan_engine_starts_total"] == 2


def test_engine_that_ended_is_still_counted(metrics: Metrics) -> None:
    def update(**steps: int) -> None:
        rows = {name: {"starts": 1, "engine": {"steps": n, "running": n}} for name, n in steps.items()}
        metrics.update({"engine": {"steps": sum(steps.values())}, "cache": {}, "server": {}, "replicas": rows})

    update(a=100, b=10)
    update(b=20)
    samples = read_metrics(metrics.port)
    assert samples["banyan_steps_total"] == 120
    assert samples['banyan_replica_running{replica="b"}'] == 20


def test_counts_of_an_engine_that_died_while_it_was_asked_are_kept(metrics: Metrics) -> None:
    """Its row is empty before its `starts` rises. The totals must not fall then by what the dead engine had counted."""
    totals = []
    for starts, steps in ((1, 90), (1, None), (2, 5), (2, 6)):
        rows = {"0": {"starts": 1, "engine": {"steps": 110}}, "1": {"starts": starts, "engine": {}}}
        if steps is not None:
            rows["1"]["engine"] = {"steps": steps}
        total = {"steps": 110 + (steps or 0)}
        metrics.update({"engine": total, "cache": {}, "server": {}, "replicas": rows})
        totals.append(read_metrics(metrics.port)["banyan_steps_total"])
    assert totals == [200, 200, 205, 206]


def test_drafts_batches_and_goodput_are_exported(metrics: Metrics) -> None:
    server = {"engine_starts": 1, "slo_requests": 5, "slo_good_requests": 4, "slo_tokens": 50, "slo_good_tokens": 45,
              "slo_programs": 2, "slo_good_programs": 1}  # fmt: skip
    counts = {"drafted_tree": 9, "accepted_tree": 6, "drafted_ngram": 2, "failed_ngram": 1}
    metrics.update({"engine": counts, "cache": {}, "server": server, "replicas": {}})
    for n in (1, 3, 3, 60):
        metrics.batches.observe(n)
    samples = read_metrics(metrics.port)
    assert samples['banyan_drafted_tokens_total{drafter="tree"}'] == 9
    assert samples['banyan_drafted_tokens_total{drafter="ngram"}'] == 2
    assert samples['banyan_accepted_tokens_total{drafter="tree"}'] == 6
    assert samples['banyan_draft_failures_total{drafter="ngram"}'] == 1
    assert samples["banyan_batch_requests_count"] == 4
    assert samples["banyan_batch_requests_sum"] == 67
    assert samples['banyan_batch_requests_bucket{le="4.0"}'] == 3
    assert (samples["banyan_slo_requests_total"], samples["banyan_good_requests_total"]) == (5, 4)
    assert (samples["banyan_slo_tokens_total"], samples["banyan_good_tokens_total"]) == (50, 45)
    assert (samples["banyan_slo_programs_total"], samples["banyan_good_programs_total"]) == (2, 1)


def test_address_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="cannot listen at"):
        Metrics(str(taken.getsockname()[1]))


def test_server_exports_times_and_counts(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = serve(
        say={"count": " ".join(map(str, range(30)))},
        options={"metrics": str(port), "slo": "ttft=60s,itl=1ms,program=60s"},
        step_ms=3,
    )
    with contextlib.closing(client.connect(server.socket)) as c:
        for k in range(3):
            program: Any = c.program(str(k))
            program.submit([wire.Append(0, ("count",)), wire.Gen(0, 0, wire.Sampling(max_tokens=200))], last=True)
            program.future(0).result(60)
            program.future(0)
        os.kill(c.ask("info")["engine_pid"], signal.SIGKILL)
        wait_until(
            lambda: read_metrics(port)["banyan_engine_starts_total"] >= 2,
            "the second engine",
            seen=lambda: read_metrics(port),
        )
        samples = read_metrics(port)
        assert samples["banyan_engine_deaths_total"] == 1
        c.ask("add", 60)
        assert c.ask("stats")["server"]["engine_starts"] == 3
        assert c.ask("stats")["server"]["engine_deaths"] == 1, "an engine that is added replaces none"
    for name in ("first_token", "inter_token", "request", "program"):
        assert samples[f"banyan_{name}_seconds_count"] == 3
        assert 0 < samples[f"banyan_{name}_seconds_sum"] < 60
    assert samples["banyan_clients"] == 1
    assert samples["banyan_batch_requests_count"] > 10
    assert (samples["banyan_slo_requests_total"], samples["banyan_slo_programs_total"]) == (3, 3)
    assert (samples["banyan_good_requests_total"], samples["banyan_good_programs_total"]) == (0, 3), (
        "every itl is above 1 ms"
    )
    assert samples["banyan_slo_tokens_total"] > samples["banyan_good_tokens_total"] == 0
    assert samples["banyan_request_seconds_sum"] <= samples["banyan_program_seconds_sum"] + 0.01
