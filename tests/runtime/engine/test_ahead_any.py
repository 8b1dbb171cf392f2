"""Any mix of requests gets the same outputs from a lookahead loop as each request gets alone from a synchronous one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from banyan.runtime.engine.guides import Guided
from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.protocol.wire import Abort, Ask, ConstraintSpec, Run, Sampling
from forms import examples

CONSTRAINT = ConstraintSpec("regex", "a stand-in for the pattern")
ROOTS = ([1, 2, 3], [5] * 20, [*range(8, 40)])
TOKENS = st.integers(0, 49)


class Request(NamedTuple):
    """at: launched steps when the request arrives. until: further steps until it is aborted; 0: never."""

    root: int
    n_root: int
    tail: list[int]
    sampling: Sampling
    stops: list[int]
    pattern: list[int | None] | None
    score_from: int
    priority: int
    at: int
    until: int

    def run(self, fake: ModuleType, rid: int) -> Run:
        ids = [*ROOTS[self.root][: self.n_root], *self.tail]
        more: dict[str, Any] = {"score_from": min(self.score_from, len(ids))} if self.score_from else {}
        more |= {"stop_ids": fake.int32(self.stops), "order": (rid % 3, rid), "priority": self.priority}
        run: Run = fake.run(rid, ids, self.sampling, seed=rid, **more)
        return run


PATTERNS = st.lists(st.one_of(st.none(), TOKENS), min_size=1, max_size=12)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    kind = draw(st.sampled_from(["greedy", "greedy", "warm", "edits", "logprobs", "constrained"]))
    options: dict[str, Any] = {
        "greedy": {"temperature": 0.0},
        "warm": {"temperature": 0.9, "top_k": 8},
        "edits": {"temperature": 0.5, "presence_penalty": 1.0, "min_tokens": 4},
        "logprobs": {"temperature": 0.0, "logprobs": True, "top_logprobs": 2},
        "constrained": {"temperature": 0.0, "constraint": CONSTRAINT},
    }[kind]
    return Request(
        root=draw(st.integers(0, 2)),
        n_root=draw(st.integers(0, 32)),
        tail=draw(st.lists(TOKENS, min_size=1, max_size=6)),
        sampling=Sampling(max_tokens=draw(st.integers(0, 24)), **options),
        stops=draw(st.lists(TOKENS, max_size=4)),
        pattern=draw(PATTERNS) if kind == "constrained" else None,
        score_from=0 if kind == "constrained" else draw(st.sampled_from([0, 0, 0, 2])),
        priority=draw(st.sampled_from([0, 0, 0, 1])),
        at=draw(st.integers(0, 30)),
        until=draw(st.sampled_from([0, 0, 0, *range(1, 40, 3)])),
    )


def make_engine(fake: ModuleType, runs: dict[int, Request], **options: Any) -> Any:
    e = fake.engine(context=64, **options)
    e.guides.submit = lambda run: e.guides._ready.append(Guided(run, fake.Pattern(runs[run.rid].pattern or ()), ()))
    return e


def run_alone(fake: ModuleType, runs: dict[int, Request]) -> dict[int, Any]:
    out: dict[int, Any] = {}
    for rid, request in runs.items():
        e = make_engine(fake, runs, cache=False)
        e.take(request.run(fake, rid))
        fake.step(e, out)  # the guide is ready after this step
        fake.drive(e, [], out)
    return out


def add_drafts(fake: ModuleType, e: Any, kind: str) -> None:
    """Use a drafter that is mostly wrong."""

    def script(request: Any, n: int) -> Sequence[int]:
        if request.n_total % 3:
            return ()
        return array("i", [*fake.greedy(list(request.ids), min(n, request.n_total % 4)), 11][:n])

    if kind == "scripted":
        fake.use_drafts(e, script)


@examples(
    8,
    60,
    given(
        sample=st.lists(requests(), min_size=1, max_size=9),
        page=st.sampled_from([1, 4, 16]),
        n_spare=st.integers(0, 100),
        step_tokens=st.sampled_from([6, 20, 200]),
        max_running=st.sampled_from([2, 6]),
        cache=st.booleans(),
        foresight=st.sampled_from([0, 1]),
        speculate=st.sampled_from(["off", "grammar", "ngram,tree", "scripted"]),
        is_lazy=st.booleans(),
    ),
    suppress_health_check=list(HealthCheck),
)
def test_any_mix_matches_each_request_alone(
    fake: ModuleType, late: ModuleType, sample: list[Request], page: int, n_spare: int, step_tokens: int,
    max_running: int, cache: bool, foresight: int, speculate: str, is_lazy: bool,
) -> None:  # fmt: skip
    runs = dict(enumerate(sample))
    expected = run_alone(fake, runs)
    n_pages = -(-(64 + n_spare) // page)
    options = {} if speculate == "scripted" else {"speculate": speculate}
    e = make_engine(fake, runs, page=page, n_pages=n_pages, step_tokens=step_tokens, max_running=max_running,
                    cache=cache, **options)  # fmt: skip
    add_drafts(fake, e, speculate)
    commands: dict[int, list[Any]] = {}
    for rid, request in runs.items():
        commands.setdefault(request.at, []).append(request.run(fake, rid))
        if request.until:
            commands.setdefault(request.at + request.until, []).append(Abort(rid))
    commands.setdefault(17, []).append(Ask(1, "check"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "FORESIGHT", foresight)
        box = late.play(e, commands, is_lazy)
    assert all(answer.ok for answer in box.others[1:])
    assert not e.drafting._histories
    for rid, out in expected.items():
        finish, output = box.finished.get(rid), box.outputs.get(rid, [])
        if finish is None:
            (failed,) = (failed for failed in box.failed if failed.program == rid)
            assert out.failed is not None
            assert (failed.code, failed.message) == (out.failed.code, out.failed.message)
            continue
        assert output == out.ids[: len(output)]
        assert box.logprobs.get(rid, []) == out.logprobs[: len(output)]
        if finish.reason == "abort":
            assert runs[rid].until
            continue
        assert len(output) == len(out.ids)
        assert (finish.reason, finish.stop_id) == (out.finish.reason, out.finish.stop_id)
        assert finish.scores == out.finish.scores
    assert e.cache.n_available == n_pages
    assert e.scheduler.counts["steps"] >= e.scheduler.counts["steps_ahead"]
