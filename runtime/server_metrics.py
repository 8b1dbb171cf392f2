"""Computes the metrics of a server from its answer to Ask("stats"), for the processes that serve Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

ENGINE_COUNTERS = {
    "steps": "steps of the engine",
    "steps_ahead": "steps that were launched while the previous one was computed",
    "requests": "requests sent to the engine",
    "retractions": "running requests that were preempted for lack of pages",
    "waits": "requests that waited for a prefix that another request was computing",
}
TOKENS = ("cached", "computed", "generated", "forced")
GOOD = {"requests": "requests that ended", "tokens": "their tokens", "programs": "programs that ended without error"}
DRAFTS = {"drafted": "draft tokens that were proposed", "accepted": "draft tokens that became part of an output"}
PAGES = {"free": "n_free", "leased": "n_leased", "cached": "n_cached", "withdrawn": "n_quarantined"}
REPLICA = {"running": "requests that run in an engine", "waiting": "requests that wait in an engine"}
"""The metrics with a value for each engine; all others are for the whole server."""


class Family(NamedTuple):
    """One metric. name: its name without the prefix banyan_. labels: the names of its labels. values: values of the
    labels -> number."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


class ServerMetrics:
    """The metrics of a server, computed from its last answer to Ask("stats").

    A new engine counts from 0. The last counts of engines that have ended are therefore added to the new engine's
    counts, so that no counter falls."""

    def __init__(self) -> None:
        self._stats: Mapping[str, Any] = {}
        self._previous: dict[str, float] = {}  # totals of engines that have ended

    def update(self, stats: Mapping[str, Any]) -> None:
        """Take a new answer. Answers must be given in the order in which the server made them."""
        if stats["server"].get("seconds", 0) < self._stats.get("server", {}).get("seconds", 0):
            self._stats, self._previous = {}, {}  # another server, which counts from 0
        replicas = stats["replicas"]
        for name, before in self._stats.get("replicas", {}).items():
            row = replicas.get(name)
            # without counters: it has died and no other has started yet
            if row is None or not row["engine"] or row["starts"] != before["starts"]:
                evicted = before.get("cache", {}).get("evicted", {})
                counts = before["engine"] | {_evicted(reason): n for reason, n in evicted.items()}
                for counter, n in counts.items():
                    self._previous[counter] = self._previous.get(counter, 0) + n
        self._stats = stats

    def families(self) -> Iterator[Family]:
        return _families(self._stats, self._previous)


def _evicted(reason: str) -> str:
    """The key in `previous` for the number of pages that were evicted for this reason."""
    return f"evicted_{reason}"


def _families(stats: Mapping[str, Any], previous: Mapping[str, float]) -> Iterator[Family]:
    """Yields the metrics. stats: the server's answer to Ask("stats"). previous: the last counts of engines that have
    ended, which are added to the counts of the engines that run."""
    engine, cache, server = (stats.get(name, {}) for name in ("engine", "cache", "server"))

    def total(name: str) -> float:
        return float(previous.get(name, 0) + engine.get(name, 0))

    def labelled(kind: Literal["counter", "gauge"], name: str, text: str, label: str, values: Any) -> Family:
        return Family(name, kind, text, (label,), {(value,): float(n) for value, n in values.items()})

    def one(kind: Literal["counter", "gauge"], name: str, text: str, n: float) -> Family:
        return Family(name, kind, text, (), {(): float(n)})

    for name, text in ENGINE_COUNTERS.items():
        yield one("counter", name, text, total(name))
    tokens = {origin: total(f"{origin}_tokens") for origin in TOKENS}
    yield labelled("counter", "tokens", "tokens, by where they came from", "origin", tokens)
    for kind, text in DRAFTS.items():
        counts = {name.removeprefix(f"{kind}_"): total(name) for name in engine if name.startswith(f"{kind}_")}
        yield labelled("counter", f"{kind}_tokens", text, "drafter", counts)
    failures = {name.removeprefix("failed_"): total(name) for name in engine if name.startswith("failed_")}
    yield labelled("counter", "draft_failures", "times that a drafter failed", "drafter", failures)
    pages = {holder: cache.get(name, 0) for holder, name in PAGES.items()}
    yield labelled("gauge", "pages", "pages of KV, by who holds them", "holder", pages)
    evicted = {reason: n + previous.get(_evicted(reason), 0) for reason, n in cache.get("evicted", {}).items()}
    yield labelled("counter", "evicted_pages", "pages evicted, by reason", "reason", evicted)
    hit_rate = cache.get("n_hit_tokens", 0) / max(1, cache.get("n_query_tokens", 0))
    yield one("gauge", "hit_rate", "share of prompt tokens found in the tree", hit_rate)
    for name in ("running", "waiting"):
        yield one("gauge", f"{name}_requests", f"requests that are {name}", engine.get(name, 0))
    replicas = stats.get("replicas", {})
    for name, text in REPLICA.items():
        values = {replica: row["engine"].get(name, 0) for replica, row in replicas.items()}
        yield labelled("gauge", f"replica_{name}", text, "replica", values)
    for what, text in GOOD.items():
        if (n := server.get(f"slo_{what}")) is not None:
            yield one("counter", f"slo_{what}", f"{text}, to which a service level applies", n)
            yield one("counter", f"good_{what}", f"{text} and met the service levels", server[f"slo_good_{what}"])
    for name in ("clients", "programs"):
        yield one("gauge", name, f"{name} on the server", server.get(name, 0))
    yield one("counter", "wrong_tokens", "clients refused for their access token", server.get("wrong_tokens", 0))
    text = "longest time since the start that the server's loop spent on one piece of work"
    yield labelled("gauge", "longest_loop_seconds", text, "kind", server.get("longest", {}))
    text = "engines started: at the start, added later, or in place of one that died"
    yield one("counter", "engine_starts", text, server.get("engine_starts", 0))
    text = "engines that died, hung, or lost their connection"
    yield one("counter", "engine_deaths", text, server.get("engine_deaths", 0))
