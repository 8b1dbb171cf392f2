"""Checks of the ops draw and edit_logits with random rows and options, against the float64 reference."""

import random
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from banyan.kernels import ops
from banyan.kernels.draw import reference
from banyan.kernels.draw.rows import Rows, draw_rows
from banyan.kernels.small_ops.reference import edit_logits

NEAR = 1e-6  # implementations may differ if the uniform number is nearer than this to the border between two tokens


def check_edit_logits(seed: int, dtype: torch.dtype, device: str) -> None:
    """Edits distinct cells, with logits of both signs; some become forbidden. Every other cell keeps its bits."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    n_rows, n_vocab = chance.randint(1, 4), chance.choice([1, 7, 300])
    logits = torch.randn(n_rows, n_vocab + 3).to(device)[:, :n_vocab]
    cells = torch.randperm(n_rows * n_vocab)[: chance.choice([0, 1, n_vocab, 400])]
    at = (cells // n_vocab).to(device), (cells % n_vocab).to(device)
    factors = torch.rand(len(cells)) + 0.5
    shifts = torch.randn(len(cells)).masked_fill_(torch.rand(len(cells)) < 0.1, -torch.inf)
    want = logits.double()
    edit_logits(want, *at, factors.double().to(device), shifts.double().to(device))
    before = logits.clone()
    ops.edit_logits(logits, *at, factors.to(device), shifts.to(device))
    torch.testing.assert_close(logits.double(), want, atol=1e-6, rtol=1e-6)
    before[at] = logits[at]
    assert torch.equal(before, logits)


def check_draw(seed: int, dtype: torch.dtype, device: str) -> None:
    """Covers all options, ties, forbidden tokens, rows without a valid token, and vocabularies of several blocks."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    n, n_vocab = chance.randint(0, 8), chance.choice([1, 4, 9, 33, 1000, 5000])
    logits = torch.randn(n, n_vocab) * chance.choice([0.0, 0.2, 1, 8])
    if chance.random() < 0.5:
        logits = (2 * logits).round() / 2  # many ties
    logits[torch.rand(n, n_vocab) < chance.choice([0.0, 0.3, 0.99])] = -torch.inf
    for row in logits:
        if chance.random() < 0.1:
            row[chance.randrange(n_vocab)] = chance.choice([torch.nan, torch.inf])
    options = random_rows(chance, n, device)
    lists = [column.tolist() for column in options]
    allowed = [set(may_be(x, *own)) for x, *own in zip(logits, *lists, strict=True)]
    wide = torch.full((n, n_vocab + 5), torch.nan)
    wide[:, :n_vocab] = logits
    wide = wide.to(device)
    got = ops.draw(wide[:, :n_vocab], options)
    assert got.dtype == torch.int64
    assert got.shape == (n,)
    assert wide[:, n_vocab:].isnan().all(), "it wrote past the vocabulary"
    for token, tokens, x in zip(got.tolist(), allowed, logits, strict=True):
        assert token in tokens, f"{token} is not in {sorted(tokens)}, of {n_vocab} tokens"
        assert token < 0 or x[token] > -torch.inf


def random_rows(chance: random.Random, n: int, device: str) -> Rows:
    """Random sampling options for n rows. Each option is on for some rows and off for others."""
    word = 1 << 63
    return draw_rows(
        [chance.choice([0.0, 0.0, 1e-40, 0.1, 1.0, 1.0, 5.0]) for _ in range(n)],
        [chance.choice([0, 0, 1, 2, 3, 20, 700, 10**6]) for _ in range(n)],
        [chance.choice([1.0, 1.0, 1e-9, 0.3, 0.5, 0.7, 0.9, 0.999]) for _ in range(n)],
        [chance.choice([0.0, 0.0, 0.02, 0.5, 1.0]) for _ in range(n)],
        [chance.choice([chance.randrange(-word, word), chance.randrange(2 * word)]) for _ in range(n)],
        [chance.randrange(9) for _ in range(n)],
        [chance.randrange(100_000) for _ in range(n)],
        device,
    )


def may_be(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, *key: int) -> Iterator[int]:
    """The tokens that a draw may return: the exact one, and its neighbours if the uniform number is near a border."""
    peak = logits.max()
    if not peak.isfinite() or temperature <= 0:
        yield -1 if not peak.isfinite() else int((logits == peak).nonzero()[0])
        return
    x = (logits - peak) / max(temperature, 1e-30)  # in float32, as implementations do: this decides ties
    p, u = x.double().softmax(0), reference.uniform(*key)
    for q, m in product({top_p, top_p * (1 - NEAR), min(1.0, top_p * (1 + NEAR))}, {min_p, min_p * (1 - NEAR)}):
        q = top_p if top_p == 1 else q
        kept = p.where(p >= (1 - NEAR) * reference.least_kept(p, top_k, q, m), 0.0)
        cdf = kept.cumsum(0) / kept.sum()
        low, high = (int((cdf <= v).sum()) for v in (u - NEAR, u + NEAR))
        yield from (t for t in range(low, min(high, len(p) - 1) + 1) if kept[t] > 0)
