"""The sampler: frequencies against the exact distribution, and each option against its definition."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from banyan.kernels.draw.reference import uniform
from banyan.runtime.engine import sampler
from banyan.runtime.engine.scheduling.request import NO_TOKEN, Request
from banyan.runtime.protocol.wire import Sampling

LOGITS = np.array([2.0, 1.0, 0.5, 0.5, 0.0, -1.0, -1.5, -3.0], np.float32)
N = 4000


def request(fake: ModuleType, sampling: Sampling, prompt: Sequence[int] = (0,), output: Sequence[int] = (),
            rid: int = 0, **fields: Any) -> Request:  # fmt: skip
    r = Request(fake.run(rid, prompt, sampling, **fields), 100)
    for token in output:
        r.extend((token,))
    return r


def softmax(x: np.ndarray) -> np.ndarray:
    p = np.exp(x - x.max())
    return p / p.sum()


def draws(fake: ModuleType, sampling: Sampling, logits: np.ndarray = LOGITS) -> np.ndarray:
    """Counts of each token in N draws with different seeds."""
    requests = [request(fake, sampling, seed=seed) for seed in range(N)]
    ids, _ = sampler.choose(torch.from_numpy(np.tile(logits, (N, 1))), requests)
    return np.bincount(ids, minlength=len(logits))


def assert_distribution(counts: np.ndarray, p: np.ndarray) -> None:
    """Pearson's chi-square test at the 0.9999 level; the seeds are fixed."""
    assert counts[p == 0].sum() == 0, "a filtered-out token was drawn"
    expected = N * p[p > 0]
    statistic = ((counts[p > 0] - expected) ** 2 / expected).sum()
    bound = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5, 5: 25.7, 6: 27.9, 7: 29.9}  # chi-square, 0.9999
    assert statistic < bound[len(expected) - 1], (statistic, counts, expected)


def restricted(p: np.ndarray, kept: Sequence[int]) -> np.ndarray:
    q = np.where(np.isin(np.arange(len(p)), kept), p, 0)
    return q / q.sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature_scales_the_distribution(fake: ModuleType, temperature: float) -> None:
    assert_distribution(draws(fake, Sampling(temperature=temperature)), softmax(LOGITS / temperature))


def test_huge_temperature_draws_no_forbidden_token(fake: ModuleType) -> None:
    """No padding behind the vocabulary either. In float32, this temperature is infinite."""
    logits = LOGITS.copy()
    logits[[1, 6]] = -np.inf
    allowed = restricted(np.ones(len(LOGITS)), [0, 2, 3, 4, 5, 7])
    for top_k in (-1, 3):  # all are equally likely, so the top three tie with the rest
        assert_distribution(draws(fake, Sampling(temperature=1e308, top_k=top_k), logits), allowed)


def test_zero_and_tiny_temperatures_are_greedy(fake: ModuleType) -> None:
    for temperature in (0.0, 1e-30):
        assert draws(fake, Sampling(temperature=temperature))[0] == N


@pytest.mark.parametrize(
    ("top_k", "kept"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2, 3]), (4, [0, 1, 2, 3]), (99, range(8)), (2**63, range(8))]
)
def test_top_k_keeps_ties_with_the_last(fake: ModuleType, top_k: int, kept: Sequence[int]) -> None:
    counts = draws(fake, Sampling(top_k=top_k))
    if len(kept) == 1:
        assert counts[0] == N
    else:
        assert_distribution(counts, restricted(softmax(LOGITS), kept))


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-9, [0]), (0.49, [0]), (0.50, [0, 1]), (0.68, [0, 1, 2, 3]), (0.93, range(5)), (1.0, range(8))],
)
def test_top_p_keeps_the_smallest_set_of_that_mass(fake: ModuleType, top_p: float, kept: Sequence[int]) -> None:
    p = softmax(LOGITS)  # 0.491 0.181 0.110 0.110 0.066 0.024 0.015 0.003
    counts = draws(fake, Sampling(top_p=top_p))
    if len(kept) == 1:
        assert counts[0] == N
    else:
        assert_distribution(counts, restricted(p, kept))


def test_top_p_applies_after_top_k(fake: ModuleType) -> None:
    # The first token has 0.731 of 0.491 + 0.181.
    assert draws(fake, Sampling(top_k=2, top_p=0.72))[0] == N
    assert_distribution(draws(fake, Sampling(top_k=2, top_p=0.74)), restricted(softmax(LOGITS), [0, 1]))


@pytest.mark.parametrize(("min_p", "kept"), [(0.3, [0, 1]), (0.2, range(4)), (0.1, range(5)), (0.0, range(8))])
def test_min_p_is_relative_to_the_best_token(fake: ModuleType, min_p: float, kept: Sequence[int]) -> None:
    assert_distribution(draws(fake, Sampling(min_p=min_p)), restricted(softmax(LOGITS), kept))


def test_filters_apply_after_temperature(fake: ModuleType) -> None:
    p = softmax(LOGITS / 2)
    s = Sampling(temperature=2.0, top_k=5, top_p=0.95, min_p=0.45)
    assert_distribution(draws(fake, s), restricted(p, [0, 1, 2, 3]))


def test_logit_bias_shifts_the_distribution(fake: ModuleType) -> None:
    biased = LOGITS + np.array([-100, 0, 0, 2, 0, 0, 0, 0], np.float32)
    assert_distribution(draws(fake, Sampling(logit_bias={0: -100.0, 3: 2.0})), softmax(biased))


def test_penalties_match_their_definition(fake: ModuleType) -> None:
    prompt, output = [1, 5, 5], [0, 2, 2, 5]
    s = Sampling(
        temperature=0, frequency_penalty=0.3, presence_penalty=0.2, repetition_penalty=1.5, logit_bias={2: 0.7}
    )
    r = request(fake, s, prompt, output)
    logits = torch.from_numpy(LOGITS.copy())[None]
    sampler.edit(logits, [r])
    expected = LOGITS.copy()
    for token in set(prompt + output):
        expected[token] = expected[token] / 1.5 if expected[token] > 0 else expected[token] * 1.5
    for token in set(output):
        expected[token] -= 0.3 * output.count(token) + 0.2
    expected[2] += 0.7
    np.testing.assert_allclose(logits[0].numpy(), expected, atol=1e-6)


def test_min_tokens_forbids_earlier_stop_ids(fake: ModuleType) -> None:
    stop = fake.int32([0, 1, 999])  # the last one is not in the vocabulary
    s = Sampling(temperature=0, min_tokens=2)
    for output, token in (([], 2), ([7], 2), ([7, 7], 0)):
        r = request(fake, s, [5], output, stop_ids=stop)
        assert sampler.choose(torch.from_numpy(LOGITS.copy())[None], [r])[0] == [token]


def test_draw_does_not_depend_on_the_batch(fake: ModuleType) -> None:
    kinds = [Sampling(), Sampling(top_p=0.7), Sampling(top_k=3), Sampling(temperature=0), Sampling(min_p=0.1, top_k=2)]
    kinds.append(Sampling(frequency_penalty=0.5, temperature=0.8))
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60, 300)).astype(np.float32)
    requests = [request(fake, kinds[i % 6], [1, 2], [3], seed=i // 6, sample=i % 3) for i in range(60)]
    together, _ = sampler.choose(torch.from_numpy(logits.copy()), requests)
    alone = [sampler.choose(torch.from_numpy(logits[i : i + 1].copy()), [r])[0][0] for i, r in enumerate(requests)]
    assert together == alone


def test_seed_sample_and_position_each_change_the_draw() -> None:
    n = range(2000)
    for draws_of_one in (
        [uniform(i, 0, 5) for i in n],
        [uniform(3, i, 5) for i in n],
        [uniform(-1, 1, i) for i in n],
    ):
        u = np.array(draws_of_one)
        counts, _ = np.histogram(u, 20, (0, 1))
        assert ((counts - 100) ** 2 / 100).sum() < 53  # chi-square with 19 degrees of freedom, 0.9999
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.09
        assert 0 < u.min() < u.max() < 1


def test_logprobs_ignore_penalties_and_bias(fake: ModuleType) -> None:
    s = Sampling(temperature=0, logprobs=True, top_logprobs=3, logit_bias={5: 100.0}, frequency_penalty=1.0)
    requests = [request(fake, Sampling(), rid=1), request(fake, s, [4], [0], rid=2)]
    requests.append(request(fake, Sampling(temperature=0, logprobs=True), rid=3))
    ids, logprobs = sampler.choose(torch.from_numpy(np.tile(LOGITS, (3, 1))), requests)
    own = torch.from_numpy(LOGITS).log_softmax(-1)
    assert ids[1:] == [5, 0]
    assert set(logprobs) == {2, 3}
    assert logprobs[2][0].logprob == pytest.approx(own[5].item(), abs=1e-6)
    top_ids, top = array("i", logprobs[2][0].top_ids), array("f", logprobs[2][0].top_logprobs)
    assert set(top_ids) in ({0, 1, 2}, {0, 1, 3})
    np.testing.assert_allclose(top, own[list(top_ids)], atol=1e-6)
    assert list(top) == sorted(top, reverse=True)
    assert logprobs[3][0].logprob == pytest.approx(own[0].item(), abs=1e-6)
    assert logprobs[3][0].top_ids == b""


def test_top_p_finds_a_nucleus_wider_than_the_partial_sort(fake: ModuleType) -> None:
    """With 3000 nearly equal tokens, top_p keeps far more than the best few."""
    logits = np.zeros(3000, np.float32)
    logits[:2000] += np.linspace(1, 0.5, 2000, dtype=np.float32)
    p = np.sort(softmax(logits.astype(np.float64)))[::-1]
    n_kept = int((np.cumsum(p) - p < 0.6).sum())
    assert 1024 < n_kept < 2000
    requests = [request(fake, Sampling(top_p=0.6), seed=seed) for seed in range(1500)]
    ids, _ = sampler.choose(torch.from_numpy(np.tile(logits, (1500, 1))), requests)
    assert max(ids) < n_kept
    assert max(ids) > n_kept - 100


def test_nan_rows_draw_no_token_and_affect_no_other_row(fake: ModuleType) -> None:
    logits = torch.from_numpy(np.tile(LOGITS, (4, 1)))
    logits[1:3, 3] = torch.nan
    requests = [request(fake, Sampling(temperature=t, logprobs=True), rid=i) for i, t in enumerate((0, 0, 1, 1))]
    ids, logprobs = sampler.choose(logits, requests)
    assert ids[:3] == [0, NO_TOKEN, NO_TOKEN]
    assert ids[3] >= 0
    assert len(logprobs) == 4
