"""A run as a trace for https://ui.perfetto.dev or chrome://tracing (Trace Event Format, JSON).

The body has a track, and so has each branch. On the track of a branch, each gen is a slice that contains slices for its
phases. Waits and tool calls that overlap are on several tracks: two slices of a track must be nested or disjoint.
Arrows show forks and joins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from banyan.execution.run_trace import TimeSpan
from banyan.runtime.protocol import wire
from banyan.views.history import BranchHistory, GenHistory, History

PID = 1
BODY = 1
FIRST_BRANCH = 10
FIRST_TOOL = 1_000_000
FIRST_WAIT = 2_000_000
"""The names above are track numbers. Waits are on the track BODY; FIRST_WAIT + 1, ... are for overlapping waits."""


def chrome_trace(history: History, now: float | None = None) -> dict[str, Any]:
    """The trace of a run. Its times are microseconds since the start of the run. now: seconds of time.monotonic(), at
    which unfinished slices end; None: the current time."""
    writer = _TraceWriter(history, time.monotonic() if now is None else now)
    return {
        "displayTimeUnit": "ms",
        "traceEvents": list(writer.events()),
        "otherData": {"program": history.name, "model": history.model},
    }


def phases(times: wire.Times) -> list[tuple[str, float, float]]:
    """(name, start, end) of the known phases of a gen: encode, queue, prefill, decode."""
    if not times.started and not times.first:  # an API reports only the start and the end
        return [("decode", times.ready, times.ended)] if times.ended > times.ready > 0 else []
    points = [
        ("encode", times.ready, times.sent),
        ("queue", times.sent, times.started),
        ("prefill", times.started or times.sent, times.first or times.ended),
        ("decode", times.first, times.ended),
    ]
    return [(name, start, end) for name, start, end in points if start and end > start]


class _TraceWriter:
    """Generates the events of a Chrome trace. now: seconds of time.monotonic(), at which unfinished slices end."""

    def __init__(self, history: History, now: float) -> None:
        self._history, self._now = history, now
        self._began = history.trace.began
        self._arrows = count(1)

    def events(self) -> Iterator[dict[str, Any]]:
        trace = self._history.trace
        yield self._name("process_name", 0, f"program {self._history.name} on {self._history.model}")
        yield self._name("thread_name", BODY, "body")
        yield self._slice(BODY, "body", self._began, trace.ended or self._now)
        for k, spans in enumerate(_tracks(trace.spans, "wait")):
            track = FIRST_WAIT + k if k else BODY
            if k:
                yield self._name("thread_name", track, f"body, wait {k + 1}")
            for span in spans:
                yield self._slice(track, f"wait for {span.name}", span.start, span.end, {"line": span.line})
        for message in trace.sent:
            yield self._instant(BODY, f"send {len(message.ops)} ops", message.at)
        for k, spans in enumerate(_tracks(trace.spans, "tool")):
            yield self._name("thread_name", FIRST_TOOL + k, f"tools {k + 1}" if k else "tools")
            for span in spans:
                args = {"state": span.state, "line": span.line} | ({"error": span.error} if span.error else {})
                yield self._slice(FIRST_TOOL + k, span.name, span.start, span.end, args)
        for branch in self._history.branches:
            yield from self._branch(branch)

    def _branch(self, branch: BranchHistory) -> Iterator[dict[str, Any]]:
        track = FIRST_BRANCH + branch.number
        forked = f", forked from {branch.parent.number}" if branch.parent is not None else ""
        yield self._name("thread_name", track, f"state {branch.number}{forked}")
        for gen in branch.gens:
            yield from self._gen(track, gen)
        for child in branch.children:
            if first := _times(child):
                # An arrow needs a slice at both ends: the gen before the fork, or the body if there is none.
                before, ready = _times(branch, 0, child.start), first[0].ready
                origin, start = (track, before[-1].ended) if before else (BODY, self._history.trace.ended or self._now)
                yield from self._arrow("fork", origin, min(start, ready), FIRST_BRANCH + child.number, ready)
        for n_items, child in branch.joins:
            joined, after = _times(child), _times(branch, n_items)
            if joined and after:
                ended = joined[-1].ended
                yield from self._arrow("join", FIRST_BRANCH + child.number, ended, track, max(after[0].ready, ended))

    def _gen(self, track: int, gen: GenHistory) -> Iterator[dict[str, Any]]:
        args = {"line": gen.op.line, "ref": gen.op.ref}
        if gen.value is None:
            sent = next((m.at for m in self._history.trace.sent if gen.op in m.ops), self._began)
            if gen.error is not None:
                yield self._instant(track, f"{gen.label} (failed)", sent, args | {"error": f"{gen.error}"})
            else:
                args |= {"state": "not finished"}
                yield self._slice(track, f"{gen.label} (under way)", sent, self._now, args)
            return
        times, usage = gen.value.times, gen.value.usage
        if not times.ended:
            return
        if gen.tokens_per_second:
            args["tokens_per_second"] = round(gen.tokens_per_second, 1)
        counts = {name: getattr(usage, name) for name in usage.__struct_fields__}
        args |= counts | {"computed": usage.prompt - usage.cached, "text": gen.text[:200]}
        yield self._slice(track, gen.label, times.ready, times.ended, args)
        for name, start, end in phases(times):
            yield self._slice(track, name, max(start, times.ready), min(end, times.ended))

    # ---- events of the format --------------------------------------------------------------------------------------

    def _at(self, seconds: float) -> float:
        return round((seconds - self._began) * 1e6, 1)

    def _event(self, ph: str, name: str, track: int, args: Any = None, **fields: Any) -> dict[str, Any]:
        return {"ph": ph, "name": name, "pid": PID, "tid": track, **fields} | ({"args": args} if args else {})

    def _name(self, kind: str, track: int, name: str) -> dict[str, Any]:
        return self._event("M", kind, track, {"name": name})

    def _slice(self, track: int, name: str, start: float, end: float, args: Any = None) -> dict[str, Any]:
        ts = self._at(start)
        return self._event("X", name, track, args, ts=ts, dur=round(self._at(end) - ts, 1))

    def _instant(self, track: int, name: str, at: float, args: Any = None) -> dict[str, Any]:
        return self._event("i", name, track, args, s="t", ts=self._at(at))

    def _arrow(self, name: str, track: int, start: float, other: int, end: float) -> Iterator[dict[str, Any]]:
        arrow = {"name": name, "cat": name, "id": next(self._arrows), "pid": PID}
        yield arrow | {"ph": "s", "tid": track, "ts": self._at(start)}
        yield arrow | {"ph": "f", "bp": "e", "tid": other, "ts": self._at(end)}


def _tracks(spans: Iterable[TimeSpan], kind: str) -> list[list[TimeSpan]]:
    """The spans of one kind on as few tracks as possible, so that no two spans of a track overlap."""
    tracks: list[list[TimeSpan]] = []
    for span in sorted((span for span in spans if span.kind == kind), key=lambda span: span.start):
        free = next((track for track in tracks if track[-1].end <= span.start), None)
        if free is None:
            tracks.append(free := [])
        free.append(span)
    return tracks


def _times(branch: BranchHistory, start: int = 0, end: int | None = None) -> list[wire.Times]:
    """The times of the finished gens among `branch.items[start:end]`."""
    gens = [item.gen for item in branch.items[start:end] if item.gen is not None and item.kind in ("gen", "select")]
    return [gen.value.times for gen in gens if gen.value is not None and gen.value.times.ended]
