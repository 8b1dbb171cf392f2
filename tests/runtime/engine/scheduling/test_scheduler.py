"""The scheduler in an engine with the fake model: every output is checked against the naive loop."""

from __future__ import annotations

import random
from array import array
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.protocol.wire import Abort, ProgramEnded, Sampling
from forms import in_short, short_form


def prompts(n: int, shared: int = 40, own: int = 5, seed: int = 0) -> list[list[int]]:
    """n prompts with a common prefix."""
    rng = random.Random(seed)
    prefix = [rng.randrange(50) for _ in range(shared)]
    return [prefix + [rng.randrange(50) for _ in range(own)] for _ in range(n)]


def assert_greedy(fake: ModuleType, outputs: dict[int, Any], inputs: dict[int, list[int]], n: int = 8) -> None:
    for rid, ids in inputs.items():
        assert outputs[rid].failed is None
        assert outputs[rid].ids == fake.greedy(ids, n), f"request {rid}"
        assert outputs[rid].finish.reason == "length"
        assert outputs[rid].finish.n_prompt == len(ids)


@pytest.mark.parametrize(
    ("cache", "page", "step_tokens"),
    short_form(
        product([True, False], [1, 4, 16], [7, 512]),
        lambda cache, page, step_tokens: cache == (page == 4) if step_tokens == 7 else page == 16,
    ),
)
def test_outputs_match_the_naive_loop(fake: ModuleType, cache: bool, page: int, step_tokens: int) -> None:
    inputs = dict(enumerate(prompts(9)))
    e = fake.engine(page=page, step_tokens=step_tokens, max_running=5, cache=cache, n_pages=1024)
    outputs = fake.drive(e, [fake.run(rid, ids) for rid, ids in inputs.items()], check=True)
    assert_greedy(fake, outputs, inputs)


def test_new_shared_prefix_is_computed_once(fake: ModuleType) -> None:
    inputs = dict(enumerate(prompts(8, shared=100, own=5)))
    for step_tokens in (32, 512):
        e = fake.engine(step_tokens=step_tokens)
        outputs = fake.drive(e, [fake.run(rid, ids, order=(0, rid)) for rid, ids in inputs.items()], check=True)
        assert_greedy(fake, outputs, inputs)
        assert e.scheduler.counts["computed_tokens"] == 100 + 8 * 5 + 8 * 7
        assert sum(o.finish.n_cached for o in outputs.values()) == 7 * 100


def test_short_shared_prefix_is_not_waited_for(fake: ModuleType) -> None:
    inputs = dict(enumerate(prompts(4, shared=scheduler.WORTH_WAITING - 1, own=20)))
    e = fake.engine()
    assert_greedy(fake, fake.drive(e, [fake.run(rid, ids) for rid, ids in inputs.items()]), inputs)
    assert e.scheduler.counts["waits"] == 0
    assert len(e.model.model.steps) == 8


def test_equal_prompts_cost_one_prefill(fake: ModuleType) -> None:
    (ids,) = prompts(1, shared=60, own=0)
    e = fake.engine()
    fake.drive(e, [fake.run(rid, ids, Sampling(max_tokens=1), sample=rid) for rid in range(8)])
    assert e.scheduler.counts["computed_tokens"] == 60 + 7


def test_repeated_prompts_compute_one_prompt_token_each(fake: ModuleType) -> None:
    inputs = dict(enumerate(prompts(6)))
    e = fake.engine()
    for _ in range(2):
        before = e.scheduler.counts["computed_tokens"]
        outputs = fake.drive(e, [fake.run(rid, ids) for rid, ids in inputs.items()])
        assert_greedy(fake, outputs, inputs)
    assert e.scheduler.counts["computed_tokens"] - before == 6 * 8
    assert [o.finish.n_cached for o in outputs.values()] == [44] * 6


def test_empty_plan_leaves_moves_for_the_next_one(fake: ModuleType) -> None:
    e = fake.engine(page=4, n_pages=16, n_host=16)
    ids = prompts(1, shared=15, own=1)[0]
    fake.drive(e, [fake.run(0, ids)])
    e.cache.hints.evict(16)
    e.model.move(e.cache.take_moves())
    e.cache.handle(fake.int32(ids)).prefetch()
    assert e.scheduler.plan(0.0) is None
    e.take(fake.run(1, ids))
    plan = e.scheduler.plan(0.0)
    assert plan is not None
    assert [move.is_out for move in plan.moves] == [False] * 4


def test_namespaces_share_nothing(fake: ModuleType) -> None:
    (ids,) = prompts(1, shared=60, own=0)
    e = fake.engine()
    outputs = fake.drive(e, [fake.run(rid, ids, namespace=bytes([rid % 2])) for rid in range(4)], check=True)
    assert_greedy(fake, outputs, dict.fromkeys(range(4), ids))
    assert [outputs[rid].finish.n_cached for rid in range(4)] == [0, 0, 59, 59]


def test_decodes_precede_prompt_chunks_in_the_budget(fake: ModuleType) -> None:
    short, long = prompts(1, shared=4)[0], prompts(1, shared=95, seed=1)[0]
    e = fake.engine(step_tokens=16)
    e.take(fake.run(1, short, Sampling(temperature=0, max_tokens=20), order=(1,)))
    outputs: dict[int, Any] = {}
    fake.step(e, outputs)
    e.take(fake.run(0, long, order=(0,)))  # ranks first, but delays no decode
    for n in range(1, 7):
        fake.step(e, outputs)
        assert len(outputs[1].ids) == n + 1
    assert e.model.model.steps == [(9,), (1, 15), (1, 15), (1, 15), (1, 15), (1, 15), (1, 15)]


@pytest.mark.parametrize(("client", "most"), [(1, 126), (2, 12)])
def test_prompts_of_a_client_that_is_ahead_take_as_many_rows_as_are_nearly_free(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch, client: int, most: int
) -> None:
    monkeypatch.setattr(scheduler, "QUANTUM", 90)
    inputs = {1: prompts(1, shared=4)[0], 2: prompts(1, shared=95, seed=1)[0], 3: prompts(1, shared=195, seed=2)[0]}
    e = fake.engine(step_tokens=128)
    e.take(fake.run(1, inputs[1], Sampling(temperature=0, max_tokens=20), client=1))
    outputs: dict[int, Any] = {}
    fake.step(e, outputs)
    for rid in (2, 3):
        e.take(fake.run(rid, inputs[rid], client=client))
    while not outputs.get(3) or not outputs[3].ids:
        fake.step(e, outputs)
    assert e.model.model.steps[1] == (1, 100, 27), "a client that is not ahead has the whole budget"
    assert max(map(max, e.model.model.steps[2:])) == most
    assert outputs[2].ids[:2] == fake.greedy(inputs[2], 2)


@pytest.mark.parametrize(
    ("n_own", "n_rows"), short_form([(1, 12), (15, 15), (30, 30)], lambda n_own, n_rows: n_own == 1)
)
def test_decodes_of_a_client_take_turns_beside_those_of_another(fake: ModuleType, n_own: int, n_rows: int) -> None:
    """The client with 30 requests gets 12 rows, which cost BESIDE of a step's fixed cost (that of 16 rows, as the clock
    stands still), or as many rows as the other client if those are more."""
    inputs = dict(enumerate(prompts(n_own + 30, shared=0)))
    e = fake.engine(n_pages=1024)
    e.scheduler.step_time.note = lambda now, n_rows: None
    outputs: dict[int, Any] = {}
    for rid, ids in inputs.items():
        e.take(fake.run(rid, ids, Sampling(temperature=0, max_tokens=30), client=int(rid >= n_own)))
    for _ in range(6):
        fake.step(e, outputs)
    assert {len(step) for step in e.model.model.steps[1:]} == {n_own + n_rows}
    assert {len(outputs[rid].ids) for rid in range(n_own)} == {6}, "who has few gets a token in each step"
    n_tokens = [len(outputs[rid].ids) for rid in range(n_own, n_own + 30)]
    assert max(n_tokens) - min(n_tokens) <= 2, n_tokens
    assert_greedy(fake, fake.drive(e, [], outputs), inputs, n=30)


def test_step_tokens_and_max_running_are_respected(fake: ModuleType) -> None:
    inputs = dict(enumerate(prompts(30, shared=3, own=20)))
    e = fake.engine(step_tokens=10, max_running=4)
    assert_greedy(fake, fake.drive(e, [fake.run(rid, ids) for rid, ids in inputs.items()]), inputs)
    assert max(map(sum, e.model.model.steps)) == 10
    assert max(map(len, e.model.model.steps)) <= 4


def test_requests_start_by_order_not_arrival(fake: ModuleType) -> None:
    inputs = dict(enumerate(prompts(6, shared=0, own=5)))
    orders = {0: (7,), 1: (1, 5), 2: (1, 2), 3: (), 4: (1, 2, 0), 5: (0,)}
    e = fake.engine(max_running=1)
    outputs: dict[int, Any] = {}
    ended = list(fake.drive(e, [fake.run(r, i, order=orders[r]) for r, i in inputs.items()], outputs))
    assert ended == [3, 5, 2, 4, 1, 0]


def test_longest_waiting_request_starts_after_the_patience_limit(fake: ModuleType) -> None:
    now = 0.0
    e = fake.engine(max_running=1)
    e.clock = lambda: now
    late = prompts(60, shared=0, own=3)
    e.take(fake.run(0, late[0], order=(9,)))
    outputs: dict[int, Any] = {}
    for rid in range(1, 40):  # always two with a better order
        e.take(fake.run(rid, late[rid], Sampling(max_tokens=1, temperature=0), order=(0, rid)))
        if rid > 2:
            fake.step(e, outputs)
            now += 1.0
        if 0 in outputs:
            break
    assert 10 < now < 15


# ---- short of pages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "foresight"), short_form(product([1, 4, 16], [0, 1]), lambda *case: case in ((1, 0), (16, 1)))
)
def test_tiny_pool_finishes_all_requests(
    fake: ModuleType, page: int, foresight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", foresight)
    inputs = dict(enumerate(prompts(12, shared=20, own=15)))
    s = Sampling(max_tokens=30, temperature=0)
    e = fake.engine(page=page, n_pages=-(-96 // page), step_tokens=24)
    outputs = fake.drive(e, [fake.run(rid, ids, s) for rid, ids in inputs.items()], check=True)
    assert_greedy(fake, outputs, inputs, 30)
    assert (e.scheduler.counts["retractions"] > 0) == (foresight == 0)


@pytest.mark.parametrize("page", [1, 4, 16])
def test_request_that_just_fits_finishes_with_a_full_cache(fake: ModuleType, page: int) -> None:
    """A page that it shares in part would have to be copied, but no page is free for the copy."""
    ids = prompts(1, shared=42, own=0)[0]
    for n in (1, 7, 16, 33):
        e = fake.engine(page=page, n_pages=48 // page)
        fake.drive(e, [fake.run(0, [*ids[:n], 49])])
        outputs = fake.drive(e, [fake.run(1, ids, Sampling(max_tokens=7, temperature=0))], check=True)
        assert_greedy(fake, outputs, {1: ids}, 7)


def test_samples_do_not_depend_on_batch_chunks_or_retractions(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    ids = prompts(1)[0]
    kinds = [Sampling(max_tokens=30, top_p=0.9), Sampling(max_tokens=30, temperature=0.7, presence_penalty=1.0)]
    runs = [fake.run(r, ids, kinds[r % 2], seed=r // 4, sample=r % 4) for r in range(12)]
    alone = {run.rid: fake.drive(fake.engine(), [run])[run.rid].ids for run in runs}
    assert len({tuple(ids) for ids in alone.values()}) == 12
    e = fake.engine(step_tokens=13, page=4, n_pages=30)
    together = fake.drive(e, runs, check=True)
    assert {rid: output.ids for rid, output in together.items()} == alone
    assert e.scheduler.counts["retractions"] > 0


def test_request_larger_than_the_pool_fails_with_the_numbers(fake: ModuleType) -> None:
    e = fake.engine(n_pages=4, context=400)
    outputs = fake.drive(
        e, [fake.run(0, [1] * 60, Sampling(max_tokens=6)), fake.run(1, [1] * 60, Sampling(max_tokens=5))]
    )
    assert outputs[0].failed.code == "out_of_memory"
    for number in ("5 pages", "60 tokens", "66 with", "4 of 16 slots"):
        assert number in outputs[0].failed.message
    assert outputs[1].finish.reason == "length"


# ---- finish reasons ------------------------------------------------------------------------------------------------


def test_stop_id_ends_the_output_and_is_excluded(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    expected = fake.greedy(ids, 8)
    stop = expected[4]
    n = expected.index(stop)
    outputs = fake.drive(fake.engine(), [fake.run(0, ids, stop_ids=fake.int32([stop]))])
    assert outputs[0].ids == expected[:n]
    assert (outputs[0].finish.reason, outputs[0].finish.stop_id) == ("stop", stop)


def test_context_length_ends_the_output(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    outputs = fake.drive(fake.engine(context=48), [fake.run(0, ids)], check=True)
    assert_greedy(fake, outputs, {0: ids}, 3)


def test_replay_continues_after_a_restart(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    for sampling in (fake.GREEDY, Sampling(max_tokens=8, seed=3), Sampling(max_tokens=8, frequency_penalty=1.5)):
        whole = fake.drive(fake.engine(), [fake.run(0, ids, sampling, seed=3)])[0]
        for n in (1, 5, 7):
            rest = fake.drive(fake.engine(), [fake.run(0, ids + whole.ids[:n], sampling, seed=3, n_done=n)])[0]
            assert rest.ids == whole.ids[n:]
            assert rest.finish.n_prompt == len(ids)
    done = fake.drive(fake.engine(), [fake.run(0, ids + whole.ids, sampling, seed=3, n_done=8)])[0]
    assert (done.ids, done.finish.reason) == ([], "length")


def test_replay_of_an_output_that_fills_the_context_ends_it(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    whole = fake.drive(fake.engine(context=48), [fake.run(0, ids)])[0]
    assert len(ids + whole.ids) == 48
    done = fake.drive(fake.engine(context=48), [fake.run(0, ids + whole.ids, n_done=len(whole.ids))])[0]
    assert (done.ids, done.finish.reason) == ([], "length")


def test_zero_max_tokens_only_fills_the_cache(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    e = fake.engine()
    outputs = fake.drive(e, [fake.run(0, ids, Sampling(max_tokens=0))], check=True)
    assert (outputs[0].ids, outputs[0].finish.reason) == ([], "length")
    assert fake.drive(e, [fake.run(1, ids)])[1].finish.n_cached == len(ids) - 1


@pytest.mark.parametrize("step_tokens", [7, 512])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_scores_are_prompt_logprobs(fake: ModuleType, step_tokens: int, max_tokens: int) -> None:
    """Cached prefixes hold no logits, so rows before scored tokens are recomputed."""
    ids = prompts(1)[0]
    e = fake.engine(step_tokens=step_tokens)
    for first in (1, 20, 44, 45, 20):
        s = Sampling(max_tokens=max_tokens, temperature=0)
        finish = fake.drive(e, [fake.run(0, ids, s, score_from=first)], check=True)[0].finish
        logits = np.array([fake.logits_after(ids[:n]) for n in range(first, len(ids))], np.float64).reshape(
            -1, fake.VOCAB
        )
        expected = [row[t] - np.log(np.exp(row).sum()) for row, t in zip(logits, ids[first:], strict=True)]
        np.testing.assert_allclose(array("f", finish.scores), expected, atol=1e-5)


@pytest.mark.parametrize("step_tokens", [7, 512])
def test_scores_include_alternatives_only_if_requested(fake: ModuleType, step_tokens: int) -> None:
    ids = prompts(1)[0]
    plain = Sampling(max_tokens=1, temperature=0)
    with_tops = Sampling(max_tokens=1, temperature=0, logprobs=True, top_logprobs=3)
    runs = [fake.run(0, ids, with_tops, score_from=20), fake.run(1, ids, plain, score_from=20)]
    outputs = fake.drive(fake.engine(step_tokens=step_tokens), runs, check=True)
    finish, other = (outputs[rid].finish for rid in (0, 1))
    assert other.tops == ()
    assert [top.logprob for top in finish.tops] == array("f", finish.scores).tolist()
    for n, top in enumerate(finish.tops, 20):
        row = np.array(fake.logits_after(ids[:n]), np.float64)
        row -= np.log(np.exp(row).sum())
        best = np.argsort(-row)[:3]
        assert array("i", top.top_ids).tolist() == best.tolist()
        np.testing.assert_allclose(array("f", top.top_logprobs), row[best], atol=1e-5)


@pytest.mark.parametrize("n_before", [0, 3])
def test_the_token_that_ends_an_output_has_its_logprobs(fake: ModuleType, n_before: int) -> None:
    ids = prompts(1)[0]
    *output, stop = fake.greedy(ids, n_before + 1)
    assert stop not in output
    with_logprobs = Sampling(max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
    stops = array("i", [stop]).tobytes()
    runs = [fake.run(0, ids, with_logprobs, stop_ids=stops), fake.run(1, ids, stop_ids=stops)]
    outputs = fake.drive(fake.engine(), runs, check=True)
    assert outputs[0].ids == outputs[1].ids == output
    finish, other = (outputs[rid].finish for rid in (0, 1))
    assert (finish.stop_id, other.end) == (stop, None)
    row = np.array(fake.logits_after([*ids, *output]), np.float64)
    row -= np.log(np.exp(row).sum())
    assert finish.end.logprob == pytest.approx(row[stop], abs=1e-5)
    assert array("i", finish.end.top_ids).tolist() == np.argsort(-row)[:2].tolist()


def test_scores_after_a_replay_cover_only_the_prompt(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    expected = fake.drive(fake.engine(), [fake.run(0, ids, score_from=7)])[0]
    for n in (0, 1, 5):
        again = fake.drive(fake.engine(), [fake.run(0, ids + expected.ids[:n], score_from=7, n_done=n)], check=True)[0]
        assert again.ids == expected.ids[n:]
        assert again.finish.scores == expected.finish.scores


def test_scores_survive_a_retraction(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    inputs = dict(enumerate(prompts(6, shared=10, own=20)))
    runs = [fake.run(r, i, Sampling(max_tokens=30, temperature=0), score_from=5) for r, i in inputs.items()]
    expected = fake.drive(fake.engine(step_tokens=16), runs)
    e = fake.engine(step_tokens=16, page=4, n_pages=20)
    outputs = fake.drive(e, runs, check=True)
    assert e.scheduler.counts["retractions"] > 0
    assert_greedy(fake, outputs, inputs, 30)
    assert all(len(o.finish.scores) == 4 * 25 for o in outputs.values())
    assert {r: o.finish.scores for r, o in outputs.items()} == {r: o.finish.scores for r, o in expected.items()}


# ---- admission -----------------------------------------------------------------------------------------------------


def test_request_that_is_held_back_evicts_nothing(fake: ModuleType) -> None:
    """No page is evicted to bring back its prefix from host memory either."""
    e = fake.engine(page=16, n_pages=32, n_host=64)
    young, old = ([k] * 300 for k in (9, 1))
    one = Sampling(temperature=0, max_tokens=1)
    for rid, ids in ((9, young), (1, old)):
        fake.drive(e, [fake.run(rid, ids, one, order=(rid, 0))])
    assert e.cache.stats().n_moved_out > 0, "a part of the younger program's text is in host memory"
    n_old = e.cache.n_usable(fake.int32(old), b"", 300)
    e.take(fake.run(0, [0] * 10, Sampling(temperature=0, max_tokens=30), order=(0, 0)))
    outputs: dict[int, Any] = {}
    fake.step(e, outputs)
    n_out = e.cache.stats().n_moved_out
    e.take(fake.run(19, young + [8] * 20, one, order=(9, 0)))
    for _ in range(5):
        fake.step(e, outputs)
        assert [request.rid for request in e.scheduler.running] == [0]
        assert (e.cache.stats().n_moved_in, e.cache.stats().n_moved_out) == (0, n_out)
    assert e.cache.n_usable(fake.int32(old), b"", 300) == n_old
    fake.drive(e, [], outputs, check=True)
    assert outputs[19].ids == fake.greedy(young + [8] * 20, 1)
    assert outputs[19].finish.n_cached == 300


# ---- aborts --------------------------------------------------------------------------------------------------------


def test_abort_releases_running_waiting_and_unknown_requests(fake: ModuleType) -> None:
    inputs = dict(enumerate(prompts(6, shared=60)))
    e = fake.engine(step_tokens=16, max_running=2)
    outputs: dict[int, Any] = {}
    for rid, ids in inputs.items():
        e.take(fake.run(rid, ids))
    fake.step(e, outputs)
    assert e.scheduler.stats()["running"] == 1  # the prefix owner runs, the others wait
    for rid in (0, 3, 99):  # running, waiting, unknown
        e.take(Abort(rid))
    e.scheduler.check()
    fake.drive(e, [], outputs, check=True)
    assert [outputs[rid].finish.reason for rid in inputs] == ["abort"] + ["length"] * 2 + ["abort"] + ["length"] * 2
    assert_greedy(fake, outputs, {rid: ids for rid, ids in inputs.items() if rid not in (0, 3)})
    assert e.cache.n_available == 256


@pytest.mark.parametrize("n_steps", [0, 2])
def test_admission_forgets_a_program_that_ends_before_its_requests(fake: ModuleType, n_steps: int) -> None:
    """The server may end a program before it aborts the program's remaining requests."""
    e = fake.engine(max_running=1)
    for k in range(20):
        e.take(fake.run(2 * k, [k] * 20, order=(k, 0)))
        e.take(fake.run(2 * k + 1, [k] * 30, order=(k, 1)))
        outputs: dict[int, Any] = {}
        for _ in range(n_steps):
            fake.step(e, outputs)
        e.take(ProgramEnded(0, k))
        fake.drive(e, [], outputs)
    assert not e.scheduler.admission._by_rank
    assert not e.scheduler.admission._shared_now
    assert not e.scheduler.waiting._programs


def test_admission_does_not_count_requests_of_no_program(fake: ModuleType) -> None:
    e = fake.engine()
    fake.drive(e, [fake.run(rid, [rid] * 20, client=rid, order=()) for rid in range(8)])
    assert not e.scheduler.admission._by_rank


def test_request_waiting_for_a_prefix_can_be_aborted(fake: ModuleType) -> None:
    inputs = dict(enumerate(prompts(4, shared=60)))
    e = fake.engine()
    outputs: dict[int, Any] = {}
    for rid, ids in inputs.items():
        e.take(fake.run(rid, ids))
    fake.step(e, outputs)
    assert e.scheduler.stats()["waits"] == 3
    e.take(Abort(2))
    e.scheduler.check()
    fake.drive(e, [], outputs, check=True)
    assert outputs[2].finish.reason == "abort"
    assert_greedy(fake, outputs, {rid: inputs[rid] for rid in (0, 1, 3)})
    assert not e.scheduler.waiting._arrivals, "no request is kept after its end"


def test_waiting_request_takes_over_a_failed_prefix_owner(fake: ModuleType) -> None:
    inputs = dict(enumerate(prompts(4, shared=100)))
    e = fake.engine(step_tokens=110, max_running=8)
    outputs: dict[int, Any] = {}
    for rid, ids in inputs.items():
        e.take(fake.run(rid, ids))
    plan = e.scheduler.plan(0.0)
    assert [w.request.rid for w in plan.works] == [0]
    e.scheduler.fail(plan, "error", "lost")
    assert e.scheduler.stats()["waits"] == 3
    fake.drive(e, [], outputs, check=True)
    assert_greedy(fake, outputs, {rid: inputs[rid] for rid in (1, 2, 3)})
    assert e.scheduler.counts["computed_tokens"] == 100 + 3 * 5 + 3 * 7


@pytest.mark.parametrize("seed", in_short([5], range(6)))
def test_random_aborts_leak_no_page_and_change_no_output(
    fake: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests with shared prefixes arrive and abort at random times in a pool too small for them."""
    monkeypatch.setattr(scheduler, "FORESIGHT", seed % 3 / 2)
    rng = random.Random(seed)
    page = rng.choice([1, 4, 16])
    e = fake.engine(page=page, n_pages=160 // page, step_tokens=rng.choice([9, 33, 200]), max_running=7)
    roots = [prompts(1, shared=rng.randrange(5, 50), own=0, seed=i)[0] for i in range(4)]
    inputs: dict[int, list[int]] = {}
    aborted: set[int] = set()
    outputs: dict[int, Any] = {}
    for rid in range(120):
        base = rng.choice([*roots, *inputs.values()])
        inputs[rid] = [*base[: rng.randrange(1, len(base) + 1)][:80], rng.randrange(50)]
        s = Sampling(temperature=0, max_tokens=rng.randrange(1, 20))
        e.take(fake.run(rid, inputs[rid], s, order=(rng.randrange(5), rng.randrange(5))))
        if rng.random() < 0.4:
            victim = rng.randrange(rid + 1)
            e.take(Abort(victim))
            aborted.add(victim)
        for _ in range(rng.randrange(4)):
            fake.step(e, outputs)
            e.scheduler.check()
    fake.drive(e, [], outputs)
    e.scheduler.check()
    for rid, ids in inputs.items():
        output = outputs[rid]
        assert output.ids == fake.greedy(ids, len(output.ids))
        assert output.finish.reason == "length" or rid in aborted
    assert e.cache.n_available == e.cache.n_pages
    e.cache.reset()
    e.scheduler.check()
    assert e.cache.stats().n_free == e.cache.n_pages


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"ids": []}, "bad_program", "empty"),
        ({"ids": [1] * 64}, "prompt_too_long", "at least 65 tokens; this model's maximum context length is 64"),
        ({"ids": [1, 50]}, "bad_program", "token 50"),
        ({"ids": [-1, 1]}, "bad_program", "token -1"),
        ({"stop_ids": b"\xff\xff\xff\xff"}, "bad_message", "stop_ids has a negative id"),
        ({"sampling": Sampling(logit_bias={50: 1.0})}, "bad_program", "logit_bias has token 50"),
        ({"score_from": 0}, "bad_message", "score_from is 0"),
        ({"n_done": 2}, "bad_message", "n_done is 2"),
        ({"n_done": -1}, "bad_message", "n_done is -1"),
        ({"stop_ids": b"123"}, "bad_message", "not a multiple of 4"),
        ({"rid": 7}, "bad_message", "request 7 exists already"),
    ]
    + [
        ({"sampling": Sampling(**{name: value})}, "bad_program", f"{name} is {value}")
        for name, value in {
            "max_tokens": -1,
            "min_tokens": -1,
            "temperature": -0.5,
            "top_p": 0.0,
            "top_k": 0,
            "min_p": 1.5,
            "repetition_penalty": 0.0,
            "frequency_penalty": float("inf"),
            "presence_penalty": float("-inf"),
            "top_logprobs": -1,
        }.items()
    ],
)
def test_invalid_request_fails_alone_with_its_code(
    fake: ModuleType, fields: dict[str, Any], code: str, message: str
) -> None:
    e = fake.engine(context=64)
    e.take(fake.run(7, [1, 2, 3]))
    whole = {"rid": 8, "ids": [1, 2]} | fields
    e.take(fake.run(whole.pop("rid"), whole.pop("ids"), **whole))
    outputs = fake.drive(e, [], check=True)
    failed = outputs[fields.get("rid", 8)].failed
    assert failed.code == code
    assert message in failed.message
    assert outputs[7].ids == fake.greedy([1, 2, 3], 8)


def test_model_error_fails_only_its_step(fake: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = dict(enumerate(prompts(4)))
    e = fake.engine()
    outputs = fake.drive(e, [fake.run(rid, inputs[rid]) for rid in (0, 1)])
    forward, e.model.model.forward = e.model.model.forward, lambda *_: 1 / 0
    e.take(fake.run(2, inputs[2]))
    fake.step(e, outputs)
    e.model.model.forward = forward
    assert outputs[2].failed.code == "error"
    assert "division by zero" in outputs[2].failed.message
    assert "ZeroDivisionError" in capsys.readouterr().err
    e.scheduler.check()
    outputs |= fake.drive(e, [fake.run(rid, inputs[rid]) for rid in (2, 3)], check=True)
    assert_greedy(fake, outputs, inputs)


def test_nan_logits_fail_only_their_request(fake: ModuleType) -> None:
    inputs = dict(enumerate(prompts(3)))
    e = fake.engine()
    forward = e.model.model.forward

    def broken(*args: Any) -> Any:
        logits = forward(*args)
        if len(logits) == 3:
            logits[1] = float("nan")
        return logits

    e.model.model.forward = broken
    outputs = fake.drive(e, [fake.run(rid, ids) for rid, ids in inputs.items()], check=True)
    assert "NaN" in outputs[1].failed.message
    assert_greedy(fake, outputs, {rid: inputs[rid] for rid in (0, 2)})


def test_finish_reports_the_start_time(fake: ModuleType) -> None:
    e = fake.engine(max_running=1)
    now = 9.0

    def clock() -> float:
        nonlocal now
        now += 1
        return now

    e.clock = clock
    inputs = [fake.run(rid, [rid, 1, 2, 3]) for rid in (0, 1)]
    started = [output.finish.started for output in fake.drive(e, inputs).values()]
    assert started == [10.0, 10.0 + fake.GREEDY.max_tokens], "the second starts when the first ends"
