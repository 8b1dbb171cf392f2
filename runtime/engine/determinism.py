"""Tests deterministic mode when an engine starts: one text is computed in several ways, which must give the same bits.
The kernels are written for determinism, but compilers and vendor libraries decide how results are rounded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from banyan.kernels.ops import ragged
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.errors import ConfigError

_N_TOKENS = 300  # longer than an attention chunk and than any row tile

_Part = tuple[Sequence[int], int, int]
"""(pages, first, end): the text's tokens first .. end - 1 are computed into these pages."""


@torch.inference_mode()
def check_determinism(runner: ModelRunner, max_tokens: int) -> None:
    """Compute one text in several ways, and compare the logits of each way bit by bit with those of one single step.
    The ways are: chunks of growing size, each in a step with a decode of another copy of the text; a last layer that
    computes only the last row; and two requests that share pages. Raises ConfigError if a logit differs. max_tokens:
    the longest text to use. Overwrites the first pages of the KV pool, so they must be unused."""
    store = runner.store
    n = min(max_tokens, _N_TOKENS, min(store.n_pages, store.n_window_pages or store.n_pages) // 3 * store.page)
    per_text = -(-n // store.page)
    one, two, three = (range(i * per_text, (i + 1) * per_text) for i in range(3))
    ends = [end for end in accumulate(range(1, n + 1)) if end < n] + [n]
    expected = dict(zip(ends, _step(runner, [(one, 0, n)], ends), strict=True))
    start, n_decoded = 0, 0
    for end in ends:
        n_chunk = end - start
        chunk, decode = _step(runner, [(two, start, end), (three, n_decoded, n_decoded + 1)], [n_chunk, n_chunk + 1])
        start, n_decoded = end, n_decoded + 1
        _compare(chunk, expected[end], f"a chunk of {n_chunk} tokens beside another text")
        if n_decoded in expected:
            _compare(decode, expected[n_decoded], "one token beside a chunk")
    (last,) = _step(runner, [(two, 0, n)], [n], wanted=[1])
    _compare(last, expected[n], "a last layer that computes only the rows that are needed")
    n_shared = max(0, per_text - 2)
    tails = [(*one[:n_shared], *own[n_shared:]) for own in (two, three)]
    n_new = n - n_shared * store.page
    for logits in _step(runner, [(pages, n - n_new, n) for pages in tails], [n_new, 2 * n_new]):
        _compare(logits, expected[n], "two texts on shared pages")


def _step(
    runner: ModelRunner, parts: Sequence[_Part], counts: Sequence[int], wanted: Sequence[int] | None = None
) -> Tensor:
    """Compute parts of the text in one step. counts: one row per returned entry, counted from 1 over all rows of the
    step. Returns the logits of these rows, [len(counts), vocab]. wanted: for each part, how many of its last rows the
    last layer computes; None: all."""
    store = runner.store
    at = torch.cat([torch.arange(first, end) for _, first, end in parts])
    ids = at * 7919 % runner.model.spec.vocab_size
    batch = ragged(
        [end - first for _, first, end in parts], [end for *_, end in parts], [pages for pages, *_ in parts],
        store.page, store.device, deterministic=True, wanted=wanted,
    )  # fmt: skip
    rows = torch.tensor(counts) - 1
    ids, at, rows = (x.to(store.device) for x in (ids, at, rows))
    return runner.forward(ids, at, batch, rows)


def _compare(got: Tensor, expected: Tensor, way: str) -> None:
    if not torch.equal(got, expected):
        raise ConfigError(
            f"this machine cannot run in deterministic mode: {way} changed logits by up to "
            f"{(got - expected).abs().max():.1e}; start without it, and please report the device and versions"
        )
