"""The scheduler, through an engine on the fake model: every answer is checked against the naive loop."""

from __future__ import annotations

import random
from array import array
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.protocol.wire import Abort, Sampling


def prompts(n: int, shared: int = 40, own: int = 5, seed: int = 0) -> list[list[int]]:
    """n prompts of one prefix."""
    chance = random.Random(seed)
    prefix = [chance.randrange(50) for _ in range(shared)]
    return [prefix + [chance.randrange(50) for _ in range(own)] for _ in range(n)]


def assert_greedy(fake: ModuleType, outputs: dict[int, Any], asked: dict[int, list[int]], n: int = 8) -> None:
    for rid, ids in asked.items():
        assert outputs[rid].failed is None
        assert outputs[rid].ids == fake.greedy(ids, n), f"request {rid}"
        assert outputs[rid].finish.reason == "length"
        assert outputs[rid].finish.n_prompt == len(ids)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("step_tokens", [7, 512])
def test_answers_equal_the_naive_loop(fake: ModuleType, cache: bool, page: int, step_tokens: int) -> None:
    asked = dict(enumerate(prompts(9)))
    e = fake.engine(page=page, step_tokens=step_tokens, max_running=5, cache=cache, n_pages=1024)
    outputs = fake.drive(e, [fake.run(rid, ids) for rid, ids in asked.items()], check=True)
    assert_greedy(fake, outputs, asked)


def test_requests_with_one_new_prefix_compute_it_once(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(8, shared=100, own=5)))
    for step_tokens in (32, 512):
        e = fake.engine(step_tokens=step_tokens)
        outputs = fake.drive(e, [fake.run(rid, ids, order=(0, rid)) for rid, ids in asked.items()], check=True)
        assert_greedy(fake, outputs, asked)
        assert e.scheduler.counts["computed_tokens"] == 100 + 8 * 5 + 8 * 7
        assert sum(o.finish.n_cached for o in outputs.values()) == 7 * 100


def test_a_few_shared_tokens_are_not_waited_for(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(4, shared=scheduler.WORTH_WAITING - 1, own=20)))
    e = fake.engine()
    assert_greedy(fake, fake.drive(e, [fake.run(rid, ids) for rid, ids in asked.items()]), asked)
    assert e.scheduler.counts["waits"] == 0
    assert len(e.model.model.steps) == 8


def test_equal_prompts_cost_one_prefill(fake: ModuleType) -> None:
    (ids,) = prompts(1, shared=60, own=0)
    e = fake.engine()
    fake.drive(e, [fake.run(rid, ids, Sampling(max_tokens=1), sample=rid) for rid in range(8)])
    assert e.scheduler.counts["computed_tokens"] == 60 + 7


def test_a_second_run_computes_one_prompt_token_per_request(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(6)))
    e = fake.engine()
    for _ in range(2):
        before = e.scheduler.counts["computed_tokens"]
        outputs = fake.drive(e, [fake.run(rid, ids) for rid, ids in asked.items()])
        assert_greedy(fake, outputs, asked)
    assert e.scheduler.counts["computed_tokens"] - before == 6 * 8
    assert [o.finish.n_cached for o in outputs.values()] == [44] * 6


def test_namespaces_share_nothing(fake: ModuleType) -> None:
    (ids,) = prompts(1, shared=60, own=0)
    e = fake.engine()
    outputs = fake.drive(e, [fake.run(rid, ids, namespace=bytes([rid % 2])) for rid in range(4)], check=True)
    assert_greedy(fake, outputs, dict.fromkeys(range(4), ids))
    assert [outputs[rid].finish.n_cached for rid in range(4)] == [0, 0, 59, 59]


def test_decodes_go_first_and_chunks_take_the_rest(fake: ModuleType) -> None:
    short, long = prompts(1, shared=4)[0], prompts(1, shared=95, seed=1)[0]
    e = fake.engine(step_tokens=16)
    e.take(fake.run(1, short, Sampling(temperature=0, max_tokens=20), order=(1,)))
    outputs: dict[int, Any] = {}
    fake.step(e, outputs)
    e.take(fake.run(0, long, order=(0,)))  # first in rank, and still no decode waits for it
    for n in range(1, 7):
        fake.step(e, outputs)
        assert len(outputs[1].ids) == n + 1
    assert e.model.model.steps == [(9,), (1, 15), (1, 15), (1, 15), (1, 15), (1, 15), (1, 15)]


def test_budget_and_places_are_never_exceeded(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(30, shared=3, own=20)))
    e = fake.engine(step_tokens=10, max_running=4)
    assert_greedy(fake, fake.drive(e, [fake.run(rid, ids) for rid, ids in asked.items()]), asked)
    assert max(map(sum, e.model.model.steps)) == 10
    assert max(map(len, e.model.model.steps)) <= 4


def test_requests_start_in_order_whenever_they_came(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(6, shared=0, own=5)))
    orders = {0: (7,), 1: (1, 5), 2: (1, 2), 3: (), 4: (1, 2, 0), 5: (0,)}
    e = fake.engine(max_running=1)
    outputs: dict[int, Any] = {}
    ended = list(fake.drive(e, [fake.run(r, i, order=orders[r]) for r, i in asked.items()], outputs))
    assert ended == [3, 5, 2, 4, 1, 0]


def test_who_waited_for_long_goes_first(fake: ModuleType) -> None:
    now = 0.0
    e = fake.engine(max_running=1)
    e.clock = lambda: now
    late = prompts(60, shared=0, own=3)
    e.take(fake.run(0, late[0], order=(9,)))
    outputs: dict[int, Any] = {}
    for rid in range(1, 40):  # always two that have a better order
        e.take(fake.run(rid, late[rid], Sampling(max_tokens=1, temperature=0), order=(0, rid)))
        if rid > 2:
            fake.step(e, outputs)
            now += 1.0
        if 0 in outputs:
            break
    assert 10 < now < 15


# ---- short of pages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("foresight", [0, 1])
def test_a_tiny_pool_finishes_everything(
    fake: ModuleType, page: int, foresight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", foresight)
    asked = dict(enumerate(prompts(12, shared=20, own=15)))
    s = Sampling(max_tokens=30, temperature=0)
    e = fake.engine(page=page, n_pages=-(-96 // page), step_tokens=24)
    outputs = fake.drive(e, [fake.run(rid, ids, s) for rid, ids in asked.items()], check=True)
    assert_greedy(fake, outputs, asked, 30)
    assert (e.scheduler.counts["retractions"] > 0) == (foresight == 0)


@pytest.mark.parametrize("page", [1, 4, 16])
def test_one_that_just_fits_finishes_whatever_lies_in_the_tree(fake: ModuleType, page: int) -> None:
    """Also where its own partly shared page has to be copied, and there is no page for the copy."""
    ids = prompts(1, shared=42, own=0)[0]
    for n in (1, 7, 16, 33):
        e = fake.engine(page=page, n_pages=48 // page)
        fake.drive(e, [fake.run(0, [*ids[:n], 49])])
        outputs = fake.drive(e, [fake.run(1, ids, Sampling(max_tokens=7, temperature=0))], check=True)
        assert_greedy(fake, outputs, {1: ids}, 7)


def test_samples_do_not_depend_on_company_chunks_or_retractions(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    ids = prompts(1)[0]
    kinds = [Sampling(max_tokens=30, top_p=0.9), Sampling(max_tokens=30, temperature=0.7, presence_penalty=1.0)]
    runs = [fake.run(r, ids, kinds[r % 2], seed=r // 4, sample=r % 4) for r in range(12)]
    alone = {run.rid: fake.drive(fake.engine(), [run])[run.rid].ids for run in runs}
    assert len({tuple(said) for said in alone.values()}) == 12
    e = fake.engine(step_tokens=13, page=4, n_pages=30)
    together = fake.drive(e, runs, check=True)
    assert {rid: output.ids for rid, output in together.items()} == alone
    assert e.scheduler.counts["retractions"] > 0


def test_one_that_can_never_fit_fails_at_once_and_says_the_numbers(fake: ModuleType) -> None:
    e = fake.engine(n_pages=4, context=400)
    outputs = fake.drive(
        e, [fake.run(0, [1] * 60, Sampling(max_tokens=6)), fake.run(1, [1] * 60, Sampling(max_tokens=5))]
    )
    assert outputs[0].failed.code == "out_of_memory"
    for number in ("5 pages", "60 tokens", "66 with", "4 of 16 slots"):
        assert number in outputs[0].failed.message
    assert outputs[1].finish.reason == "length"


# ---- ends ----------------------------------------------------------------------------------------------------------


def test_a_stop_id_ends_the_output_and_is_not_in_it(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    said = fake.greedy(ids, 8)
    stop = said[4]
    n = said.index(stop)
    outputs = fake.drive(fake.engine(), [fake.run(0, ids, stop_ids=fake.int32([stop]))])
    assert outputs[0].ids == said[:n]
    assert (outputs[0].finish.reason, outputs[0].finish.stop_id) == ("stop", stop)


def test_min_tokens_holds_a_stop_id_back(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    stop = fake.greedy(ids, 1)
    s = Sampling(temperature=0, max_tokens=8, min_tokens=3)
    stop_ids = fake.int32([*stop, 70_000])  # a tokenizer may know more tokens than the model
    outputs = fake.drive(fake.engine(), [fake.run(0, ids, s, stop_ids=stop_ids)])
    assert stop[0] not in outputs[0].ids
    assert len(outputs[0].ids) >= 3


def test_the_context_ends_an_output(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    outputs = fake.drive(fake.engine(context=48), [fake.run(0, ids)], check=True)
    assert_greedy(fake, outputs, {0: ids}, 3)


def test_a_replay_goes_on_where_an_engine_died(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    for sampling in (fake.GREEDY, Sampling(max_tokens=8, seed=3), Sampling(max_tokens=8, frequency_penalty=1.5)):
        whole = fake.drive(fake.engine(), [fake.run(0, ids, sampling, seed=3)])[0]
        for n in (1, 5, 7):
            rest = fake.drive(fake.engine(), [fake.run(0, ids + whole.ids[:n], sampling, seed=3, n_done=n)])[0]
            assert rest.ids == whole.ids[n:]
            assert rest.finish.n_prompt == len(ids)
    done = fake.drive(fake.engine(), [fake.run(0, ids + whole.ids, sampling, seed=3, n_done=8)])[0]
    assert (done.ids, done.finish.reason) == ([], "length")


def test_no_output_only_fills_the_tree(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    e = fake.engine()
    outputs = fake.drive(e, [fake.run(0, ids, Sampling(max_tokens=0))], check=True)
    assert (outputs[0].ids, outputs[0].finish.reason) == ([], "length")
    assert fake.drive(e, [fake.run(1, ids)])[1].finish.n_cached == len(ids) - 1


@pytest.mark.parametrize("step_tokens", [7, 512])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_scores_are_logprobs_of_the_prompt(fake: ModuleType, step_tokens: int, max_tokens: int) -> None:
    """Whatever is in the tree already: it holds no logits, so what stands before a scored token is computed again."""
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


def test_scores_after_a_replay_are_those_of_the_prompt(fake: ModuleType) -> None:
    ids = prompts(1)[0]
    calm = fake.drive(fake.engine(), [fake.run(0, ids, score_from=7)])[0]
    for n in (0, 1, 5):
        again = fake.drive(fake.engine(), [fake.run(0, ids + calm.ids[:n], score_from=7, n_done=n)], check=True)[0]
        assert again.ids == calm.ids[n:]
        assert again.finish.scores == calm.finish.scores


def test_scores_survive_a_retraction(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    asked = dict(enumerate(prompts(6, shared=10, own=20)))
    runs = [fake.run(r, i, Sampling(max_tokens=30, temperature=0), score_from=5) for r, i in asked.items()]
    calm = fake.drive(fake.engine(step_tokens=16), runs)
    e = fake.engine(step_tokens=16, page=4, n_pages=20)
    pressed = fake.drive(e, runs, check=True)
    assert e.scheduler.counts["retractions"] > 0
    assert_greedy(fake, pressed, asked, 30)
    assert all(len(o.finish.scores) == 4 * 25 for o in pressed.values())
    assert {r: o.finish.scores for r, o in pressed.items()} == {r: o.finish.scores for r, o in calm.items()}


# ---- aborts --------------------------------------------------------------------------------------------------------


def test_an_abort_frees_everything_wherever_it_meets_the_request(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(6, shared=60)))
    e = fake.engine(step_tokens=16, max_running=2)
    outputs: dict[int, Any] = {}
    for rid, ids in asked.items():
        e.take(fake.run(rid, ids))
    fake.step(e, outputs)
    assert e.scheduler.stats()["running"] == 1  # the owner of the prefix; the others wait
    for rid in (0, 3, 99):  # running, waiting, unknown
        e.take(Abort(rid))
    e.scheduler.check()
    fake.drive(e, [], outputs, check=True)
    assert [outputs[rid].finish.reason for rid in asked] == ["abort"] + ["length"] * 2 + ["abort"] + ["length"] * 2
    assert_greedy(fake, outputs, {rid: ids for rid, ids in asked.items() if rid not in (0, 3)})
    assert e.cache.n_available == 256


def test_who_waits_for_a_prefix_can_be_aborted(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(4, shared=60)))
    e = fake.engine()
    outputs: dict[int, Any] = {}
    for rid, ids in asked.items():
        e.take(fake.run(rid, ids))
    fake.step(e, outputs)
    assert e.scheduler.stats()["waits"] == 3
    e.take(Abort(2))
    e.scheduler.check()
    fake.drive(e, [], outputs, check=True)
    assert outputs[2].finish.reason == "abort"
    assert_greedy(fake, outputs, {rid: asked[rid] for rid in (0, 1, 3)})


def test_when_the_owner_of_a_prefix_fails_the_first_that_waits_takes_over(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(4, shared=100)))
    e = fake.engine(step_tokens=110, max_running=8)
    outputs: dict[int, Any] = {}
    for rid, ids in asked.items():
        e.take(fake.run(rid, ids))
    plan = e.scheduler.plan(0.0)
    assert [w.request.rid for w in plan.works] == [0]
    e.scheduler.fail(plan, "error", "lost")
    assert e.scheduler.stats()["waits"] == 3
    fake.drive(e, [], outputs, check=True)
    assert_greedy(fake, outputs, {rid: asked[rid] for rid in (1, 2, 3)})
    assert e.scheduler.counts["computed_tokens"] == 100 + 3 * 5 + 3 * 7


@pytest.mark.parametrize("seed", range(6))
def test_a_storm_of_aborts_loses_no_page_and_spoils_no_answer(
    fake: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that share prefixes come and are aborted at any moment, in a pool that is too small for them."""
    monkeypatch.setattr(scheduler, "FORESIGHT", seed % 3 / 2)
    chance = random.Random(seed)
    page = chance.choice([1, 4, 16])
    e = fake.engine(page=page, n_pages=160 // page, step_tokens=chance.choice([9, 33, 200]), max_running=7)
    roots = [prompts(1, shared=chance.randrange(5, 50), own=0, seed=i)[0] for i in range(4)]
    asked: dict[int, list[int]] = {}
    aborted: set[int] = set()
    outputs: dict[int, Any] = {}
    for rid in range(120):
        base = chance.choice([*roots, *asked.values()])
        asked[rid] = [*base[: chance.randrange(1, len(base) + 1)][:80], chance.randrange(50)]
        s = Sampling(temperature=0, max_tokens=chance.randrange(1, 20))
        e.take(fake.run(rid, asked[rid], s, order=(chance.randrange(5), chance.randrange(5))))
        if chance.random() < 0.4:
            victim = chance.randrange(rid + 1)
            e.take(Abort(victim))
            aborted.add(victim)
        for _ in range(chance.randrange(4)):
            fake.step(e, outputs)
            e.scheduler.check()
    fake.drive(e, [], outputs)
    e.scheduler.check()
    for rid, ids in asked.items():
        got = outputs[rid]
        assert got.ids == fake.greedy(ids, len(got.ids))
        assert got.finish.reason == "length" or rid in aborted
    assert e.cache.n_available == e.cache.n_pages
    e.cache.reset()
    e.scheduler.check()
    assert e.cache.stats().n_free == e.cache.n_pages


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"ids": []}, "bad_program", "empty"),
        ({"ids": [1] * 64}, "prompt_too_long", "64 tokens, but the context is 64"),
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
def test_what_cannot_be_served_is_refused_alone(fake: ModuleType, fields: dict[str, Any], code: str, says: str) -> None:
    e = fake.engine(context=64)
    e.take(fake.run(7, [1, 2, 3]))
    whole = {"rid": 8, "ids": [1, 2]} | fields
    e.take(fake.run(whole.pop("rid"), whole.pop("ids"), **whole))
    outputs = fake.drive(e, [], check=True)
    failed = outputs[fields.get("rid", 8)].failed
    assert failed.code == code
    assert says in failed.message
    assert outputs[7].ids == fake.greedy([1, 2, 3], 8)


def test_a_model_that_raises_fails_its_step_and_no_other(fake: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    asked = dict(enumerate(prompts(4)))
    e = fake.engine()
    outputs = fake.drive(e, [fake.run(rid, asked[rid]) for rid in (0, 1)])
    good, e.model.model.forward = e.model.model.forward, lambda *_: 1 / 0
    e.take(fake.run(2, asked[2]))
    fake.step(e, outputs)
    e.model.model.forward = good
    assert outputs[2].failed.code == "error"
    assert "division by zero" in outputs[2].failed.message
    assert "ZeroDivisionError" in capsys.readouterr().err
    e.scheduler.check()
    outputs |= fake.drive(e, [fake.run(rid, asked[rid]) for rid in (2, 3)], check=True)
    assert_greedy(fake, outputs, asked)


def test_nan_fails_the_request_that_met_it(fake: ModuleType) -> None:
    asked = dict(enumerate(prompts(3)))
    e = fake.engine()
    good = e.model.model.forward

    def broken(*args: Any) -> Any:
        logits = good(*args)
        if len(logits) == 3:
            logits[1] = float("nan")
        return logits

    e.model.model.forward = broken
    outputs = fake.drive(e, [fake.run(rid, ids) for rid, ids in asked.items()], check=True)
    assert "NaN" in outputs[1].failed.message
    assert_greedy(fake, outputs, {rid: asked[rid] for rid in (0, 2)})


# ---- plans ---------------------------------------------------------------------------------------------------------


def test_the_same_messages_give_the_same_plans(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)

    def plans() -> list[Any]:
        chance = random.Random(1)
        asked = prompts(40, shared=30)
        e = fake.engine(page=4, n_pages=40, step_tokens=32, max_running=8)
        plan, seen = e.scheduler.plan, []

        def spy(now: float) -> Any:
            made = plan(now)
            if made is not None:
                seen.append(([(w.request.rid, *w[2:], tuple(w.lease.pages)) for w in made.works], made.copies))
            return made

        e.scheduler.plan = spy
        for rid, ids in enumerate(asked):
            e.take(fake.run(rid, ids, Sampling(max_tokens=30, temperature=0), order=(chance.randrange(5),)))
            if chance.random() < 0.2:
                e.take(Abort(chance.randrange(40)))
            e.step()
        fake.drive(e, [])
        assert e.scheduler.counts["retractions"] > 0
        return seen

    assert plans() == plans()


def test_a_finish_tells_when_the_request_was_started(fake: ModuleType) -> None:
    e = fake.engine(max_running=1)
    now = 9.0

    def clock() -> float:
        nonlocal now
        now += 1
        return now

    e.clock = clock
    asked = [fake.run(rid, [rid, 1, 2, 3]) for rid in (0, 1)]
    started = [output.finish.started for output in fake.drive(e, asked).values()]
    assert started == [10.0, 10.0 + fake.GREEDY.max_tokens], "the second when the first had made room"
