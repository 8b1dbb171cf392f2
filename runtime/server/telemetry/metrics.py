"""Prometheus metrics of a server, over HTTP.

Latencies of requests and programs are recorded on the server's loop when they end. All other metrics are computed when
Prometheus asks, from the counters that the engine sent last.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from banyan.runtime.config import address
from banyan.runtime.errors import ConfigError
from banyan.runtime.server.engine_link.requests import EngineRequest
from banyan.runtime.server_metrics import ServerMetrics

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The metrics and their HTTP server, which has its own thread, so that it never blocks the server's loop.

    programs  histogram of the seconds of programs
    batches   histogram of the requests that got tokens in a step
    """

    def __init__(self, where: str) -> None:
        """where: the address to listen at, as in Config.metrics. Raises ConfigError if the address is in use, or
        prometheus_client is not installed."""
        try:
            import prometheus_client as prometheus
            from prometheus_client import core
        except ModuleNotFoundError:
            raise ConfigError("metrics need prometheus_client: pip install 'banyan[metrics]'") from None
        self._core = core
        self._counters = ServerMetrics()
        self._registry = prometheus.CollectorRegistry()

        def histogram(name: str, text: str) -> Any:
            return prometheus.Histogram(f"banyan_{name}_seconds", text, registry=self._registry, buckets=SECONDS)

        self._first = histogram("first_token", "from sending a request to its first token")
        self._gap = histogram("inter_token", "mean time between two tokens of a request")
        self._queue = histogram("queue", "from sending a request to its start in the engine")
        self._request = histogram("request", "from sending a request to its end")
        self.programs = histogram("program", "from the first message of a program to the end of its last gen")
        self.batches = prometheus.Histogram(
            "banyan_batch_requests", "requests that got tokens in a step", registry=self._registry, buckets=ROWS
        )
        self._registry.register(self)
        host, port = address(where)
        try:
            self._server, self._thread = prometheus.start_http_server(port, host, registry=self._registry)
        except OSError as e:
            raise ConfigError(f"metrics: cannot listen at {where}: {e.strerror or e}") from e

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # ---- called on the server's loop --------------------------------------------------------------------------------

    def request(self, request: EngineRequest) -> None:
        """Record a request that has finished without error."""
        assert request.finish is not None
        self._request.observe(request.ended - request.sent)
        if request.finish.started:
            self._queue.observe(max(0.0, request.finish.started - request.sent))
        if request.first:
            self._first.observe(request.first - request.sent)
            if (n := len(request.ids) // 4) > 1:
                self._gap.observe((request.ended - request.first) / (n - 1))

    def update(self, counters: dict[str, Any]) -> None:
        """Replace the counters of the engine and the server by newer ones. counters: the server's answer to
        Ask("stats")."""
        self._counters.update(counters)

    # ---- called by prometheus_client on its own thread --------------------------------------------------------------

    def describe(self) -> Iterable[Any]:
        return ()  # so that registering does not call `collect`

    def collect(self) -> Iterable[Any]:
        kinds = {"counter": self._core.CounterMetricFamily, "gauge": self._core.GaugeMetricFamily}
        for family in self._counters.families():
            metric = kinds[family.kind](f"banyan_{family.name}", family.text, labels=family.labels)
            for values, n in family.values.items():
                metric.add_metric(values, n)
            yield metric
