"""Timelines: nested slices, paired flow events and the server's times."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import banyan as bn
from banyan.backends.job import Job
from banyan.backends.local import LocalProgram
from banyan.execution.run_trace import TimeSpan
from banyan.runtime.executor.executor import Executor
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire
from banyan.views.history import History
from banyan.views.timeline import FIRST_BRANCH, FIRST_TOOL, FIRST_WAIT, chrome_trace, phases


@bn.function
def program(s: bn.State) -> None:
    s += "Q" + bn.gen("a")
    forks = s.fork(2)
    forks += "R" + bn.gen("b")
    forks.join("concate_and_append")
    s += bn.gen("c")
    s["c"]


def trace_of(state: bn.State, **options: Any) -> list[dict[str, Any]]:
    trace = state.timeline(**options)
    assert_well_formed(trace)
    assert trace["otherData"]["program"] == "program"
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


def slices(events: list[dict[str, Any]], track: int) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["tid"] == track]


def assert_nested(events: list[dict[str, Any]]) -> None:
    """Assert that two slices of one track are nested or disjoint, as the viewer requires."""
    for track in {event["tid"] for event in events}:
        spans = [(event["ts"], event["ts"] + event["dur"]) for event in slices(events, track)]
        for start, end in spans:
            assert 0 <= start <= end
            for other_start, other_end in spans:
                apart = other_end <= start + 0.11 or end <= other_start + 0.11  # times are rounded to 0.1 us
                inside = (start - 0.11 <= other_start and other_end <= end + 0.11) or (
                    other_start - 0.11 <= start and end <= other_end + 0.11
                )
                assert apart or inside


FIELDS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "pid", "tid", "ts", "dur"},
    "i": {"ph", "name", "pid", "tid", "ts", "s"},
    "s": {"ph", "name", "cat", "id", "pid", "tid", "ts"},
    "f": {"ph", "name", "cat", "id", "pid", "tid", "ts", "bp"},
}
"""Required fields of each event type: metadata, complete, instant, flow start and flow end. Only `args` is optional."""


def assert_well_formed(trace: dict[str, Any]) -> None:
    """Assert the fields of the Trace Event Format: a viewer drops invalid events without an error."""
    assert set(trace) == {"displayTimeUnit", "traceEvents", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]
    named_threads = set()
    for event in events:
        assert FIELDS[event["ph"]] <= set(event) <= FIELDS[event["ph"]] | {"args"}
        assert isinstance(event["name"], str)
        assert event["name"]
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            named_threads.add((event["name"], event["tid"]))
        else:
            assert event["ts"] >= 0
            assert event.get("dur", 0.0) >= 0
            assert event.get("s", "t") in ("g", "p", "t")
            assert event.get("bp", "e") == "e", "a flow ends at the enclosing slice"
            assert isinstance(event.get("args", {}), dict)
    assert {("thread_name", event["tid"]) for event in events if event["ph"] != "M"} <= named_threads
    flows = [(event["ph"], event["cat"], event["name"], event["id"]) for event in events if event["ph"] in "sf"]
    assert len(set(flows)) == len(flows)
    assert {flow[1:] for flow in flows if flow[0] == "s"} == {flow[1:] for flow in flows if flow[0] == "f"}
    for event in events:  # a flow that does not begin and end in slices is not drawn
        if event["ph"] in "sf":
            track_slices = slices(events, event["tid"])
            assert any(part["ts"] - 0.11 <= event["ts"] <= part["ts"] + part["dur"] + 0.11 for part in track_slices)
    assert_nested(events)


def test_timeline_shows_slices_flows_and_sends(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    state = program.run(backend=bn.Mock("x", latency=0.02))
    events = trace_of(state, path=path)
    assert json.loads(path.read_text())["traceEvents"] == events
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {
        1: "body",
        FIRST_BRANCH: "state 0",
        FIRST_BRANCH + 1: "state 1, forked from 0",
        FIRST_BRANCH + 2: "state 2, forked from 0",
    }
    assert [event["name"] for event in slices(events, FIRST_BRANCH)][::2] == ["a", "c"]
    assert [event["name"] for event in slices(events, 1)] == ["body", "wait for c"]
    assert slices(events, 1)[1]["args"]["line"].startswith("test_timeline.py:")
    assert slices(events, 1)[0]["dur"] >= 60_000, "three gens in sequence"
    arrows = [event for event in events if event["ph"] in "sf"]
    assert [(a["name"], a["tid"] - FIRST_BRANCH) for a in arrows if a["ph"] == "s"] == [
        ("fork", 0), ("fork", 0), ("join", 1), ("join", 2)
    ]  # fmt: skip
    for arrow_id in {arrow["id"] for arrow in arrows}:
        start, end = [arrow for arrow in arrows if arrow["id"] == arrow_id]
        assert (start["ph"], end["ph"]) == ("s", "f")
        assert start["ts"] <= end["ts"]
    assert [event["name"] for event in events if event["ph"] == "i"] == ["send 9 ops"]


class TimedMock(bn.Mock):
    """Returns values with the given times."""

    def __init__(self, times: wire.Times) -> None:
        super().__init__("x")
        self.times = times

    def program(self, name: str = "") -> Any:
        mock, times = self, self.times

        class Moved(LocalProgram):
            def value(self, program: Executor, ref: int, outcome: GenOutcome) -> None:
                moved = wire.Times(*(mock.began + t if t else 0.0 for t in msgspec.structs.astuple(times)))
                super().value(program, ref, outcome._replace(usage=wire.TokenUsage(9, 4, 21), times=moved))

        return Moved(self, name)

    def start(self, job: Job) -> None:
        self.began = job.ready
        super().start(job)


def test_gen_slice_is_split_into_its_phases() -> None:
    state = bn.function(lambda s: s.__iadd__("Q" + bn.gen("a"))).run(
        backend=TimedMock(wire.Times(0.0001, 0.001, 0.003, 0.010, 0.030))
    )
    trace = state.timeline()
    gen_slices = slices(trace["traceEvents"], FIRST_BRANCH)
    assert [(event["name"], round(event["dur"] / 1000, 1)) for event in gen_slices] == [
        ("a", 29.9), ("encode", 0.9), ("queue", 2.0), ("prefill", 7.0), ("decode", 20.0)
    ]  # fmt: skip
    args = gen_slices[0]["args"]
    assert (args["prompt"], args["cached"], args["computed"], args["generated"]) == (9, 4, 5, 21)
    assert args["tokens_per_second"] == 1000.0
    assert args["line"].startswith("test_timeline.py:")
    assert args["text"] == "x"


@pytest.mark.parametrize(
    ("times", "expected_names"),
    [
        (wire.Times(), []),
        (wire.Times(1, 1, 1, 0, 2), ["prefill"]),
        (wire.Times(1, 1, 0, 0, 2), ["decode"]),
        (wire.Times(1, 2, 0, 3, 4), ["encode", "prefill", "decode"]),
        (wire.Times(1, 2, 3, 3, 3), ["encode", "queue"]),
    ],
)
def test_phases_are_those_with_known_times(times: wire.Times, expected_names: list[str]) -> None:
    assert [what for what, _, _ in phases(times)] == expected_names


def test_failed_and_running_gens_are_shown() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks[0].__iadd__(bn.gen("slow"))
        forks[1].__iadd__(bn.gen("bad"))
        s["forks"] = forks

    mock = bn.Mock({"slow": "x", "bad": ValueError("no")}, latency=lambda call: 60 if call.name == "slow" else 0)
    state = program.run(backend=mock)
    trace = chrome_trace(History(state._record), now=state._record.trace.began + 1)
    events = trace["traceEvents"]
    (slow,) = slices(events, FIRST_BRANCH + 1)
    assert slow["name"] == "slow (under way)"
    assert 0.5e6 < slow["dur"] < 1e6
    (bad,) = [event for event in events if event["ph"] == "i" and event["tid"] == FIRST_BRANCH + 2]
    assert bad["name"] == "bad (failed)"
    assert "ValueError: no" in bad["args"]["error"]
    state.cancel()


def test_parallel_tools_have_separate_tracks() -> None:
    state = program.run(backend=bn.Mock("x"))
    began = state._record.trace.began
    spans = [("a", 0.1, 0.5, ""), ("b", 0.2, 0.3, "no"), ("c", 0.35, 0.4, ""), ("d", 0.5, 0.6, "")]
    state._record.trace.spans += [
        TimeSpan("tool", name, began + start, began + end, 0, "x.py:1", error) for name, start, end, error in spans
    ]
    events = trace_of(state)
    tools = [event for event in events if event["tid"] >= FIRST_TOOL and event["ph"] == "X"]
    tracks = {event["name"]: event["tid"] - FIRST_TOOL for event in tools}
    assert tracks == {"a": 0, "b": 1, "c": 1, "d": 0}
    (failed,) = [event for event in events if event.get("args", {}).get("error") == "no"]
    assert failed["name"] == "b"


def test_parallel_waits_have_separate_tracks() -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> None:
        branches = s.fork(3)
        branches += lambda i: "wait " * i + bn.gen("a")
        await asyncio.gather(*(branch.value("a") for branch in branches))

    async def main() -> dict[str, Any]:
        backend = bn.Mock("x", latency=lambda call: 0.02 + 0.02 * call.prompt.count("wait"))
        return (await program.run_async(backend=backend)).timeline()

    trace = asyncio.run(main())
    assert_well_formed(trace)
    waits = [event for event in trace["traceEvents"] if event["name"].startswith("wait for")]
    assert [event["tid"] for event in waits] == [1, FIRST_WAIT + 1, FIRST_WAIT + 2]


def test_unwritable_path_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(bn.ConfigError, match="cannot be written"):
        program.run(backend=bn.Mock("x")).timeline(tmp_path / "no" / "folder")
