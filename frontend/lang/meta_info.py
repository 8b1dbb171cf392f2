"""Builds the dicts that `get_meta_info` returns, in SGLang's format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from banyan.runtime.protocol import wire


def meta_of_sample(
    k: int, value: wire.Value, has_logprobs: bool, with_text: bool = False, has_rounds: bool = False
) -> dict[str, Any]:
    """The meta info of the k-th sample of a gen. Its keys depend only on the three flags, not on how the gen ended.

    has_logprobs: include the log-probabilities, empty lists where there are none. with_text: also give the text of each
    token in them. has_rounds: include the token counts of each turn or attempt.
    """
    sample = value.samples[k]
    n_tokens = sample.n_tokens if len(value.samples) > 1 else max(sample.n_tokens, value.usage.generated)
    meta = _common(k, value, n_tokens)
    meta["drafts"] = {name: {"drafted": n, "accepted": accepted} for name, (n, accepted) in sample.drafts.items()}
    n_accepted = sum(accepted for _, accepted in sample.drafts.values())
    # A stop string may cut accepted tokens off.
    meta["spec_verify_ct"] = max(0, n_tokens - n_accepted) if sample.drafts else 0
    if has_rounds:
        meta["rounds"] = [
            {"prompt_tokens": usage.prompt, "cached_tokens": usage.cached, "completion_tokens": usage.generated}
            for usage in value.rounds or (value.usage,)
        ]
    if has_logprobs:
        meta |= _output_logprobs(sample.logprobs, with_text)
        meta["input_token_logprobs"] = [
            (None if math.isnan(t.logprob) else t.logprob, t.id, t.text if with_text else None) for t in value.prompt
        ]
        meta["input_top_logprobs"] = [_top(t, with_text) if t.top else None for t in value.prompt]
    return meta


def meta_of_delta(delta: wire.Delta, logprobs: Sequence[wire.TokenLogprob] | None, with_text: bool) -> dict[str, Any]:
    """The meta info of a gen while it streams. logprobs: the log-probabilities of all tokens so far, or None if the gen
    does not return them. with_text: also give the text of each of these tokens. Prompt counts are None until they are
    known."""
    meta: dict[str, Any] = {
        "id": f"{delta.program}-{delta.ref}-0",
        "finish_reason": None,
        "prompt_tokens": delta.n_prompt or None,
        "completion_tokens": delta.n_tokens,
        "cached_tokens": delta.n_cached if delta.n_prompt else None,
    }
    return meta | ({} if logprobs is None else _output_logprobs(logprobs, with_text))


def meta_of_select(value: wire.Value, method: wire.ChoicesMethod | None) -> dict[str, Any]:
    """The meta info of a select. Lists with one item per choice: the scores (normalized_prompt_logprobs), the choice's
    tokens as (logprob, id, None), and the probabilities with which a choice was drawn (weights). These lists are None
    if the backend reports no scores.

    completion_tokens: the tokens that a backend generated in order to choose. Tokens of the choice itself do not count.
    """
    scores = value.scores
    meta = _common(0, value, value.usage.generated)
    if scores is None:
        names = ("normalized_prompt_logprobs", "input_token_logprobs", "output_token_logprobs", "weights")
        return meta | dict.fromkeys(names)
    meta |= {
        "normalized_prompt_logprobs": list(scores.normalized),
        "input_token_logprobs": without_text(scores.tokens),
        "output_token_logprobs": [[] for _ in scores.tokens],
        "weights": list(scores.weights),
    }
    if method == "greedy_token_selection":
        longest = max(map(len, scores.tokens))
        meta["greedy_logprob_matrix"] = [
            [logprob for logprob, _ in tokens] + [mean] * (longest - len(tokens))
            for tokens, mean in zip(scores.tokens, scores.normalized, strict=True)
        ]
    if scores.unconditional:
        meta["unconditional_token_logprobs"] = without_text(scores.unconditional)
        pairs = zip(scores.tokens, scores.unconditional, strict=True)
        gains = [[a[0] - b[0] for a, b in zip(with_, without, strict=True)] for with_, without in pairs]
        meta["normalized_unconditional_prompt_logprobs"] = [sum(gain) / len(gain) for gain in gains]
    return meta


def _common(k: int, value: wire.Value, n_tokens: int) -> dict[str, Any]:
    """The part of the meta info that gens and selects both have. k: the index of the sample. n_tokens: its completion
    tokens. If the sample has no tokens, time_to_first_token is the time until the end."""
    sample, usage, times = value.samples[k], value.usage, value.times
    reason: dict[str, Any] = {"type": sample.finish_reason}
    if sample.matched is not None:
        reason["matched"] = sample.matched
    if sample.finish_reason == "length":
        reason["length"] = sample.n_tokens
    return {
        "id": f"{value.program}-{value.ref}-{k}",
        "finish_reason": reason,
        "prompt_tokens": usage.prompt,
        "completion_tokens": n_tokens,
        "cached_tokens": usage.cached,
        "time_to_first_token": max(0.0, (times.first or times.ended) - times.ready),
        "e2e_latency": max(0.0, times.ended - times.ready),
    }


def _output_logprobs(logprobs: Sequence[wire.TokenLogprob], with_text: bool) -> dict[str, Any]:
    return {
        "output_token_logprobs": [(t.logprob, t.id, t.text if with_text else None) for t in logprobs],
        "output_token_logprobs_length": len(logprobs),
        "output_top_logprobs": [_top(t, with_text) for t in logprobs],
    }


def _top(t: wire.TokenLogprob, with_text: bool) -> list[tuple[float, int, str | None]]:
    return [(logprob, token, text if with_text else None) for token, text, logprob in t.top]


def without_text(choices: Sequence[Sequence[tuple[float, int]]]) -> list[list[tuple[float, int, None]]]:
    """The scored tokens of each choice as (logprob, id, None), which is SGLang's form."""
    return [[(logprob, token, None) for logprob, token in tokens] for tokens in choices]
