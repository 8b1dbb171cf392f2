"""Drafts change nothing but the number of steps: outputs, logprobs and ends are those without, whoever proposes what.

The drafter here is told by the test what to say; the real ones have tests of their own.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.protocol.wire import Abort, Sampling
from forms import short_form

PROMPT = range(1, 12)


def right(fake: ModuleType) -> Any:
    """What the fake model says, greedily."""
    return lambda request, n: fake.greedy(request.ids, n)


def noisy(fake: ModuleType, share: float = 0.6, known: dict[int, list[int]] | None = None, seed: int = 3) -> Any:
    """What the fake model says, greedily or as it is `known` by rid, but for some tokens; of any length."""
    chance = random.Random(seed)

    def says(request: Request, n: int) -> list[int]:
        draft = known[request.rid][request.n_out :][:n] if known else fake.greedy(request.ids, n)
        return [
            t if chance.random() < share else chance.randrange(fake.VOCAB) for t in draft[: chance.randrange(n + 1)]
        ]

    return says


def drafters(fake: ModuleType, shape: str, share: float = 0.6, known: dict[int, list[int]] | None = None) -> Any:
    """One that proposes chains, or three whose chains make trees."""
    return [noisy(fake, share, known, seed) for seed in range(3 if shape == "tree" else 1)]


SHAPES = ("chain", "tree")


def test_right_drafts_take_fewer_steps(fake: ModuleType) -> None:
    e = fake.told(right(fake))
    outputs = fake.drive(e, [fake.run(0, PROMPT, Sampling(temperature=0.0, max_tokens=20))], check=True)
    assert outputs[0].ids == fake.greedy(PROMPT, 20)
    assert e.scheduler.counts["steps"] == 3, "a draft of 8 and one more, twice, and the two that are left"
    finish = outputs[0].finish
    assert (finish.n_drafted, finish.n_accepted) == (17, 17)
    assert finish.drafts == {"told": (17, 17)}
    assert array("i", finish.drafted).tolist() == [*range(8), *range(9, 17), 18]
    assert e.scheduler.stats()["accepted_told"] == 17


def test_a_tree_is_right_where_any_of_its_branches_is(fake: ModuleType) -> None:
    """One drafter knows the first two of any five tokens, another the rest: each is right where the other is not."""

    def says(is_known: Any) -> Any:
        def says(request: Request, n: int) -> list[int]:
            said = fake.greedy(request.ids, n)
            return [t if is_known((request.n_out + k) % 5) else (t + 1) % fake.VOCAB for k, t in enumerate(said)]

        return says

    e = fake.told([says(lambda at: at < 2), says(lambda at: at >= 2)], page=4)
    outputs = fake.drive(e, [fake.run(0, PROMPT, Sampling(temperature=0.0, max_tokens=30))], check=True)
    assert outputs[0].ids == fake.greedy(PROMPT, 30)
    stats = e.drafting.stats()
    assert stats["accepted_told"] > 5
    assert stats["accepted_other"] > 5, "beside the other's"
    assert outputs[0].finish.n_accepted == stats["accepted_told"] + stats["accepted_other"]


def test_wrong_drafts_cost_rows_alone(fake: ModuleType) -> None:
    e = fake.told(lambda request, n: [(fake.greedy(request.ids, 1)[0] + 1) % fake.VOCAB] * n)
    outputs = fake.drive(e, [fake.run(0, PROMPT, Sampling(temperature=0.0, max_tokens=20))], check=True)
    assert outputs[0].ids == fake.greedy(PROMPT, 20)
    assert outputs[0].finish.n_accepted == 0
    assert outputs[0].finish.drafted == b""
    assert e.scheduler.counts["computed_tokens"] == 11 + 19
    assert e.cache.stats().n_leased == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_of_a_refused_draft_is_in_the_tree(fake: ModuleType, shape: str) -> None:
    """Pages of one slot are published token by token; what was refused must be in none of them."""
    e = fake.told(drafters(fake, shape), page=1)
    fake.drive(e, [fake.run(0, PROMPT, Sampling(temperature=0.0, max_tokens=30))], check=True)
    text = [*PROMPT, *fake.greedy(PROMPT, 30)]
    assert e.cache.tree.n_tokens == len(text) - 1
    root = e.cache.tree.roots[b""]
    assert e.cache.tree.match(root, fake.int32(text), len(text))[1] == len(text) - 1


SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, max_tokens=24),
    "sampled": Sampling(temperature=1.0, max_tokens=24),
    "filtered": Sampling(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, max_tokens=24),
    "penalties": Sampling(
        temperature=0.7, frequency_penalty=0.9, presence_penalty=0.5, repetition_penalty=1.3, max_tokens=24
    ),
    "greedy penalties": Sampling(temperature=0.0, frequency_penalty=0.9, repetition_penalty=1.3, max_tokens=24),
    "bias": Sampling(temperature=0.0, logit_bias={7: 2.0, 9: -5.0}, max_tokens=24),
    "min_tokens": Sampling(temperature=1.0, min_tokens=9, max_tokens=24),
    "logprobs": Sampling(temperature=1.0, logprobs=True, top_logprobs=3, max_tokens=24),
}


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_outputs_with_drafts_and_without(fake: ModuleType, sampling: Sampling, page: int, shape: str) -> None:
    """Sampled ones too: a draw depends on its position alone, not on who proposed what."""
    stops = fake.int32([3, 17, 30])
    runs = [
        fake.run(rid, range(1, 5 + rid), sampling, stop_ids=stops, seed=rid // 2, sample=rid % 2, order=(0, rid))
        for rid in range(8)
    ]
    plain = fake.drive(fake.engine(speculate="off", page=page), runs)
    known = {rid: output.ids for rid, output in plain.items()}
    e = fake.told(drafters(fake, shape, known=known), page=page, step_tokens=23 if shape == "chain" else 64)
    drafted = fake.drive(e, runs, check=True)
    assert sum(o.finish.n_accepted for o in drafted.values()) > 20
    for rid, output in plain.items():
        assert drafted[rid].ids == output.ids
        assert drafted[rid].logprobs == output.logprobs
        one, other = drafted[rid].finish, output.finish
        assert (one.reason, one.stop_id, one.n_prompt) == (other.reason, other.stop_id, other.n_prompt)


def test_a_draft_reaches_up_to_what_ends_the_output(fake: ModuleType) -> None:
    """A stop id in the middle of a draft ends the output there, and so does the length."""
    said = fake.greedy(PROMPT, 20)
    e = fake.told(right(fake))
    runs = [fake.run(0, PROMPT, Sampling(temperature=0.0, max_tokens=20), stop_ids=fake.int32([said[5]]))]
    output = fake.drive(e, runs, check=True)[0]
    assert output.ids == said[: said.index(said[5])]
    assert (output.finish.reason, output.finish.stop_id) == ("stop", said[5])
    output = fake.drive(e, [fake.run(1, PROMPT, Sampling(temperature=0.0, max_tokens=4))], check=True)[1]
    assert output.ids == said[:4]
    assert output.finish.reason == "length"


@pytest.mark.parametrize("shape", SHAPES)
def test_short_of_pages(fake: ModuleType, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """Drafts take the pages that are left; nobody is retracted for one, and those that are go on as they would."""
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)  # start what fits now, whatever comes
    runs = [fake.run(rid, [rid + 1, *PROMPT], Sampling(temperature=0.0, max_tokens=40)) for rid in range(6)]
    for n_pages in (14, 20, 60):
        e = fake.told(drafters(fake, shape), n_pages=n_pages, page=4)
        outputs = fake.drive(e, runs, check=True)
        for rid in range(6):
            assert outputs[rid].ids == fake.greedy([rid + 1, *PROMPT], 40)
        if n_pages == 14:
            assert e.scheduler.counts["retractions"] > 0


@pytest.mark.parametrize("shape", SHAPES)
def test_one_that_is_aborted_leaves_nothing(fake: ModuleType, shape: str) -> None:
    e = fake.told(drafters(fake, shape))
    outputs: dict[int, Any] = {}
    for rid in range(4):
        e.take(fake.run(rid, [rid + 1, *PROMPT], Sampling(temperature=0.0, max_tokens=200)))
    for i in range(12):
        fake.step(e, outputs)
        e.scheduler.check()
        if i % 3 == 0:
            e.take(Abort(i // 3))
    fake.step(e, outputs)
    assert e.scheduler.is_idle
    assert sorted(e.drafting.drafters[0].ended) == [0, 1, 2, 3]
    for rid in range(4):
        n = len(outputs[rid].ids)
        assert outputs[rid].ids == fake.greedy([rid + 1, *PROMPT], n)
    assert e.cache.stats().n_leased == 0


def test_a_step_that_fails_fails_its_requests_alone(fake: ModuleType) -> None:
    model = fake.FakeModel()
    e = fake.told(right(fake), model)
    outputs: dict[int, Any] = {}
    e.take(fake.run(0, PROMPT))
    forward = model.forward
    model.forward = lambda *_: 1 / 0
    fake.step(e, outputs)
    model.forward = forward
    assert "division" in outputs[0].failed.message
    e.scheduler.check()
    assert fake.drive(e, [fake.run(1, PROMPT)], check=True)[1].ids == fake.greedy(PROMPT, 8)


def test_the_budget_of_a_step_holds(fake: ModuleType) -> None:
    model = fake.FakeModel()
    e = fake.told(right(fake), model, step_tokens=16)
    runs = [fake.run(rid, [rid + 1, *PROMPT], Sampling(temperature=0.0, max_tokens=30)) for rid in range(5)]
    fake.drive(e, runs, check=True)
    assert max(map(sum, model.steps)) == 16


# ---- the law -------------------------------------------------------------------------------------------------------

N = 2000


LAWS = (
    (Sampling(temperature=1.0, max_tokens=3), 0.0),
    (Sampling(temperature=1.0, max_tokens=3), 1.0),
    (Sampling(temperature=0.7, top_k=5, max_tokens=3), 0.5),
    (Sampling(temperature=1.3, top_p=0.8, logit_bias={11: 1.5}, max_tokens=3), 0.7),
    (Sampling(temperature=1.0, min_p=0.1, max_tokens=3), 0.5),
    (Sampling(temperature=1.0, frequency_penalty=1.5, repetition_penalty=1.2, max_tokens=3), 0.5),
)


@pytest.mark.parametrize(
    ("k", "shape"), short_form(product(range(len(LAWS)), SHAPES), lambda k, shape: SHAPES[k % 2] == shape)
)
def test_the_second_token_is_distributed_as_the_model_says(fake: ModuleType, k: int, shape: str) -> None:
    """Pearson's chi-square of the token behind a given first one, whatever share of the drafts was right."""
    sampling, share = LAWS[k]
    e = fake.told(drafters(fake, shape, share), max_running=64)
    first = int(fake.logits_after(PROMPT).argmax())
    runs = [fake.run(rid, PROMPT, sampling, seed=rid) for rid in range(N)]
    outputs = fake.drive(e, runs, limit=10**6)
    assert share == 0.0 or sum(o.finish.n_accepted for o in outputs.values()) > 0
    seconds = [o.ids[1] for o in outputs.values() if o.ids[0] == first]
    counts = np.bincount(seconds, minlength=fake.VOCAB)
    p = law([*PROMPT, first], sampling, fake)
    assert counts[p == 0].sum() == 0
    expected = len(seconds) * p
    is_rare = expected < 5
    cells = [(counts[~is_rare], expected[~is_rare])]
    if expected[is_rare].sum():
        cells.append((counts[is_rare].sum(keepdims=True), expected[is_rare].sum(keepdims=True)))
    statistic = sum((((c - x) ** 2) / x).sum() for c, x in cells)
    n_free = sum(len(c) for c, _ in cells) - 1
    assert statistic < n_free + 4 * (2 * n_free) ** 0.5 + 4, (statistic, n_free)  # about 1 in 10,000


def law(ids: Sequence[int], s: Sampling, fake: ModuleType) -> np.ndarray:
    """float64 [vocab]: the plain definition of what `Sampling` asks for."""
    x = fake.logits_after(ids).astype(np.float64)
    for token in set(ids):
        x[token] = x[token] / s.repetition_penalty if x[token] > 0 else x[token] * s.repetition_penalty
    for token in ids[len(PROMPT) :]:
        x[token] -= s.frequency_penalty
    for token, bias in s.logit_bias.items():
        x[token] += bias
    p = np.exp((x - x.max()) / s.temperature)
    p /= p.sum()
    p[p < s.min_p * p.max()] = 0
    p /= p.sum()
    order = np.argsort(-p)
    kept = order[: s.top_k] if s.top_k > 0 else order
    n = int((np.cumsum(p[kept]) - p[kept] < s.top_p * p[kept].sum()).sum())
    q = np.zeros_like(p)
    q[kept[:n]] = p[kept[:n]]
    return q / q.sum()
