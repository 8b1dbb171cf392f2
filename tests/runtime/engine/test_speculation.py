"""Drafts change only the number of steps: outputs, logprobs and finish reasons are the same as without them.

The drafters here are scripted; the real ones have their own tests.
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
from forms import in_short, short_form

PROMPT = range(1, 12)


def greedy_script(fake: ModuleType) -> Any:
    """A script that proposes the fake model's greedy output."""
    return lambda request, n: fake.greedy(request.ids, n)


def noisy(fake: ModuleType, share: float = 0.6, known: dict[int, list[int]] | None = None, seed: int = 3) -> Any:
    """A script that proposes the greedy or `known` output with a `share` of correct tokens, cut at random."""
    rng = random.Random(seed)

    def script(request: Request, n: int) -> list[int]:
        draft = known[request.rid][request.n_out :][:n] if known else fake.greedy(request.ids, n)
        return [t if rng.random() < share else rng.randrange(fake.VOCAB) for t in draft[: rng.randrange(n + 1)]]

    return script


def drafters(fake: ModuleType, shape: str, share: float = 0.6, known: dict[int, list[int]] | None = None) -> Any:
    """One script for chains, three for trees."""
    return [noisy(fake, share, known, seed) for seed in range(3 if shape == "tree" else 1)]


SHAPES = ("chain", "tree")


def test_correct_drafts_reduce_steps(fake: ModuleType) -> None:
    e = fake.engine_with_drafts(greedy_script(fake))
    outputs = fake.drive(e, [fake.run(0, PROMPT, Sampling(temperature=0.0, max_tokens=20))], check=True)
    assert outputs[0].ids == fake.greedy(PROMPT, 20)
    assert e.scheduler.counts["steps"] == 3, "twice a draft of 8 and one token, then the remaining two"
    finish = outputs[0].finish
    assert (finish.n_drafted, finish.n_accepted) == (17, 17)
    assert finish.drafts == {"first": (17, 17)}
    assert array("i", finish.drafted).tolist() == [*range(8), *range(9, 17), 18]
    assert e.scheduler.stats()["accepted_first"] == 17


def test_drafter_that_fails_leaves_the_outputs_as_they_are(fake: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    def fails(request: Request, n: int) -> list[int]:
        if request.rid in (0, 2) and request.n_out > 4:
            raise RuntimeError("a bug of the drafter")
        return fake.greedy(request.ids, n)  # type: ignore[no-any-return]

    e = fake.engine_with_drafts([fails, greedy_script(fake)])
    for rids in ((0, 1), (2, 3)):
        runs = [fake.run(rid, PROMPT, Sampling(temperature=0.0, max_tokens=20)) for rid in rids]
        outputs = fake.drive(e, runs, check=True)
        assert [outputs[rid].ids for rid in rids] == [fake.greedy(PROMPT, 20)] * 2
        assert all(outputs[rid].finish.drafts["second"][1] for rid in rids), "the other drafter goes on"
    stats = e.scheduler.stats()
    assert (stats["failed_first"], "failed_second" in stats) == (2, False)
    assert capfd.readouterr().err.count("RuntimeError: a bug of the drafter") == 1
    later = fake.drive(e, [fake.run(4, PROMPT, Sampling(temperature=0.0, max_tokens=20))])[4]
    assert later.finish.drafts["first"] == (17, 17), "later requests have its drafts again"


def test_tree_accepts_the_correct_branch(fake: ModuleType) -> None:
    """One drafter knows the first two of every five tokens, and the other knows the rest."""

    def make_script(is_known: Any) -> Any:
        def script(request: Request, n: int) -> list[int]:
            output = fake.greedy(request.ids, n)
            return [t if is_known((request.n_out + k) % 5) else (t + 1) % fake.VOCAB for k, t in enumerate(output)]

        return script

    e = fake.engine_with_drafts([make_script(lambda at: at < 2), make_script(lambda at: at >= 2)], page=4)
    outputs = fake.drive(e, [fake.run(0, PROMPT, Sampling(temperature=0.0, max_tokens=30))], check=True)
    assert outputs[0].ids == fake.greedy(PROMPT, 30)
    stats = e.drafting.stats()
    assert stats["accepted_first"] > 5
    assert stats["accepted_second"] > 5, "both drafters contribute"
    assert outputs[0].finish.n_accepted == stats["accepted_first"] + stats["accepted_second"]


def test_wrong_drafts_change_no_output_and_leak_no_pages(fake: ModuleType) -> None:
    e = fake.engine_with_drafts(lambda request, n: [(fake.greedy(request.ids, 1)[0] + 1) % fake.VOCAB] * n)
    outputs = fake.drive(e, [fake.run(0, PROMPT, Sampling(temperature=0.0, max_tokens=20))], check=True)
    assert outputs[0].ids == fake.greedy(PROMPT, 20)
    assert outputs[0].finish.n_accepted == 0
    assert outputs[0].finish.drafted == b""
    assert e.scheduler.counts["computed_tokens"] == 11 + 19
    assert e.cache.stats().n_leased == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_rejected_drafts_are_not_cached(fake: ModuleType, shape: str) -> None:
    """One-slot pages are published token by token; none may hold a rejected token."""
    e = fake.engine_with_drafts(drafters(fake, shape), page=1)
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


@pytest.mark.parametrize(
    ("shape", "name", "page"),
    short_form(
        product(SHAPES, SAMPLINGS, [1, 4, 16]),
        lambda shape, name, page: page == 4 if shape == SHAPES[1] else (name, page) == ("logprobs", 16),
    ),
)
def test_outputs_with_drafts_match_outputs_without(fake: ModuleType, name: str, page: int, shape: str) -> None:
    """Sampled outputs too: the random number of a draw depends on its position, not on the proposals."""
    sampling = SAMPLINGS[name]
    stops = fake.int32([3, 17, 30])
    runs = [
        fake.run(rid, range(1, 5 + rid), sampling, stop_ids=stops, seed=rid // 2, sample=rid % 2, order=(0, rid))
        for rid in range(8)
    ]
    plain = fake.drive(fake.engine(speculate="off", page=page), runs)
    known = {rid: output.ids for rid, output in plain.items()}
    e = fake.engine_with_drafts(
        drafters(fake, shape, known=known), page=page, step_tokens=23 if shape == "chain" else 64
    )
    drafted = fake.drive(e, runs, check=True)
    assert sum(o.finish.n_accepted for o in drafted.values()) > 20
    for rid, output in plain.items():
        assert drafted[rid].ids == output.ids
        assert drafted[rid].logprobs == output.logprobs
        one, other = drafted[rid].finish, output.finish
        assert (one.reason, one.stop_id, one.n_prompt) == (other.reason, other.stop_id, other.n_prompt)


def test_output_ends_inside_a_draft_at_stop_id_or_length(fake: ModuleType) -> None:
    expected = fake.greedy(PROMPT, 20)
    e = fake.engine_with_drafts(greedy_script(fake))
    runs = [fake.run(0, PROMPT, Sampling(temperature=0.0, max_tokens=20), stop_ids=fake.int32([expected[5]]))]
    output = fake.drive(e, runs, check=True)[0]
    assert output.ids == expected[: expected.index(expected[5])]
    assert (output.finish.reason, output.finish.stop_id) == ("stop", expected[5])
    output = fake.drive(e, [fake.run(1, PROMPT, Sampling(temperature=0.0, max_tokens=4))], check=True)[1]
    assert output.ids == expected[:4]
    assert output.finish.reason == "length"


@pytest.mark.parametrize("shape", in_short(SHAPES[:1], SHAPES))
def test_drafts_under_page_pressure_change_no_output(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Drafts use only spare pages, and retracted requests continue unchanged."""
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)  # admit whatever fits now
    runs = [fake.run(rid, [rid + 1, *PROMPT], Sampling(temperature=0.0, max_tokens=40)) for rid in range(6)]
    for n_pages in (14, 20, 60):
        e = fake.engine_with_drafts(drafters(fake, shape), n_pages=n_pages, page=4)
        outputs = fake.drive(e, runs, check=True)
        for rid in range(6):
            assert outputs[rid].ids == fake.greedy([rid + 1, *PROMPT], 40)
        if n_pages == 14:
            assert e.scheduler.counts["retractions"] > 0


@pytest.mark.parametrize("shape", SHAPES)
def test_aborted_drafting_requests_release_everything(fake: ModuleType, shape: str) -> None:
    e = fake.engine_with_drafts(drafters(fake, shape))
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


def test_drafts_respect_the_step_token_budget(fake: ModuleType) -> None:
    model = fake.FakeModel()
    e = fake.engine_with_drafts(greedy_script(fake), model, step_tokens=16)
    runs = [fake.run(rid, [rid + 1, *PROMPT], Sampling(temperature=0.0, max_tokens=30)) for rid in range(5)]
    fake.drive(e, runs, check=True)
    assert max(map(sum, model.steps)) == 16


# ---- distribution --------------------------------------------------------------------------------------------------

N = 2000


SAMPLED = (
    (Sampling(temperature=1.0, max_tokens=3), 0.0),
    (Sampling(temperature=1.0, max_tokens=3), 1.0),
    (Sampling(temperature=0.7, top_k=5, max_tokens=3), 0.5),
    (Sampling(temperature=1.3, top_p=0.8, logit_bias={11: 1.5}, max_tokens=3), 0.7),
    (Sampling(temperature=1.0, min_p=0.1, max_tokens=3), 0.5),
    (Sampling(temperature=1.0, frequency_penalty=1.5, repetition_penalty=1.2, max_tokens=3), 0.5),
)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("k", range(len(SAMPLED)))
def test_second_token_follows_the_model_distribution(fake: ModuleType, k: int, shape: str) -> None:
    """Pearson's chi-square of the token after a given first token, for several shares of correct drafts."""
    sampling, share = SAMPLED[k]
    e = fake.engine_with_drafts(drafters(fake, shape, share), max_running=64)
    first = int(fake.logits_after(PROMPT).argmax())
    runs = [fake.run(rid, PROMPT, sampling, seed=rid) for rid in range(N)]
    outputs = fake.drive(e, runs, limit=10**6)
    assert share == 0.0 or sum(o.finish.n_accepted for o in outputs.values()) > 0
    seconds = [o.ids[1] for o in outputs.values() if o.ids[0] == first]
    counts = np.bincount(seconds, minlength=fake.VOCAB)
    p = distribution([*PROMPT, first], sampling, fake)
    assert counts[p == 0].sum() == 0
    expected = len(seconds) * p
    is_rare = expected < 5
    cells = [(counts[~is_rare], expected[~is_rare])]
    if expected[is_rare].sum():
        cells.append((counts[is_rare].sum(keepdims=True), expected[is_rare].sum(keepdims=True)))
    statistic = sum((((c - x) ** 2) / x).sum() for c, x in cells)
    n_free = sum(len(c) for c, _ in cells) - 1
    assert statistic < n_free + 4 * (2 * n_free) ** 0.5 + 4, (statistic, n_free)  # about 1 in 10,000


def distribution(ids: Sequence[int], s: Sampling, fake: ModuleType) -> np.ndarray:
    """float64 [vocab]: the distribution that `Sampling` defines, computed directly."""
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
