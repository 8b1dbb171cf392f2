"""Converts responses of OpenAI's HTTP API, whole or in the chunks of a stream, to outcomes of gens and selects."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import msgspec

from banyan.backends.job import Job
from banyan.backends.openai.bounds import AnswerTooLarge, limits
from banyan.backends.openai.format import Kind
from banyan.runtime.errors import ProgramError
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.executor.select_scoring import decide, with_tokens
from banyan.runtime.protocol import wire

NO_ID = -1
"""Stands for the ids of tokens, which the API does not return."""


class ResponseReader:
    """Reads the response to a gen: one whole response, or the chunks of a stream.

    n: the number of choices that were asked for.
    first: when the first text came, in seconds of time.monotonic(); 0.0 before that.
    """

    def __init__(self, kind: Kind, n: int = 1) -> None:
        self._kind, self._n = kind, n
        self._choices: dict[int, _Choice] = {}
        self._usage: Any = None
        self._limits, self._n_chunks = limits.get(), 0
        self.first = 0.0

    def take(self, chunk: Any) -> str:
        """Read a chunk; returns the new text of the first choice. AnswerTooLarge: see `limits`."""
        self._n_chunks += 1
        if self._n_chunks > self._limits.n_events:
            raise AnswerTooLarge("events", self._limits.n_events)
        self._usage = getattr(chunk, "usage", None) or self._usage
        new = ""
        for part in chunk.choices:
            text = self._choices.setdefault(part.index, _Choice()).take(part, self._kind)
            new += text if part.index == 0 else ""
        if sum(choice.n_chars for choice in self._choices.values()) > self._limits.n_chars:
            raise AnswerTooLarge("characters of text", self._limits.n_chars)
        self.first = self.first or (time.monotonic() if new else 0.0)
        return new

    def outcome(self) -> GenOutcome:
        """The outcome of the whole response. ProgramError: the model refused, or the number of choices is wrong."""
        if not self._choices:
            raise ProgramError("the API answered with no choices")
        if len(self._choices) != self._n:
            raise ProgramError(f"the API was asked for {self._n} choices, but it answered with {len(self._choices)}")
        usage, choices = _usage(self._usage), [choice for _, choice in sorted(self._choices.items())]
        samples = tuple(choice.sample(usage.generated if len(choices) == 1 else 0) for choice in choices)
        calls = tuple(
            wire.WireToolCall(id, name, arguments or "{}")
            for _, (id, name, arguments) in sorted(choices[0].calls.items())
        )
        return GenOutcome(samples, usage, times=wire.Times(first=self.first), calls=calls)


class _Choice:
    """One choice of a response, as far as it was read. calls: index of a tool call -> [id, name, arguments]. n_chars:
    characters of its text, calls and refusal."""

    def __init__(self) -> None:
        self.n_chars = 0
        self.texts: list[str] = []
        self.refusal = ""
        self.calls: dict[int, list[str]] = {}
        self.logprobs: list[wire.TokenLogprob] = []
        self.finish_reason: str | None = None

    def take(self, part: Any, kind: Kind) -> str:
        self.finish_reason = part.finish_reason or self.finish_reason
        if kind == "completion":
            self.logprobs += _completion_logprobs(part.logprobs)
            text = part.text or ""
        else:
            self.logprobs += _chat_logprobs(part.logprobs)
            message = getattr(part, "delta", None) or part.message
            text = message.content or ""
            refusal = getattr(message, "refusal", None) or ""
            self.refusal += refusal
            self.n_chars += len(refusal)
            for k, call in enumerate(getattr(message, "tool_calls", None) or ()):
                index = getattr(call, "index", None)
                known = self.calls.setdefault(k if index is None else index, ["", "", ""])
                known[0] = call.id or known[0]
                if call.function is not None:
                    known[1] += call.function.name or ""
                    known[2] += call.function.arguments or ""
                    self.n_chars += len(call.function.name or "") + len(call.function.arguments or "")
        self.n_chars += len(text)
        self.texts.append(text)
        return text

    def sample(self, n_tokens: int) -> wire.Sample:
        if self.refusal:
            raise ProgramError(f"the model refused: {self.refusal}")
        reasons: dict[str | None, wire.FinishReason] = {"length": "length", "content_filter": "abort"}
        reason, logprobs = reasons.get(self.finish_reason, "stop"), tuple(self.logprobs)
        return wire.Sample("".join(self.texts), reason, n_tokens=n_tokens or len(logprobs), logprobs=logprobs)


def outcome(response: Any, kind: Kind, n: int = 1) -> GenOutcome:
    """The outcome of a whole response."""
    reader = ResponseReader(kind, n)
    reader.take(response)
    return reader.outcome()._replace(times=wire.Times())


def _chat_logprobs(logprobs: Any) -> tuple[wire.TokenLogprob, ...]:
    return tuple(
        wire.TokenLogprob(
            NO_ID, one.token, one.logprob, tuple((NO_ID, top.token, top.logprob) for top in one.top_logprobs or ())
        )
        for one in (getattr(logprobs, "content", None) or ())
    )


def _completion_logprobs(logprobs: Any) -> tuple[wire.TokenLogprob, ...]:
    if logprobs is None or not logprobs.tokens:
        return ()
    tops = logprobs.top_logprobs or [{}] * len(logprobs.tokens)
    return tuple(
        wire.TokenLogprob(NO_ID, text, logprob, tuple((NO_ID, other, its) for other, its in (top or {}).items()))
        for text, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=True)
    )


def _usage(usage: Any) -> wire.TokenUsage:
    """The token counts of a response; 0 for counts that are missing or invalid."""

    def count(source: Any, name: str) -> int:
        n = getattr(source, name, None)
        return n if isinstance(n, int) and 0 <= n < 1 << 63 else 0

    details = getattr(usage, "prompt_tokens_details", None)
    return wire.TokenUsage(
        count(usage, "prompt_tokens"), count(details, "cached_tokens"), count(usage, "completion_tokens")
    )


def chosen(job: Job, responses: Sequence[Any], kind: Kind) -> GenOutcome:
    """The outcome of a select. responses: to the requests of `format.select_requests`, in order."""
    op = job.op
    assert isinstance(op, wire.Select)
    if kind == "chat":
        return _generated_choice(op, outcome(responses[0], kind))
    start = len(job.text)
    logprobs = [
        _logprobs_behind(choice, start) for choice in sorted(responses[0].choices, key=lambda choice: choice.index)
    ]
    if len(logprobs) != len(op.choices) or not all(logprobs):
        raise ProgramError("the API gave no log-probabilities of the prompt (echo), without which it cannot select")
    without: list[list[float]] = []
    if len(responses) > 1:
        alone = [
            _logprobs_behind(choice, 0) for choice in sorted(responses[1].choices, key=lambda choice: choice.index)
        ]
        # Without the prompt a choice may have other tokens: then each token gets the mean.
        without = [
            one if len(one) == len(given) else [sum(one) / len(one)] * len(given)
            for one, given in zip(alone, logprobs, strict=True)
        ]
    rng = Random(op.seed) if op.temperature else None
    choice = decide(op.method, logprobs, without, op.temperature, rng)
    usages = [_usage(response.usage) for response in responses]
    usage = wire.TokenUsage(sum(u.prompt for u in usages), sum(u.cached for u in usages))
    scores = with_tokens(choice, logprobs, without)
    return GenOutcome((wire.Sample(op.choices[choice.chosen], "stop"),), usage, scores)


def _logprobs_behind(choice: Any, start: int) -> list[float]:
    """Log-probabilities of the tokens that end after character `start`; 0 for the first token of a text."""
    found = choice.logprobs
    if found is None or not found.tokens:
        return []
    ends = [after for _, after in pairwise([*found.text_offset, len(choice.text)])]
    return [logprob or 0.0 for logprob, end in zip(found.token_logprobs, ends, strict=True) if end > start]


def _generated_choice(op: wire.Select, answer: GenOutcome) -> GenOutcome:
    """The outcome of a select whose choice a chat model generated. ProgramError: the model wrote something else."""
    text = answer.samples[0].text
    try:
        choice = msgspec.json.decode(text)["choice"]
    except (msgspec.DecodeError, KeyError, TypeError):
        choice = None
    if choice not in op.choices:
        raise ProgramError(f"the API should have answered with one of the choices, but it answered {text[:200]!r}")
    return GenOutcome((wire.Sample(choice, "stop", n_tokens=answer.usage.generated),), answer.usage)
