"""The loop beside a device of its own: the next step is launched while one is computed, before anybody knows what that
one draws; what else is done meanwhile, and what waits. The device is `late.py`'s, which computes no sooner than it has
to.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.engine.guides import Guided
from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.protocol.flight_record import LOOP
from banyan.runtime.protocol.wire import Abort, Ask, ConstraintSpec, Ping, Pong, Sampling

LONG = Sampling(temperature=0.0, max_tokens=40)


def n_ahead(e: Any) -> int:
    counts = e.scheduler.counts
    return int(counts["steps_ahead"])


# ---- one step ahead ------------------------------------------------------------------------------------------------


def test_the_next_step_is_launched_before_the_tokens_of_this_one_are_read(fake: ModuleType, late: ModuleType) -> None:
    prompts = {rid: [rid + 1, 7, rid + 2] for rid in range(4)}
    e = fake.engine(page=4)
    box = late.play(e, {0: [fake.run(rid, prompt, LONG) for rid, prompt in prompts.items()]})
    assert box.said == {rid: fake.greedy(prompt, 40) for rid, prompt in prompts.items()}
    log, n = e.model.log, 40
    assert e.scheduler.counts["steps"] == n, "ends by length are known before: no step is there for nothing"
    assert n_ahead(e) == n - 1
    for step in range(n - 1):
        at = [log.index(late.Event(what, step)) for what in ("launch", "draw", "read")]
        assert at == sorted(at)
        assert at[1] < log.index(late.Event("launch", step + 1)) < at[2], "behind its draws, which it starts with"
        assert at[2] < log.index(late.Event("draw", step + 1)), "penalties and masks go by tokens that are known"


def test_where_the_device_is_this_process_nothing_is_ahead(fake: ModuleType, late: ModuleType) -> None:
    e = fake.engine()
    box = late.loop(e, {0: [fake.run(0, [1, 2, 3])]})
    assert box.said == {0: fake.greedy([1, 2, 3], 8)}
    assert box.sent_at == list(range(1, 9)), "each report before the next step is launched"
    assert n_ahead(e) == 0


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
def test_prompts_start_and_are_cut_in_steps_ahead(fake: ModuleType, late: ModuleType, is_lazy: bool) -> None:
    prompts = {rid: [rid % 3, *range(rid + 1, rid + 30)] for rid in range(12)}
    e = fake.engine(page=4, step_tokens=16, max_running=5)
    orders: dict[int, list[Any]] = {2 * rid: [fake.run(rid, prompt, LONG)] for rid, prompt in prompts.items()}
    box = late.play(e, orders, is_lazy)
    assert box.said == {rid: fake.greedy(prompt, 40) for rid, prompt in prompts.items()}
    assert n_ahead(e) > 0.9 * e.scheduler.counts["steps"]


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
@pytest.mark.parametrize("page", [1, 4])
def test_who_stops_has_a_row_too_many_that_harms_nobody(
    fake: ModuleType, late: ModuleType, page: int, is_lazy: bool
) -> None:
    """It ends everywhere in a page; and others go on from its very end, at once and in the page that it had begun."""
    texts = {rid: fake.greedy([rid, 9], 40) for rid in range(8)}
    e = fake.engine(page=page, n_pages=120 // page)
    orders: dict[int, list[Any]] = {0: [fake.run(99, [49], Sampling(temperature=0.0, max_tokens=45))]}
    said = {99: fake.greedy([49], 45)}
    for rid, text in texts.items():
        n = next(n for n in range(4 + rid, 40) if text[n] not in text[:n])
        said[rid] = text[:n]
        orders[2 * rid] = [*orders.get(2 * rid, ()), fake.run(rid, [rid, 9], LONG, stop_ids=fake.int32([text[n]]))]
        for k, tail in ((10, [3]), (20, [3, 4, 5])):
            prompt = [rid, 9, *text[:n], *tail]
            said[rid + k] = fake.greedy(prompt, 8)
            orders[2 * rid + n + k // 10] = [*orders.get(2 * rid + n + k // 10, ()), fake.run(rid + k, prompt)]
    box = late.play(e, orders, is_lazy)
    assert box.said == said
    assert {box.finished[rid].reason for rid in texts} == {"stop"}
    assert n_ahead(e) > 0.8 * e.scheduler.counts["steps"]
    assert e.cache.n_available == 120 // page
    counted = e.scheduler.counts["computed_tokens"]
    assert counted <= sum(len(prompt) for prompt in said.values()) + 16 * 8 + 60, "rows too many are not counted"


def test_who_draws_nothing_fails_alone_and_its_next_row_computes_any_token(fake: ModuleType, late: ModuleType) -> None:
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
    assert {rid: box.said[rid] for rid in (0, 2)} == {rid: fake.greedy([rid, 1], 8) for rid in (0, 2)}
    assert n_ahead(e) == 7


KINDS = [
    Sampling(max_tokens=20, temperature=0.8, top_p=0.9),
    Sampling(max_tokens=20, frequency_penalty=1.5, repetition_penalty=1.2),
    Sampling(max_tokens=20, temperature=0.0, logprobs=True, top_logprobs=3),
    Sampling(max_tokens=20, min_tokens=6, logit_bias={3: 2.0}, logprobs=True),
]


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
def test_samples_penalties_and_logprobs_are_those_of_the_loop_that_waits(
    fake: ModuleType, late: ModuleType, is_lazy: bool
) -> None:
    runs = [
        fake.run(rid, [rid, 5, 6], KINDS[rid % 4], seed=rid, stop_ids=fake.int32([rid, 40, 41])) for rid in range(12)
    ]
    calm = fake.drive(fake.engine(page=4), runs)
    e = fake.engine(page=4)
    box = late.play(e, {0: runs}, is_lazy)
    assert {rid: box.said.get(rid, []) for rid in calm} == {rid: output.ids for rid, output in calm.items()}
    assert {rid: box.logprobs.get(rid, []) for rid in calm} == {rid: out.logprobs for rid, out in calm.items()}
    assert {rid: f.reason for rid, f in box.finished.items()} == {rid: out.finish.reason for rid, out in calm.items()}
    assert n_ahead(e) >= e.scheduler.counts["steps"] - 1


# ---- what is not ahead ---------------------------------------------------------------------------------------------


def test_behind_a_guide_a_step_waits_for_its_token(fake: ModuleType, late: ModuleType) -> None:
    """What a constraint forces is part of the next step. While its prompt is computed it keeps nobody from anything."""
    e = fake.engine(page=4, step_tokens=8)
    e.guides.submit = lambda run: e.guides._ready.append(Guided(run, fake.Pattern([7, 8, None, 9, None, None, 5]), ()))
    held = Sampling(temperature=0.0, max_tokens=20, constraint=ConstraintSpec("regex", "x"))
    orders: dict[int, list[Any]] = {0: [fake.run(0, [1, 2], LONG)], 5: [fake.run(1, range(30), held)]}
    box = late.play(e, orders)
    calm = fake.engine()
    calm.scheduler.take(fake.run(1, range(30), held), fake.Pattern([7, 8, None, 9, None, None, 5]))
    assert box.said == {0: fake.greedy([1, 2], 40), 1: fake.drive(calm, [])[1].ids}
    assert e.scheduler.counts["forced_tokens"] == 4
    n_waited = e.scheduler.counts["steps"] - n_ahead(e) - 1
    assert 2 <= n_waited <= 5, "those that follow one of its four draws"


def test_drafts_that_are_right_are_the_same_as_in_the_loop_that_waits(fake: ModuleType, late: ModuleType) -> None:
    prompts = {rid: [rid, 3] for rid in range(3)}

    def says(request: Any, n: int) -> Sequence[int]:
        return array("i", fake.greedy(list(request.ids), min(n, 4)))

    runs = [fake.run(rid, prompt, LONG) for rid, prompt in prompts.items()]
    calm, e = fake.told(says, page=4), fake.told(says, page=4)
    assert {rid: out.ids for rid, out in fake.drive(calm, runs).items()} == late.play(e, {0: runs}).said
    assert e.scheduler.counts["steps"] == calm.scheduler.counts["steps"]
    assert e.drafting.stats() == calm.drafting.stats()
    assert n_ahead(e) == 0


def test_a_draft_is_never_followed(fake: ModuleType, late: ModuleType) -> None:
    """Nobody knows how much of it is right, whatever is said of the next."""
    e = fake.told(lambda request, n: array("i", [*fake.greedy(list(request.ids), 2), 11][: min(n, 3)]), page=4)
    e.drafting.can_skip = lambda request: True
    box = late.play(e, {rid: [fake.run(rid, [rid, 3], LONG)] for rid in range(3)})
    assert box.said == {rid: fake.greedy([rid, 3], 40) for rid in range(3)}
    assert e.drafting.stats()["accepted_told"] > 40


def test_a_drafter_that_says_nothing_is_asked_now_and_then(fake: ModuleType, late: ModuleType) -> None:
    e = fake.engine(page=4, n_pages=400, speculate="ngram")
    asked: list[tuple[int, int]] = []
    (drafter,) = e.drafting.drafters
    drafter.propose = lambda request, n: asked.append((e.scheduler.counts["steps"], request.rid)) or ()
    whole = Sampling(temperature=0.0, max_tokens=300)
    prompts = {rid: [rid, 3] for rid in range(4)}
    orders: dict[int, list[Any]] = {3 * rid: [fake.run(rid, prompt, whole)] for rid, prompt in prompts.items()}
    box = late.play(e, orders, check=False)
    assert box.said == {rid: fake.greedy(prompt, 300) for rid, prompt in prompts.items()}
    assert n_ahead(e) > 0.8 * e.scheduler.counts["steps"]
    for rid in prompts:
        at = [step for step, who in asked if who == rid]
        assert len(at) > 8
        assert max(b - a for a, b in pairwise(at)) < 80
    late_ones = [step for step, _ in asked if step > 150]
    assert len(set(late_ones)) * 3 < len(late_ones), "all in the same steps, which cannot be ahead"


def test_who_is_short_of_pages_waits_for_what_is_drawn(
    fake: ModuleType, late: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stops in the very step in which their pages are full: nobody has to make way."""
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    first, second = [1, 2, 3, 4], [5, 6, 7, 8]
    e = fake.engine(page=4, n_pages=4)
    s = Sampling(temperature=0.0, max_tokens=12)
    stop = fake.greedy(first, 5)[-1]
    box = late.play(e, {0: [fake.run(0, first, s, stop_ids=fake.int32([stop])), fake.run(1, second, s)]})
    assert box.said == {0: fake.greedy(first, 4), 1: fake.greedy(second, 12)}
    assert e.scheduler.counts["retractions"] == 0
    assert e.scheduler.counts["steps"] - n_ahead(e) == 2, "the first, and the one that waited"


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
def test_who_is_retracted_loses_nothing_but_time(
    fake: ModuleType, late: ModuleType, monkeypatch: pytest.MonkeyPatch, is_lazy: bool
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    prompts = {rid: [rid, *range(9)] for rid in range(6)}
    e = fake.engine(page=4, n_pages=24)
    box = late.play(e, {0: [fake.run(rid, prompt, LONG) for rid, prompt in prompts.items()]}, is_lazy)
    assert box.said == {rid: fake.greedy(prompt, 40) for rid, prompt in prompts.items()}
    assert e.scheduler.counts["retractions"] > 0
    assert n_ahead(e) > 0.5 * e.scheduler.counts["steps"]


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
def test_who_makes_way_for_a_higher_priority_may_go_on_in_the_same_step(
    fake: ModuleType, late: ModuleType, monkeypatch: pytest.MonkeyPatch, is_lazy: bool
) -> None:
    """On other pages than those that the step before still writes to, and from where the tree says."""
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    n_retracted = 0
    for n in range(12, 26):
        e = fake.engine(page=1, n_pages=32, schedule="fcfs")
        short = Sampling(temperature=0.0, max_tokens=12)
        high = fake.run(1, range(20, 20 + n), Sampling(temperature=0.0, max_tokens=2), priority=1)
        box = late.play(e, {0: [fake.run(0, [1, 2, 3, 4], short)], 5: [high]}, is_lazy)
        assert box.said == {0: fake.greedy([1, 2, 3, 4], 12), 1: fake.greedy(range(20, 20 + n), 2)}
        assert e.cache.n_available == 32
        n_retracted += e.scheduler.counts["retractions"]
    assert n_retracted > 0


def test_scores_are_those_of_the_loop_that_waits(fake: ModuleType, late: ModuleType) -> None:
    runs = [fake.run(rid, [rid, *range(20)], score_from=3 if rid % 2 else -1) for rid in range(4)]
    calm = fake.drive(fake.engine(step_tokens=16), runs)
    box = late.play(fake.engine(step_tokens=16), {0: runs})
    assert {rid: (box.said[rid], box.finished[rid].scores) for rid in calm} == {
        rid: (out.ids, out.finish.scores) for rid, out in calm.items()
    }


def test_the_second_tier_moves_in_between(fake: ModuleType, late: ModuleType) -> None:
    prompts = [[k, *range(k, k + 20)] for k in range(8)]
    e = fake.engine(page=4, n_pages=16, n_host=64)
    orders = {12 * i: [fake.run(i, prompts[i % 8])] for i in range(24)}
    box = late.play(e, orders)
    assert box.said == {i: fake.greedy(prompts[i % 8], 8) for i in range(24)}
    assert e.cache.stats().n_host_hit_tokens > 100
    assert n_ahead(e) > 0


# ---- orders and reports --------------------------------------------------------------------------------------------


def test_orders_are_taken_and_reports_sent_while_a_step_is_computed(fake: ModuleType, late: ModuleType) -> None:
    prompts = {rid: [1 + rid, *range(rid % 5 + 1)] for rid in range(12)}
    orders: dict[int, list[Any]] = {rid: [fake.run(rid, prompt), Ping()] for rid, prompt in prompts.items()}
    box = late.play(fake.engine(n_pages=40, page=4, max_running=5), orders)
    assert box.said == {rid: fake.greedy(prompt, 8) for rid, prompt in prompts.items()}
    assert not box.failed
    assert sum(isinstance(other, Pong) for other in box.others) == 12
    assert box.sent_at[0] == 3, "the first step's report, once the device has the second and the third"
    assert box.sent_at == sorted(box.sent_at)


def test_at_the_end_a_report_waits_for_no_step(fake: ModuleType, late: ModuleType) -> None:
    text = fake.greedy([1, 2], 40)
    n = next(n for n in range(4, 40) if text[n] not in text[:n])
    e = fake.engine()
    box = late.play(e, {0: [fake.run(0, [1, 2], LONG, stop_ids=fake.int32([text[n]]))], 60: [fake.run(1, [5])]})
    assert box.said == {0: text[:n], 1: fake.greedy([5], 8)}
    end = e.model.log.index(late.Event("read", n))
    assert late.Event("launch", n + 1) in e.model.log[:end], "the step of a row too many"
    assert box.sent_at[n - 1 :][0] <= n + 2, "and the report is not kept until another comes"


def test_who_is_given_up_keeps_its_pages_until_the_step_has_ended(fake: ModuleType, late: ModuleType) -> None:
    """The pool is so small that a page that was let go of too early would be written by two."""
    for is_lazy in (True, False):
        e = fake.engine(n_pages=8, page=4, max_running=4, context=32)
        orders: dict[int, list[Any]] = {
            0: [fake.run(rid, [rid + 1] * 5) for rid in range(3)],
            2: [Abort(0), Ask(7, "check"), fake.run(3, [9, 9, 9])],
            3: [Abort(2), Abort(77), fake.run(4, [8] * 6)],
            5: [Ask(8, "flush"), Abort(3)],
        }
        box = late.play(e, orders, is_lazy)
        reasons = {rid: finish.reason for rid, finish in box.finished.items()}
        assert [reasons[rid] for rid in range(5)] == ["abort", "length", "abort", "abort", "length"]
        assert box.said[1] == fake.greedy([2] * 5, 8)
        assert box.said[4] == fake.greedy([8] * 6, 8)
        assert [other.ok for other in box.others[1:]] == [True, True]
        assert e.cache.n_available == 8


def test_who_is_given_up_in_its_last_step_ends_once(fake: ModuleType, late: ModuleType) -> None:
    """It comes while the last two steps are on the device, and is taken when the first of them has landed."""
    box = late.play(fake.engine(), {0: [fake.run(0, [1, 2])], 8: [Abort(0), Ask(1, "check")]})
    assert box.finished[0].reason == "abort"
    assert box.said == {0: fake.greedy([1, 2], 7)}
    assert box.others[1].ok


def change_what_a_node_says(e: Any) -> None:
    node = max(e.cache.tree.roots[b""].children.values(), key=lambda node: node.n_locks)
    node.key = node.key[:-4] + b"\xff\0\0\0"


def lease_a_page_twice(e: Any) -> None:
    first, second = e.scheduler.running[:2]
    second.lease.pages[-1] = first.lease.pages[-1]
    e.cache._n_leased += 1


@pytest.mark.parametrize("spoil", [change_what_a_node_says, lease_a_page_twice])
def test_books_that_do_not_balance_are_mended_beside_a_step(
    fake: ModuleType, late: ModuleType, capsys: pytest.CaptureFixture[str], spoil: Any
) -> None:
    """Who begins anew may be started while the step that it was in is still computed, on other pages."""
    e = fake.engine(page=4)
    answer = e.answer

    def spoiled(ask: Any) -> Any:
        if ask.what == "check":
            spoil(e)
        return answer(ask)

    e.answer = spoiled
    prompts = {rid: [rid, *range(9)] for rid in range(3)}
    runs = [fake.run(rid, prompt, LONG) for rid, prompt in prompts.items()]
    box = late.play(e, {0: runs, 9: [Ask(1, "check")]})
    assert box.said == {rid: fake.greedy(prompt, 40) for rid, prompt in prompts.items()}
    assert e.scheduler.counts["retractions"] > 0
    assert "did not balance" in capsys.readouterr().err
    assert n_ahead(e) > 30


def test_what_a_step_costs_is_counted_from_the_end_of_the_one_before_it(fake: ModuleType, late: ModuleType) -> None:
    """The clock says how many steps the device has computed."""
    e = fake.engine(page=4, step_tokens=8, speculate="ngram")
    e.drafting.can_skip = lambda request: True
    e.stopwatch = e.clock = lambda: float(len(e.model.model.steps))
    costs: list[tuple[int, int, float]] = []
    begun: list[tuple[float, int]] = []
    e.drafting.note = lambda plan, n_rows, seconds: costs.append((len(plan.works), n_rows, seconds))
    e.scheduler._step_time.note = lambda *noted: begun.append(noted)
    late.play(e, {0: [fake.run(0, range(20))], 4: [fake.run(1, range(30, 45))]})
    rows = [(len(step), sum(step)) for step in e.model.model.steps]
    assert costs == [(n, n_rows, 1.0) for n, n_rows in rows]
    assert begun == [(step, n_rows) for step, (_, n_rows) in enumerate(rows)]


# ---- failures ------------------------------------------------------------------------------------------------------


def failing(e: Any, at: int) -> None:
    """Have the model's forward number `at`, counted from 1, fail on the device."""
    forward, n = e.model.model.forward, [0]

    def fails_once(*args: Any) -> Any:
        n[0] += 1
        logits = forward(*args)
        if n[0] == at:
            raise RuntimeError("a fault on the device")
        return logits

    e.model.model.forward = fails_once


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
def test_a_step_that_fails_on_the_device_fails_its_own_requests(
    fake: ModuleType, late: ModuleType, capsys: pytest.CaptureFixture[str], is_lazy: bool
) -> None:
    """And not who was first planned behind it, nor who came later."""
    e = fake.engine(page=4, n_pages=40)
    failing(e, 3)
    runs = {0: [fake.run(0, [1, 2]), fake.run(4, [2, 2])], 3: [fake.run(1, [3])], 12: [fake.run(2, [1, 2])]}
    box = late.play(e, runs, is_lazy)
    assert sorted(failed.program for failed in box.failed) == [0, 4]
    assert (box.said[1], box.said[2]) == (fake.greedy([3], 8), fake.greedy([1, 2], 8))
    assert "a fault on the device" in capsys.readouterr().err
    assert e.cache.n_available == 40


def test_a_step_that_cannot_be_launched_fails_before_the_one_before_it_lands(
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

    box_runs: dict[int, list[Any]] = {0: [fake.run(0, [1, 2]), fake.run(1, [3])], 9: [fake.run(2, [1, 2])]}
    e.model.store.copy = fails_once
    box = late.play(e, box_runs, is_lazy=False)
    assert sorted(failed.program for failed in box.failed) == [0, 1]
    assert box.said[2] == fake.greedy([1, 2], 8)
    assert "no room" in capsys.readouterr().err
    assert e.cache.n_available == 40


def test_all_that_the_device_computes_is_in_hand(fake: ModuleType, late: ModuleType) -> None:
    """A fault of either step may show when the loop waits for the first."""
    e, noted, drawing, reading = fake.engine(max_running=3), {}, [], []

    class Flight:
        def note(self, lane: int, rids: Any) -> None:
            noted[lane] = set(rids)

    e._flight = Flight()
    device = late.Device(e)
    sample = device.sample

    def watched(*args: Any) -> Any:
        drawing.append(noted[LOOP])
        drawn = sample(*args)
        return drawn._replace(read=lambda: (reading.append(noted[LOOP]), drawn.read())[1])

    runs = [fake.run(rid, [rid + 1], Sampling(temperature=0.0, max_tokens=5 + rid)) for rid in range(4)]
    with late.patch.object(late.worker, "sample", watched):
        box = late.loop(e, {0: runs[:2], 2: [runs[2], runs[3]]})
    assert len(box.finished) == 4
    assert drawing[:4] == [{0, 1}, {0, 1}, {0, 1, 2}, {0, 1, 2}], "and not who only came meanwhile"
    assert drawing[5] == {1, 2}, "nor who has ended"
    assert reading[:3] == [{0, 1}, {0, 1, 2}, {0, 1, 2}], "of two steps, once there are two"
    assert reading[-1] == {3}
