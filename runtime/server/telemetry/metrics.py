"""What a server tells a monitor: Prometheus' text over HTTP, on an address of this machine.

Times of requests and programs are counted on the server's loop as they end; all else is read when somebody asks, from
the counters that the engine last sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from banyan.runtime.config import address
from banyan.runtime.errors import ConfigError
from banyan.runtime.server.engine_link.requests import EngineRequest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

ENGINE_COUNTERS = {
    "steps": "steps of the engine's loop",
    "steps_ahead": "steps that were launched while the one before was computed",
    "requests": "requests that the engine was given",
    "retractions": "running requests that gave their place back for lack of pages",
    "waits": "requests that waited for a prefix that another was computing",
}
TOKENS = {
    "cached": "cached_tokens",
    "computed": "computed_tokens",
    "generated": "generated_tokens",
    "forced": "forced_tokens",
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
GOOD = {"requests": "requests that ended", "tokens": "tokens of those", "programs": "programs that ended well"}
DRAFTS = {
    "drafted": "tokens that were proposed before they were computed",
    "accepted": "tokens of those that became part of an output",
}
PAGES = {"free": "n_free", "leased": "n_leased", "cached": "n_cached", "withdrawn": "n_quarantined"}


class Metrics:
    """A registry, and the HTTP server that shows it. Nothing here waits for who reads it.

    Counters of an engine begin anew with each engine; here they go on.
    """

    def __init__(self, where: str) -> None:
        """where: as in Config.metrics. ConfigError: nothing can listen there, or the extra is not installed."""
        try:
            import prometheus_client as prometheus
            from prometheus_client import core
        except ModuleNotFoundError:
            raise ConfigError("metrics need prometheus_client: pip install 'banyan[metrics]'") from None
        self._core = core
        self._now: dict[str, Any] = {}  # what the engine said last, and the server's own
        self._before: dict[str, float] = {}  # counts of engines that are no more
        self._registry = prometheus.CollectorRegistry()

        def histogram(name: str, text: str) -> Any:
            return prometheus.Histogram(f"banyan_{name}_seconds", text, registry=self._registry, buckets=SECONDS)

        self._first = histogram("first_token", "from a request's order to its first token")
        self._gap = histogram("inter_token", "between two tokens of a request, in the mean of it")
        self._queue = histogram("queue", "from a request's order to the engine's start of it")
        self._request = histogram("request", "from a request's order to its end")
        self._program = histogram("program", "from a program's first message to the end of its last gen")
        self._batch = prometheus.Histogram(
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

    # ---- the loop's side -------------------------------------------------------------------------------------------

    def request(self, request: EngineRequest) -> None:
        """It has ended well."""
        assert request.finish is not None
        self._request.observe(request.ended - request.sent)
        if request.finish.started:
            self._queue.observe(max(0.0, request.finish.started - request.sent))
        if request.first:
            self._first.observe(request.first - request.sent)
            if (n := len(request.ids) // 4) > 1:
                self._gap.observe((request.ended - request.first) / (n - 1))

    def program(self, seconds: float) -> None:
        """One has ended that took so long."""
        self._program.observe(seconds)

    def step(self, n_requests: int) -> None:
        """A step of the engine gave so many requests tokens."""
        self._batch.observe(n_requests)

    def note(self, engine: dict[str, Any]) -> None:
        """What the engine answers to Ask("stats"), with the server's own under "server"."""
        was = self._now.get("server", {}).get("engine_starts")
        if was is not None and was != engine["server"]["engine_starts"]:
            for name, n in self._now.get("engine", {}).items():
                self._before[name] = self._before.get(name, 0) + n
        self._now = engine

    # ---- the reader's side -----------------------------------------------------------------------------------------

    def describe(self) -> Iterable[Any]:
        return ()  # so that registering does not collect

    def collect(self) -> Iterable[Any]:
        """For prometheus_client, on its own thread."""
        counter, gauge = self._core.CounterMetricFamily, self._core.GaugeMetricFamily
        now = self._now
        engine, cache, server = (now.get(name, {}) for name in ("engine", "cache", "server"))

        def total(name: str) -> float:
            return float(self._before.get(name, 0) + engine.get(name, 0))

        for name, text in ENGINE_COUNTERS.items():
            yield counter(f"banyan_{name}", text, total(name))
        tokens = counter("banyan_tokens", "tokens, by where they came from", labels=["origin"])
        for origin, name in TOKENS.items():
            tokens.add_metric([origin], total(name))
        yield tokens
        for kind, text in DRAFTS.items():
            drafts = counter(f"banyan_{kind}_tokens", text, labels=["drafter"])
            for name in (name for name in engine if name.startswith(f"{kind}_")):
                drafts.add_metric([name.removeprefix(f"{kind}_")], total(name))
            yield drafts
        pages = gauge("banyan_pages", "pages of KV, by who holds them", labels=["holder"])
        for holder, name in PAGES.items():
            pages.add_metric([holder], cache.get(name, 0))
        yield pages
        evicted = counter("banyan_evicted_pages", "pages evicted by this engine", labels=["reason"])
        for reason, n in cache.get("evicted", {}).items():
            evicted.add_metric([reason], n)
        yield evicted
        asked = cache.get("n_query_tokens", 0)
        yield gauge(
            "banyan_hit_rate", "of prompt tokens, found in the tree", cache.get("n_hit_tokens", 0) / max(1, asked)
        )
        for name in ("running", "waiting"):
            yield gauge(f"banyan_{name}_requests", f"requests that are {name}", engine.get(name, 0))
        for what, text in GOOD.items():
            if (n := server.get(f"slo_{what}")) is not None:
                yield counter(f"banyan_slo_{what}", f"{text}, and are judged by the service levels", n)
                yield counter(
                    f"banyan_good_{what}", f"{text} and kept to the service levels", server[f"slo_good_{what}"]
                )
        for name in ("clients", "programs"):
            yield gauge(f"banyan_{name}", f"{name} that are here", server.get(name, 0))
        yield counter(
            "banyan_engine_starts", "engines started: all but the first replaced one", server.get("engine_starts", 0)
        )
