"""Builds the dicts that `get_meta_info` returns, in SGLang's format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from banyan.runtime.protocol import wire


def meta_of_sample(k: int, sample: wire.Sample, value: wire.Value, with_text: bool) -> dict[str, Any]:
    """The meta info of the k-th sample of a gen. with_text: include the text of each token."""
    usage, times = value.usage, value.times
    reason: dict[str, Any] = {"type": sample.finish_reason}
    if sample.matched is not None:
        reason["matched"] = sample.matched
    if sample.finish_reason == "length":
        reason["length"] = sample.n_tokens
    drafts = {name: {"drafted": n, "accepted": accepted} for name, (n, accepted) in sample.drafts.items()}
    meta: dict[str, Any] = ({"drafts": drafts} if drafts else {}) | {
        "id": f"{value.program}-{value.ref}-{k}",
        "finish_reason": reason,
        "prompt_tokens": usage.prompt,
        "completion_tokens": sample.n_tokens,
        "cached_tokens": usage.cached,
        "spec_verify_ct": usage.generated - usage.accepted if usage.drafted else 0,
        "time_to_first_token": max(0.0, times.first - times.ready),
        "e2e_latency": max(0.0, times.ended - times.ready),
    }
    if sample.logprobs or value.prompt:
        meta |= _output_logprobs(sample.logprobs, with_text)
        meta["input_token_logprobs"] = [
            (None if math.isnan(t.logprob) else t.logprob, t.id, t.text if with_text else None) for t in value.prompt
        ]
        meta["input_top_logprobs"] = [_top(t, with_text) if t.top else None for t in value.prompt]
    return meta


def meta_of_delta(delta: wire.Delta, logprobs: Sequence[wire.TokenLogprob], with_text: bool) -> dict[str, Any]:
    """The meta info of a gen while it streams. logprobs: of all tokens so far. Prompt counts are None until known."""
    meta: dict[str, Any] = {
        "id": f"{delta.program}-{delta.ref}-0",
        "finish_reason": None,
        "prompt_tokens": delta.n_prompt or None,
        "completion_tokens": delta.n_tokens,
        "cached_tokens": delta.n_cached if delta.n_prompt else None,
    }
    return meta | (_output_logprobs(logprobs, with_text) if logprobs else {})


def meta_of_select(scores: wire.Scores, method: wire.ChoicesMethod | None) -> dict[str, Any]:
    """The meta info of a select: the score, tokens as (logprob, id, None) and weight in a draw of each choice."""
    meta: dict[str, Any] = {
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


def _output_logprobs(logprobs: Sequence[wire.TokenLogprob], with_text: bool) -> dict[str, Any]:
    return {
        "output_token_logprobs": [(t.logprob, t.id, t.text if with_text else None) for t in logprobs],
        "output_top_logprobs": [_top(t, with_text) for t in logprobs],
    }


def _top(t: wire.TokenLogprob, with_text: bool) -> list[tuple[float, int, str | None]]:
    return [(logprob, token, text if with_text else None) for token, text, logprob in t.top]


def without_text(choices: Sequence[Sequence[tuple[float, int]]]) -> list[list[tuple[float, int, None]]]:
    """The scored tokens of each choice as (logprob, id, None), which is SGLang's form."""
    return [[(logprob, token, None) for logprob, token in tokens] for tokens in choices]
