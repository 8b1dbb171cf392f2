"""A run as a trace that https://ui.perfetto.dev and chrome://tracing open (the Trace Event Format, as JSON).

One track for the body of the program, one for each branch, and as many for waits and tools as there were at once (two
slices of one track lie one inside the other, or apart). On a branch, each gen
is a slice, and in it what it waited for: its text was encoded, it stood in the queue, its prompt was computed, tokens
came. Arrows lead from forks to branches and from branches to joins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from banyan.execution.run_trace import TimeSpan
from banyan.runtime.protocol import wire
from banyan.views.history import BranchHistory, GenHistory, History

PID = 1
BODY = 1
FIRST_BRANCH = 10
FIRST_TOOL = 1_000_000
FIRST_WAIT = 2_000_000
"""Of a body that waits for several values at once, as tasks and threads do: all tracks but the first, which is BODY."""


def chrome_trace(history: History, now: float | None = None) -> dict[str, Any]:
    """The trace. Times in it are microseconds since the run began; what is still under way ends at `now`."""
    writer = _TraceWriter(history, time.monotonic() if now is None else now)
    return {
        "displayTimeUnit": "ms",
        "traceEvents": list(writer.events()),
        "otherData": {"program": history.name, "model": history.model},
    }


def phases(times: wire.Times) -> list[tuple[str, float, float]]:
    """(what, start, end) of what a gen went through, as far as it is known: encode, queue, prefill, decode."""
    if not times.started and not times.first:  # of an API: nobody can tell one from the other
        return [("decode", times.ready, times.ended)] if times.ended > times.ready > 0 else []
    points = [
        ("encode", times.ready, times.sent),
        ("queue", times.sent, times.started),
        ("prefill", times.started or times.sent, times.first or times.ended),
        ("decode", times.first, times.ended),
    ]
    return [(what, start, end) for what, start, end in points if start and end > start]


class _TraceWriter:
    def __init__(self, history: History, now: float) -> None:
        self._history, self._now = history, now
        self._began = history.trace.began
        self._n_arrows = 0

    def _at(self, seconds: float) -> float:
        return round((seconds - self._began) * 1e6, 1)

    def events(self) -> Iterator[dict[str, Any]]:
        trace = self._history.trace
        yield self._name("process_name", 0, f"program {self._history.name} on {self._history.model}")
        yield self._name("thread_name", BODY, "body")
        yield self._slice(BODY, "body", self._began, trace.ended or self._now)
        for k, spans in enumerate(_laid_out(trace.spans, "wait")):
            track = FIRST_WAIT + k if k else BODY
            if k:
                yield self._name("thread_name", track, f"body, wait {k + 1}")
            for span in spans:
                yield self._slice(track, f"wait for {span.name}", span.start, span.end, {"line": span.line})
        for message in trace.sent:
            yield self._instant(BODY, f"send {len(message.ops)} ops", message.at)
        for k, spans in enumerate(_laid_out(trace.spans, "tool")):
            yield self._name("thread_name", FIRST_TOOL + k, f"tools {k + 1}" if k else "tools")
            for span in spans:
                what = {"state": span.state, "line": span.line} | ({"error": span.error} if span.error else {})
                yield self._slice(FIRST_TOOL + k, span.name, span.start, span.end, what)
        for branch in self._history.branches:
            yield from self._branch(branch)

    def _branch(self, branch: BranchHistory) -> Iterator[dict[str, Any]]:
        track = FIRST_BRANCH + branch.number
        forked = f", forked from {branch.parent.number}" if branch.parent is not None else ""
        yield self._name("thread_name", track, f"state {branch.number}{forked}")
        for gen in branch.gens:
            yield from self._gen(track, gen)
        for child in branch.children:
            if (first := _first(child)) is None:
                continue
            # From the gen before the fork; from the body, where there is none: an arrow needs a slice at both ends.
            ended = _last_before(branch, child.start)
            origin, begin = (track, ended) if ended is not None else (BODY, self._history.trace.ended or self._now)
            yield from self._arrow("fork", origin, min(begin, first.ready), FIRST_BRANCH + child.number, first.ready)
        for at, child in branch.joins:
            next_one, ended = _first(branch, at), _last_before(child, len(child.items))
            if next_one is not None and ended is not None:
                start = max(next_one.ready, ended)
                yield from self._arrow("join", FIRST_BRANCH + child.number, ended, track, start)

    def _gen(self, track: int, gen: GenHistory) -> Iterator[dict[str, Any]]:
        what = {"line": gen.op.line, "ref": gen.op.ref}
        if gen.value is None:
            sent = next((m.at for m in self._history.trace.sent if gen.op in m.ops), self._began)
            state = {"error": f"{gen.error}"} if gen.error is not None else {"state": "not finished"}
            name = f"{gen.label} ({'failed' if gen.error is not None else 'under way'})"
            if gen.error is not None:
                yield self._instant(track, name, sent, what | state)
            else:
                yield self._slice(track, name, sent, self._now, what | state)
            return
        times, usage = gen.value.times, gen.value.usage
        start, end = times.ready, times.ended
        if not end:
            return
        if gen.tokens_per_second:
            what["tokens_per_second"] = round(gen.tokens_per_second, 1)
        counts = {name: getattr(usage, name) for name in usage.__struct_fields__}
        what |= counts | {"computed": usage.prompt - usage.cached, "text": gen.text[:200]}
        yield self._slice(track, gen.label, start, end, what)
        for name, begin, finish in phases(times):
            yield self._slice(track, name, max(begin, start), min(finish, end))

    # ---- events of the format --------------------------------------------------------------------------------------

    def _name(self, kind: str, track: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": PID, "tid": track, "args": {"name": name}}

    def _slice(self, track: int, name: str, start: float, end: float, what: Any = None) -> dict[str, Any]:
        begin = self._at(start)
        event = {"ph": "X", "name": name, "pid": PID, "tid": track, "ts": begin, "dur": round(self._at(end) - begin, 1)}
        return event | ({"args": what} if what else {})

    def _instant(self, track: int, name: str, at: float, what: Any = None) -> dict[str, Any]:
        event = {"ph": "i", "s": "t", "name": name, "pid": PID, "tid": track, "ts": self._at(at)}
        return event | ({"args": what} if what else {})

    def _arrow(self, name: str, track: int, start: float, other: int, end: float) -> Iterator[dict[str, Any]]:
        self._n_arrows += 1
        arrow = {"name": name, "cat": name, "id": self._n_arrows, "pid": PID}
        yield arrow | {"ph": "s", "tid": track, "ts": self._at(start)}
        yield arrow | {"ph": "f", "bp": "e", "tid": other, "ts": self._at(end)}


def _laid_out(spans: Iterable[TimeSpan], kind: str) -> list[list[TimeSpan]]:
    """Those of one kind on as few tracks as it takes for none to lie over another."""
    tracks: list[list[TimeSpan]] = []
    for span in sorted((span for span in spans if span.kind == kind), key=lambda span: span.start):
        free = next((track for track in tracks if track[-1].end <= span.start), None)
        if free is None:
            tracks.append(free := [])
        free.append(span)
    return tracks


def _times(branch: BranchHistory, start: int = 0, end: int | None = None) -> list[wire.Times]:
    """Those of the gens among its own items start : end, as far as they are known."""
    gens = [item.gen for item in branch.items[start:end] if item.gen is not None and item.kind in ("gen", "select")]
    return [gen.value.times for gen in gens if gen.value is not None and gen.value.times.ended]


def _first(branch: BranchHistory, start: int = 0) -> wire.Times | None:
    return next(iter(_times(branch, start)), None)


def _last_before(branch: BranchHistory, n_items: int) -> float | None:
    """When the last gen among the branch's first `n_items` items ended."""
    known = _times(branch, 0, n_items)
    return known[-1].ended if known else None
