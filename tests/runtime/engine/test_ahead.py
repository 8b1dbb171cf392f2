"""Lookahead: the loop launches the next step before it reads the tokens of the step that the device is computing.

The device is that of `late.py`, which computes a result only when the loop waits for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.engine.guides import Guided
from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.protocol.flight_record import LOOP
from banyan.runtime.protocol.wire import Abort, Ask, ConstraintSpec, EnginePong, Ping, Sampling
from corruption import corrupt_node_key, lease_a_page_twice
from forms import in_short

LONG = Sampling(temperature=0.0, max_tokens=40)


def n_ahead(e: Any) -> int:
    counts = e.scheduler.counts
    return int(counts["steps_ahead"])


# ---- lookahead steps -----------------------------------------------------------------------------------------------


def test_next_step_is_launched_before_current_tokens_are_read(fake: ModuleType, late: ModuleType) -> None:
    prompts = {rid: [rid + 1, 7, rid + 2] for rid in range(4)}
    e = fake.engine(page=4)
    box = late.play(e, {0: [fake.run(rid, prompt, LONG) for rid, prompt in prompts.items()]})
    assert box.outputs == {rid: fake.greedy(prompt, 40) for rid, prompt in prompts.items()}
    log, n = e.model.log, 40
    assert e.scheduler.counts["steps"] == n, "length limits are known in advance: no step is wasted"
    assert n_ahead(e) == n - 1
    for step in range(n - 1):
        at = [log.index(late.Event(what, step)) for what in ("launch", "draw", "read")]
        assert at == sorted(at)
        assert at[1] < log.index(late.Event("launch", step + 1)) < at[2], "launched once its input is queued"
        assert at[2] < log.index(late.Event("draw", step + 1)), "penalties and masks need the tokens on the host"


def test_synchronous_device_runs_no_steps_ahead(fake: ModuleType, late: ModuleType) -> None:
    e = fake.engine()
    box = late.loop(e, {0: [fake.run(0, [1, 2, 3])]})
    assert box.outputs == {0: fake.greedy([1, 2, 3], 8)}
    assert box.sent_at == list(range(1, 9)), "each report is sent before the next step is launched"
    assert n_ahead(e) == 0


@pytest.mark.parametrize("is_lazy", in_short([True], [True, False]), ids=["lazy", "eager"])
def test_prompts_are_admitted_and_chunked_in_lookahead_steps(fake: ModuleType, late: ModuleType, is_lazy: bool) -> None:
    prompts = {rid: [rid % 3, *range(rid + 1, rid + 30)] for rid in range(12)}
    e = fake.engine(page=4, step_tokens=16, max_running=5)
    commands: dict[int, list[Any]] = {2 * rid: [fake.run(rid, prompt, LONG)] for rid, prompt in prompts.items()}
    box = late.play(e, commands, is_lazy)
    assert box.outputs == {rid: fake.greedy(prompt, 40) for rid, prompt in prompts.items()}
    assert n_ahead(e) > 0.9 * e.scheduler.counts["steps"]


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
@pytest.mark.parametrize("page", [1, 4])
def test_surplus_row_after_a_stop_is_harmless(fake: ModuleType, late: ModuleType, page: int, is_lazy: bool) -> None:
    """Requests stop at every offset in a page, and later prompts continue from there in the same page."""
    texts = {rid: fake.greedy([rid, 9], 40) for rid in range(8)}
    e = fake.engine(page=page, n_pages=120 // page)
    commands: dict[int, list[Any]] = {0: [fake.run(99, [49], Sampling(temperature=0.0, max_tokens=45))]}
    outputs = {99: fake.greedy([49], 45)}
    for rid, text in texts.items():
        n = next(n for n in range(4 + rid, 40) if text[n] not in text[:n])
        outputs[rid] = text[:n]
        commands[2 * rid] = [*commands.get(2 * rid, ()), fake.run(rid, [rid, 9], LONG, stop_ids=fake.int32([text[n]]))]
        for k, tail in ((10, [3]), (20, [3, 4, 5])):
            prompt = [rid, 9, *text[:n], *tail]
            outputs[rid + k] = fake.greedy(prompt, 8)
            commands[2 * rid + n + k // 10] = [*commands.get(2 * rid + n + k // 10, ()), fake.run(rid + k, prompt)]
    box = late.play(e, commands, is_lazy)
    assert box.outputs == outputs
    assert {box.finished[rid].reason for rid in texts} == {"stop"}
    assert n_ahead(e) > 0.8 * e.scheduler.counts["steps"]
    assert e.cache.n_available == 120 // page
    counted = e.scheduler.counts["computed_tokens"]
    assert counted <= sum(len(prompt) for prompt in outputs.values()) + 16 * 8 + 60, "surplus rows are not counted"


def test_nan_logits_fail_only_their_request_while_a_step_is_ahead(fake: ModuleType, late: ModuleType) -> None:
    e = fake.engine(page=4)
    forward = e.model.model.forward

    def broken(*args: Any) -> Any:
        logits = forward(*args)
        if len(e.model.model.steps) == 3:
            logits[1] = float("nan")
        return logits

    e.model.model.forward = broken
    box = late.play(e, {0: [fake.run(rid, [rid, 1]) for rid in range(3)]})
    assert [(failed.program, "NaN" in failed.message) for failed in box.failed] == [(1, True)]
    assert {rid: box.outputs[rid] for rid in (0, 2)} == {rid: fake.greedy([rid, 1], 8) for rid in (0, 2)}
    assert n_ahead(e) == 7


KINDS = [
    Sampling(max_tokens=20, temperature=0.8, top_p=0.9),
    Sampling(max_tokens=20, frequency_penalty=1.5, repetition_penalty=1.2),
    Sampling(max_tokens=20, temperature=0.0, logprobs=True, top_logprobs=3),
    Sampling(max_tokens=20, min_tokens=6, logit_bias={3: 2.0}, logprobs=True),
]


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
def test_lookahead_matches_synchronous_samples_penalties_and_logprobs(
    fake: ModuleType, late: ModuleType, is_lazy: bool
) -> None:
    runs = [
        fake.run(rid, [rid, 5, 6], KINDS[rid % 4], seed=rid, stop_ids=fake.int32([rid, 40, 41])) for rid in range(12)
    ]
    expected = fake.drive(fake.engine(page=4), runs)
    e = fake.engine(page=4)
    box = late.play(e, {0: runs}, is_lazy)
    assert {rid: box.outputs.get(rid, []) for rid in expected} == {rid: output.ids for rid, output in expected.items()}
    assert {rid: box.logprobs.get(rid, []) for rid in expected} == {rid: out.logprobs for rid, out in expected.items()}
    assert {rid: f.reason for rid, f in box.finished.items()} == {
        rid: out.finish.reason for rid, out in expected.items()
    }
    assert n_ahead(e) >= e.scheduler.counts["steps"] - 1


# ---- steps that cannot be ahead ------------------------------------------------------------------------------------


def test_step_after_a_guided_draw_waits_for_its_token(fake: ModuleType, late: ModuleType) -> None:
    """Forced tokens are part of the next step. A constrained request delays no step during its prefill."""
    e = fake.engine(page=4, step_tokens=8)
    e.guides.submit = lambda run: e.guides._ready.append(Guided(run, fake.Pattern([7, 8, None, 9, None, None, 5]), ()))
    constrained = Sampling(temperature=0.0, max_tokens=20, constraint=ConstraintSpec("regex", "x"))
    commands: dict[int, list[Any]] = {0: [fake.run(0, [1, 2], LONG)], 5: [fake.run(1, range(30), constrained)]}
    box = late.play(e, commands)
    synchronous = fake.engine()
    synchronous.scheduler.take(fake.run(1, range(30), constrained), fake.Pattern([7, 8, None, 9, None, None, 5]))
    assert box.outputs == {0: fake.greedy([1, 2], 40), 1: fake.drive(synchronous, [])[1].ids}
    assert e.scheduler.counts["forced_tokens"] == 4
    n_waited = e.scheduler.counts["steps"] - n_ahead(e) - 1
    assert 2 <= n_waited <= 5, "the steps after its four draws"


def test_lookahead_matches_synchronous_loop_with_drafts(fake: ModuleType, late: ModuleType) -> None:
    prompts = {rid: [rid, 3] for rid in range(3)}

    def script(request: Any, n: int) -> Sequence[int]:
        return array("i", fake.greedy(list(request.ids), min(n, 4)))

    runs = [fake.run(rid, prompt, LONG) for rid, prompt in prompts.items()]
    synchronous, e = fake.engine_with_drafts(script, page=4), fake.engine_with_drafts(script, page=4)
    assert {rid: out.ids for rid, out in fake.drive(synchronous, runs).items()} == late.play(e, {0: runs}).outputs
    assert e.scheduler.counts["steps"] == synchronous.scheduler.counts["steps"]
    assert e.drafting.stats() == synchronous.drafting.stats()
    assert n_ahead(e) == 0


def test_step_after_a_draft_is_never_ahead(fake: ModuleType, late: ModuleType) -> None:
    """The accepted length is unknown until then, even if the drafter reports that the request can be skipped."""

    def script(request: Any, n: int) -> Sequence[int]:
        return array("i", [*fake.greedy(list(request.ids), 2), 11][: min(n, 3)])

    e = fake.engine_with_drafts(script, page=4)
    e.drafting.can_skip = lambda request: True
    box = late.play(e, {rid: [fake.run(rid, [rid, 3], LONG)] for rid in range(3)})
    assert box.outputs == {rid: fake.greedy([rid, 3], 40) for rid in range(3)}
    assert e.drafting.stats()["accepted_first"] > 40


def test_silent_drafter_is_asked_at_intervals(fake: ModuleType, late: ModuleType) -> None:
    e = fake.engine(page=4, n_pages=400, speculate="ngram")
    asked: list[tuple[int, int]] = []
    (drafter,) = e.drafting.drafters
    drafter.propose = lambda request, n: asked.append((e.scheduler.counts["steps"], request.rid)) or ()
    sampling = Sampling(temperature=0.0, max_tokens=300)
    prompts = {rid: [rid, 3] for rid in range(4)}
    commands: dict[int, list[Any]] = {3 * rid: [fake.run(rid, prompt, sampling)] for rid, prompt in prompts.items()}
    box = late.play(e, commands, check=False)
    assert box.outputs == {rid: fake.greedy(prompt, 300) for rid, prompt in prompts.items()}
    assert n_ahead(e) > 0.8 * e.scheduler.counts["steps"]
    for rid in prompts:
        at = [step for step, asked_rid in asked if asked_rid == rid]
        assert len(at) > 8
        assert max(b - a for a, b in pairwise(at)) < 80
    late_steps = [step for step, _ in asked if step > 150]
    assert len(set(late_steps)) * 3 < len(late_steps), "requests are asked in the same steps"


def test_step_waits_for_tokens_before_retracting_for_pages(
    fake: ModuleType, late: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request stops in the step that fills all pages, so no retraction is needed."""
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    first, second = [1, 2, 3, 4], [5, 6, 7, 8]
    e = fake.engine(page=4, n_pages=4)
    s = Sampling(temperature=0.0, max_tokens=12)
    stop = fake.greedy(first, 5)[-1]
    box = late.play(e, {0: [fake.run(0, first, s, stop_ids=fake.int32([stop])), fake.run(1, second, s)]})
    assert box.outputs == {0: fake.greedy(first, 4), 1: fake.greedy(second, 12)}
    assert e.scheduler.counts["retractions"] == 0
    assert e.scheduler.counts["steps"] - n_ahead(e) == 2, "the first step and the one that waited"


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
def test_retracted_requests_keep_their_outputs(
    fake: ModuleType, late: ModuleType, monkeypatch: pytest.MonkeyPatch, is_lazy: bool
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    prompts = {rid: [rid, *range(9)] for rid in range(6)}
    e = fake.engine(page=4, n_pages=24)
    box = late.play(e, {0: [fake.run(rid, prompt, LONG) for rid, prompt in prompts.items()]}, is_lazy)
    assert box.outputs == {rid: fake.greedy(prompt, 40) for rid, prompt in prompts.items()}
    assert e.scheduler.counts["retractions"] > 0
    assert n_ahead(e) > 0.5 * e.scheduler.counts["steps"]


@pytest.mark.parametrize("is_lazy", in_short([False], [True, False]), ids=["lazy", "eager"])
def test_request_preempted_by_priority_can_resume_in_the_same_step(
    fake: ModuleType, late: ModuleType, monkeypatch: pytest.MonkeyPatch, is_lazy: bool
) -> None:
    """It resumes on pages that the previous step no longer writes to, from the cached prefix."""
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    n_retracted = 0
    for n in range(12, 26):
        e = fake.engine(page=1, n_pages=32, schedule="fcfs")
        short = Sampling(temperature=0.0, max_tokens=12)
        high = fake.run(1, range(20, 20 + n), Sampling(temperature=0.0, max_tokens=2), priority=1)
        box = late.play(e, {0: [fake.run(0, [1, 2, 3, 4], short)], 5: [high]}, is_lazy)
        assert box.outputs == {0: fake.greedy([1, 2, 3, 4], 12), 1: fake.greedy(range(20, 20 + n), 2)}
        assert e.cache.n_available == 32
        n_retracted += e.scheduler.counts["retractions"]
    assert n_retracted > 0


def test_request_preempted_in_its_first_step_leaves_the_usual_wait_finite(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts again in the plan that preempted it, where it needs no page for the token that is in flight."""
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    e = fake.engine(page=1, n_pages=32, schedule="fcfs")
    e.take(fake.run(0, range(20), order=(0,)))
    first = e.scheduler.plan(0.0)
    e.take(fake.run(1, range(20, 32), order=(1,), priority=1))
    ahead = e.scheduler.plan_ahead(first, 0.1)
    assert [work.request.rid for work in ahead.works] == [1, 0]
    assert e.scheduler.counts["retractions"] == 1
    assert isfinite(e.scheduler.waiting._usual_wait)


def test_lookahead_matches_synchronous_scores(fake: ModuleType, late: ModuleType) -> None:
    runs = [fake.run(rid, [rid, *range(20)], score_from=3 if rid % 2 else -1) for rid in range(4)]
    expected = fake.drive(fake.engine(step_tokens=16), runs)
    box = late.play(fake.engine(step_tokens=16), {0: runs})
    assert {rid: (box.outputs[rid], box.finished[rid].scores) for rid in expected} == {
        rid: (out.ids, out.finish.scores) for rid, out in expected.items()
    }


def test_host_tier_moves_pages_between_lookahead_steps(fake: ModuleType, late: ModuleType) -> None:
    prompts = [[k, *range(k, k + 20)] for k in range(8)]
    e = fake.engine(page=4, n_pages=16, n_host=64)
    commands = {12 * i: [fake.run(i, prompts[i % 8])] for i in range(24)}
    box = late.play(e, commands)
    assert box.outputs == {i: fake.greedy(prompts[i % 8], 8) for i in range(24)}
    assert e.cache.stats().n_host_hit_tokens > 100
    assert n_ahead(e) > 0


# ---- commands and reports ------------------------------------------------------------------------------------------


def test_commands_are_read_and_reports_sent_during_a_step(fake: ModuleType, late: ModuleType) -> None:
    prompts = {rid: [1 + rid, *range(rid % 5 + 1)] for rid in range(12)}
    commands: dict[int, list[Any]] = {rid: [fake.run(rid, prompt), Ping()] for rid, prompt in prompts.items()}
    box = late.play(fake.engine(n_pages=40, page=4, max_running=5), commands)
    assert box.outputs == {rid: fake.greedy(prompt, 8) for rid, prompt in prompts.items()}
    assert not box.failed
    assert sum(isinstance(other, EnginePong) for other in box.others) == 12
    assert box.sent_at[0] == 3, "the first report is sent once steps two and three are launched"
    assert box.sent_at == sorted(box.sent_at)


def test_last_report_is_sent_without_another_step(fake: ModuleType, late: ModuleType) -> None:
    text = fake.greedy([1, 2], 40)
    n = next(n for n in range(4, 40) if text[n] not in text[:n])
    e = fake.engine()
    box = late.play(e, {0: [fake.run(0, [1, 2], LONG, stop_ids=fake.int32([text[n]]))], 60: [fake.run(1, [5])]})
    assert box.outputs == {0: text[:n], 1: fake.greedy([5], 8)}
    read_at = e.model.log.index(late.Event("read", n))
    assert late.Event("launch", n + 1) in e.model.log[:read_at], "the step with the surplus row"
    assert box.sent_at[n - 1 :][0] <= n + 2, "the report is not delayed until the next request"


def test_aborted_request_keeps_its_pages_until_the_step_completes(fake: ModuleType, late: ModuleType) -> None:
    """The pool is so small that a page freed too early would be written by two requests."""
    for is_lazy in (True, False):
        e = fake.engine(n_pages=8, page=4, max_running=4, context=32)
        commands: dict[int, list[Any]] = {
            0: [fake.run(rid, [rid + 1] * 5) for rid in range(3)],
            2: [Abort(0), Ask(7, "check"), fake.run(3, [9, 9, 9])],
            3: [Abort(2), Abort(77), fake.run(4, [8] * 6)],
            5: [Ask(8, "flush"), Abort(3)],
        }
        box = late.play(e, commands, is_lazy)
        reasons = {rid: finish.reason for rid, finish in box.finished.items()}
        assert [reasons[rid] for rid in range(5)] == ["abort", "length", "abort", "abort", "length"]
        assert box.outputs[1] == fake.greedy([2] * 5, 8)
        assert box.outputs[4] == fake.greedy([8] * 6, 8)
        assert [other.ok for other in box.others[1:]] == [True, True]
        assert e.cache.n_available == 8


def test_request_aborted_in_its_last_step_finishes_once(fake: ModuleType, late: ModuleType) -> None:
    """The abort arrives while the last two steps are in flight and is handled after the first of them."""
    box = late.play(fake.engine(), {0: [fake.run(0, [1, 2])], 8: [Abort(0), Ask(1, "check")]})
    assert box.finished[0].reason == "abort"
    assert box.outputs == {0: fake.greedy([1, 2], 7)}
    assert box.others[1].ok


@pytest.mark.parametrize("corrupt", [corrupt_node_key, lease_a_page_twice])
def test_corrupted_cache_is_repaired_while_a_step_is_in_flight(
    fake: ModuleType, late: ModuleType, capsys: pytest.CaptureFixture[str], corrupt: Any
) -> None:
    """A restarted request may run on other pages while its previous step is still computed."""
    e = fake.engine(page=4)
    answer = e.answer

    def answer_after_corruption(ask: Any) -> Any:
        if ask.what == "check":
            corrupt(e)
        return answer(ask)

    e.answer = answer_after_corruption
    prompts = {rid: [rid, *range(9)] for rid in range(3)}
    runs = [fake.run(rid, prompt, LONG) for rid, prompt in prompts.items()]
    box = late.play(e, {0: runs, 9: [Ask(1, "check")]})
    assert box.outputs == {rid: fake.greedy(prompt, 40) for rid, prompt in prompts.items()}
    assert e.scheduler.counts["retractions"] > 0
    assert "did not balance" in capsys.readouterr().err
    assert n_ahead(e) > 30


def test_step_cost_is_measured_from_the_end_of_the_previous_step(fake: ModuleType, late: ModuleType) -> None:
    """The clock returns the number of steps that the device has computed."""
    e = fake.engine(page=4, step_tokens=8, speculate="ngram")
    e.drafting.can_skip = lambda request: True
    e.stopwatch = e.clock = lambda: float(len(e.model.model.steps))
    costs: list[tuple[int, int, float]] = []
    step_times: list[tuple[float, int]] = []
    e.drafting.note = lambda plan, n_rows, seconds: costs.append((len(plan.works), n_rows, seconds))
    e.scheduler.step_time.note = lambda *noted: step_times.append(noted)
    late.play(e, {0: [fake.run(0, range(20))], 4: [fake.run(1, range(30, 45))]})
    rows = [(len(step), sum(step)) for step in e.model.model.steps]
    assert costs == [(n, n_rows, 1.0) for n, n_rows in rows]
    assert step_times == [(step, n_rows) for step, (_, n_rows) in enumerate(rows)]


# ---- failures ------------------------------------------------------------------------------------------------------


def fail_forward(e: Any, at: int) -> None:
    """Make the `at`-th forward, counted from 1, fail on the device."""
    forward, n = e.model.model.forward, [0]

    def fails_once(*args: Any) -> Any:
        n[0] += 1
        logits = forward(*args)
        if n[0] == at:
            raise RuntimeError("a fault on the device")
        return logits

    e.model.model.forward = fails_once


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
def test_device_failure_fails_only_the_requests_of_its_step(
    fake: ModuleType, late: ModuleType, capsys: pytest.CaptureFixture[str], is_lazy: bool
) -> None:
    """Requests that are first planned in the next step or later succeed."""
    e = fake.engine(page=4, n_pages=40)
    fail_forward(e, 3)
    runs = {0: [fake.run(0, [1, 2]), fake.run(4, [2, 2])], 3: [fake.run(1, [3])], 12: [fake.run(2, [1, 2])]}
    box = late.play(e, runs, is_lazy)
    assert sorted(failed.program for failed in box.failed) == [0, 4]
    assert (box.outputs[1], box.outputs[2]) == (fake.greedy([3], 8), fake.greedy([1, 2], 8))
    assert "a fault on the device" in capsys.readouterr().err
    assert e.cache.n_available == 40


def test_launch_failure_fails_requests_of_both_steps_in_flight(
    fake: ModuleType, late: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    e = fake.engine(page=4, n_pages=40)
    move = e.model.store.copy
    n = [0]

    def fails_once(copies: Any) -> None:
        n[0] += 1
        if n[0] == 4:
            raise MemoryError("no room for its tensors")
        move(copies)

    runs: dict[int, list[Any]] = {0: [fake.run(0, [1, 2]), fake.run(1, [3])], 9: [fake.run(2, [1, 2])]}
    e.model.store.copy = fails_once
    box = late.play(e, runs, is_lazy=False)
    assert sorted(failed.program for failed in box.failed) == [0, 1]
    assert box.outputs[2] == fake.greedy([1, 2], 8)
    assert "no room" in capsys.readouterr().err
    assert e.cache.n_available == 40


def test_flight_record_names_all_requests_on_the_device(fake: ModuleType, late: ModuleType) -> None:
    """While two steps are in flight, a fault of either can surface when the loop waits for the first."""
    e, noted, rids_at_draw, rids_at_read = fake.engine(max_running=3), {}, [], []

    class Flight:
        def note(self, lane: int, rids: Any) -> None:
            noted[lane] = set(rids)

    e._flight = Flight()
    device = late.Device(e)
    sample = device.sample

    def record_and_sample(*args: Any) -> Any:
        rids_at_draw.append(noted[LOOP])
        drawn = sample(*args)
        return drawn._replace(read=lambda: (rids_at_read.append(noted[LOOP]), drawn.read())[1])

    runs = [fake.run(rid, [rid + 1], Sampling(temperature=0.0, max_tokens=5 + rid)) for rid in range(4)]
    with late.patch.object(late.worker, "sample", record_and_sample):
        box = late.loop(e, {0: runs[:2], 2: [runs[2], runs[3]]})
    assert len(box.finished) == 4
    assert rids_at_draw[:4] == [{0, 1}, {0, 1}, {0, 1, 2}, {0, 1, 2}], "without requests that have only arrived"
    assert rids_at_draw[5] == {1, 2}, "without finished requests"
    assert rids_at_read[:3] == [{0, 1}, {0, 1, 2}, {0, 1, 2}], "requests of both steps once two are in flight"
    assert rids_at_read[-1] == {3}
