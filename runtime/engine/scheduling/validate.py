"""Checks whether a Run can be served. If not, it fails with an error that says why, before it claims any pages."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from banyan.runtime.errors import BadMessage, BadProgram, OutOfMemory, PromptTooLong
from banyan.runtime.protocol.wire import Run, Sampling


class EngineLimits(NamedTuple):
    """Limits of requests and steps. context: tokens of prompt and output together. row_id: the token id that stands for
    rows of images; -1: the model takes no images. has_whole_images: a step that computes rows of an image must compute
    all its remaining rows."""

    context: int
    vocab_size: int
    max_running: int
    step_tokens: int
    row_id: int = -1
    has_whole_images: bool = False


def validate(run: Run, limits: EngineLimits, n_pages: int, page: int) -> int:
    """Check a Run, and return the number of tokens, prompt and output together, at which the request must end. Raises a
    BanyanError if the Run can never be served."""
    if len(run.ids) % 4 or len(run.stop_ids) % 4:
        raise BadMessage("ids and stop_ids must be int32, but their size in bytes is not a multiple of 4")
    if not 0 <= run.rid < 1 << 63:
        raise BadMessage(f"the request's number is {run.rid}; it must be in 0 .. 2**63 - 1")
    ids, s = np.frombuffer(run.ids, np.int32), run.sampling
    if not len(ids):
        raise BadProgram("the prompt is empty; a model needs at least one token to continue from")
    if run.stop_ids and np.frombuffer(run.stop_ids, np.int32).min() < 0:
        raise BadMessage("stop_ids has a negative id")
    if not 0 <= run.n_done < len(ids):
        raise BadMessage(f"n_done is {run.n_done}; it must be in 0 .. {len(ids) - 1}")
    if run.score_from > len(ids) or run.score_from == 0:
        raise BadMessage(
            f"score_from is {run.score_from}; it must be in 1 .. {len(ids)}: the first token has no logprob"
        )
    if not -inf < run.deadline < inf:
        raise BadMessage(f"deadline is {run.deadline}; it must be finite")
    if run.images:
        ids = ids.copy()
    for rows in run.images:
        own = ids[rows.start : rows.start + rows.n]
        if not (rows.start >= 0 and 0 < rows.n == len(own) and own.max() < 0) or limits.row_id < 0:
            raise BadMessage(f"the prompt does not have {rows.n} rows of an image at token {rows.start}")
        own[:] = limits.row_id
    biased = np.fromiter(s.logit_bias, np.int32)
    for what, tokens in (("prompt", ids), ("logit_bias", biased)):
        # As unsigned numbers, negative ones are the largest. (Python's min and max take 24 us for 1,000 ids.)
        if len(tokens) and not 0 <= (worst := int(tokens[tokens.view(np.uint32).argmax()])) < limits.vocab_size:
            raise BadProgram(f"{what} has token {worst}; the model's vocabulary is 0 .. {limits.vocab_size - 1}")
    _check_sampling(s)
    n_least = len(ids) + (s.max_tokens > 0 and not run.n_done)
    if n_least > limits.context:
        raise PromptTooLong.of("the prompt with its output has at least", n_least, limits.context)
    max_total = max(len(ids), min(len(ids) - run.n_done + s.max_tokens, limits.context))
    need = -(-max(max_total - 1, len(ids)) // page)  # the last sampled token is never computed
    if need > n_pages:
        raise OutOfMemory(
            f"the request needs {need} pages ({len(ids)} tokens, up to {max_total} with its output), but there are "
            f"only {n_pages} of {page} slots; lower max_tokens or raise `kv_memory`"
        )
    return max_total


def _check_sampling(s: Sampling) -> None:
    """Raises BadProgram for a value outside the sampler's range."""
    for name, value, ok, allowed in (
        ("max_tokens", s.max_tokens, s.max_tokens >= 0, "at least 0"),
        ("min_tokens", s.min_tokens, s.min_tokens >= 0, "at least 0"),
        ("temperature", s.temperature, 0 <= s.temperature < inf, "at least 0"),
        ("top_p", s.top_p, 0 < s.top_p <= 1, "in (0, 1]"),
        ("top_k", s.top_k, s.top_k == -1 or s.top_k >= 1, "-1 (off) or at least 1"),
        ("min_p", s.min_p, 0 <= s.min_p <= 1, "in [0, 1]"),
        ("repetition_penalty", s.repetition_penalty, 0 < s.repetition_penalty < inf, "above 0"),
        ("frequency_penalty", s.frequency_penalty, abs(s.frequency_penalty) < inf, "a finite number"),
        ("presence_penalty", s.presence_penalty, abs(s.presence_penalty) < inf, "a finite number"),
        ("top_logprobs", s.top_logprobs, s.top_logprobs >= 0, "at least 0"),
    ):
        if not ok:
            raise BadProgram(f"{name} is {value}; it must be {allowed}")
    if not all(-inf < bias < inf for bias in s.logit_bias.values()):
        raise BadProgram("a value of logit_bias is not finite; -100 is enough to forbid a token")
