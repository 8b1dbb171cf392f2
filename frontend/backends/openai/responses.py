"""Converts responses of OpenAI's HTTP API, whole or in the chunks of a stream, to outcomes of gens and selects."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from banyan.backends.job import Job
from banyan.backends.openai.bounds import AnswerTooLarge, limits
from banyan.backends.openai.format import Kind, called_text
from banyan.runtime.errors import ProgramError
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.executor.select_scoring import decide, with_tokens
from banyan.runtime.protocol import wire

NO_ID = -1
"""Stands for the ids of tokens, which the API does not return."""


class ResponseReader:
    """Reads the response to a gen: one whole response, or the chunks of a stream.

    n: the number of choices that were asked for. has_reasoning: keep the reasoning that the server separated.
    has_tools: the model may call tools; otherwise calls are ignored.
    first: when the first text or reasoning came, in seconds of time.monotonic(); 0.0 before that.
    """

    def __init__(self, kind: Kind, n: int = 1, has_reasoning: bool = False, has_tools: bool = False) -> None:
        self._kind, self._n, self._has_reasoning, self._has_tools = kind, n, has_reasoning, has_tools
        self._choices: dict[int, _Choice] = {}
        self._usage: Any = None
        self._limits, self._n_chunks = limits.get(), 0
        self.first = 0.0

    def take(self, chunk: Any) -> tuple[str, str]:
        """Read a chunk; returns the new reasoning and text of the first choice. AnswerTooLarge: the response has more
        chunks or characters than its AnswerLimits allow."""
        self._n_chunks += 1
        if self._n_chunks > self._limits.n_events:
            raise AnswerTooLarge("events", self._limits.n_events)
        self._usage = getattr(chunk, "usage", None) or self._usage
        new_reasoning = new = ""
        for part in _choices_of(chunk):
            reasoning, text = self._choices.setdefault(part.index, _Choice()).take(part, self._kind)
            if part.index == 0:
                new_reasoning, new = new_reasoning + reasoning, new + text
        if sum(choice.n_chars for choice in self._choices.values()) > self._limits.n_chars:
            raise AnswerTooLarge("characters of text", self._limits.n_chars)
        self.first = self.first or (time.monotonic() if new_reasoning or new else 0.0)
        return new_reasoning if self._has_reasoning else "", new

    @property
    def has_ended(self) -> bool:
        """Whether the server said of each choice why it ends."""
        return all(choice.finish_reason for choice in self._choices.values())

    def outcome(self) -> GenOutcome:
        """The outcome of the whole response. ProgramError: the model refused, or the number of choices is wrong."""
        if not self._choices:
            raise ProgramError("the API answered with no choices")
        if len(self._choices) != self._n:
            raise ProgramError(f"the API was asked for {self._n} choices, but it answered with {len(self._choices)}")
        usage, choices = _usage(self._usage), [choice for _, choice in sorted(self._choices.items())]
        n_tokens = usage.generated if len(choices) == 1 else 0
        samples = tuple(choice.sample(n_tokens, self._has_reasoning) for choice in choices)
        calls = tuple(
            wire.WireToolCall(call.id or f"call_{k}", call.name, call.arguments or "{}")
            for k, call in enumerate(choices[0].calls if self._has_tools else ())
        )
        if calls:
            first = replace(samples[0], text=samples[0].text + called_text(calls))
            samples = (first, *samples[1:])
        return GenOutcome(samples, usage, times=wire.Times(first=self.first), calls=calls)


@dataclass
class _PartialCall:
    """The part of a tool call that was read so far."""

    id: str = ""
    name: str = ""
    arguments: str = ""

    def is_another(self, part: Any) -> bool:
        """Whether the fragment `part` begins another tool call. Only a fragment with a name can. If both this call and
        the fragment have an id, the ids must differ. Otherwise the names must differ, and this call must already have
        arguments."""
        name = part.function.name if part.function is not None else None
        if not name:
            return False
        return bool(part.id != self.id if part.id and self.id else self.arguments and name != self.name)

    def take(self, part: Any) -> int:
        """Read a fragment; returns the number of its characters."""
        self.id = self.id or part.id or ""
        if part.function is None:
            return 0
        name, arguments = part.function.name or "", part.function.arguments or ""
        if name != self.name:  # some servers repeat it in each fragment
            self.name += name
        self.arguments += arguments
        return len(name) + len(arguments)


class _Choice:
    """The part of a choice that was read so far. n_chars: characters of reasoning, text, calls and refusal."""

    def __init__(self) -> None:
        self.n_chars = 0
        self.reasonings: list[str] = []
        self.texts: list[str] = []
        self.refusal = ""
        self.calls: list[_PartialCall] = []
        self._open: dict[int, _PartialCall] = {}  # index of a tool call -> the last call with this index
        self.logprobs: list[wire.TokenLogprob] = []
        self.finish_reason: str | None = None

    def take(self, part: Any, kind: Kind) -> tuple[str, str]:
        """Read a part of the choice: the whole choice, or a chunk of it. Returns the reasoning and text of the part."""
        self.finish_reason = part.finish_reason or self.finish_reason
        reasoning = ""
        if kind == "completion":
            self.logprobs += _completion_logprobs(part.logprobs)
            text = part.text or ""
        else:
            self.logprobs += _chat_logprobs(part.logprobs)
            # Azure sends choices without either, with the results of its content filter.
            message = getattr(part, "delta", None) or getattr(part, "message", None)
            text = getattr(message, "content", None) or ""
            reasoning = _reasoning(message)
            refusal = getattr(message, "refusal", None) or ""
            self.refusal += refusal
            self.n_chars += len(refusal)
            is_whole = getattr(part, "delta", None) is None
            for k, call in enumerate(getattr(message, "tool_calls", None) or ()):
                self.n_chars += self._call(call, k if is_whole else getattr(call, "index", None)).take(call)
        self.n_chars += len(reasoning) + len(text)
        self.reasonings.append(reasoning)
        self.texts.append(text)
        return reasoning, text

    def _call(self, part: Any, index: int | None) -> _PartialCall:
        """Returns the tool call to which the fragment `part` belongs: a new call if the fragment begins one. index: the
        number that the server gave to the call. Some servers give none (None), or 0 to all calls."""
        known = self._open.get(index) if index is not None else self.calls[-1] if self.calls else None
        if known is None or known.is_another(part):
            self.calls.append(known := _PartialCall())
        if index is not None:
            self._open[index] = known
        return known

    def sample(self, n_tokens: int, has_reasoning: bool) -> wire.Sample:
        if self.refusal:
            raise ProgramError(f"the model refused: {self.refusal}")
        reasons: dict[str | None, wire.FinishReason] = {"length": "length", "content_filter": "abort"}
        reason, logprobs = reasons.get(self.finish_reason, "stop"), tuple(self.logprobs)
        reasoning = "".join(self.reasonings) if has_reasoning else ""
        n_tokens = n_tokens or len(logprobs)
        return wire.Sample("".join(self.texts), reason, n_tokens=n_tokens, logprobs=logprobs, reasoning=reasoning)


def outcome(response: Any, kind: Kind, n: int = 1, has_reasoning: bool = False, has_tools: bool = False) -> GenOutcome:
    """Returns the outcome of a whole response. The other arguments are those of a ResponseReader."""
    reader = ResponseReader(kind, n, has_reasoning, has_tools)
    reader.take(response)
    return reader.outcome()._replace(times=wire.Times())


def _choices_of(response: Any) -> Sequence[Any]:
    """The choices of a response or chunk. ProgramError: the server sent an error with the status of a success."""
    if error := getattr(response, "error", None):
        raise ProgramError(
            f"the API answered with an error: {error.get('message') if isinstance(error, dict) else error}"
        )
    return response.choices or ()


def _reasoning(message: Any) -> str:
    """The reasoning that the server itself separated. Servers differ in the name of the field; some write both."""
    fields = (getattr(message, name, None) for name in ("reasoning_content", "reasoning"))
    return next((field for field in fields if field and isinstance(field, str)), "")


def _chat_logprobs(logprobs: Any) -> tuple[wire.TokenLogprob, ...]:
    return tuple(
        wire.TokenLogprob(
            NO_ID, one.token, one.logprob, tuple((NO_ID, top.token, top.logprob) for top in one.top_logprobs or ())
        )
        for one in (getattr(logprobs, "content", None) or ())
    )


def _completion_logprobs(logprobs: Any) -> tuple[wire.TokenLogprob, ...]:
    if logprobs is None or not (logprobs.tokens and logprobs.token_logprobs):
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
    """The outcome of a select. responses: the responses to `format.select_requests`, in order."""
    op = job.op
    assert isinstance(op, wire.Select)
    if kind == "chat":
        return _generated_choice(op, outcome(responses[0], kind))
    logprobs, *alone = [_logprobs_behind(one, 0 if k else len(job.text)) for k, one in enumerate(responses)]
    if any(len(found) != len(op.choices) or not all(found) for found in (logprobs, *alone)):
        raise ProgramError("the API gave no log-probabilities of the prompt (echo), without which it cannot select")
    # Without the prompt a choice may be split into other tokens. Then each token gets the mean.
    without = [
        one if len(one) == len(given) else [sum(one) / len(one)] * len(given)
        for found in alone
        for one, given in zip(found, logprobs, strict=True)
    ]
    rng = Random(op.seed) if op.temperature else None
    choice = decide(op.method, logprobs, without, op.temperature, rng)
    usages = [_usage(response.usage) for response in responses]
    usage = wire.TokenUsage(sum(u.prompt for u in usages), sum(u.cached for u in usages))
    scores = with_tokens(choice, logprobs, without)
    return GenOutcome((wire.Sample(op.choices[choice.chosen], "stop"),), usage, scores)


def _logprobs_behind(response: Any, start: int) -> list[list[float]]:
    """Returns, for each choice of a response, the log-probabilities of the tokens that end after character `start`; []
    for a choice without log-probabilities. If a token has no log-probability, such as the first token of a text, the
    value is 0."""
    logprobs: list[list[float]] = []
    for choice in sorted(_choices_of(response), key=lambda choice: choice.index):
        found, behind = choice.logprobs, list[float]()
        if found is not None and found.tokens and found.token_logprobs and found.text_offset:
            ends = [after for _, after in pairwise([*found.text_offset, len(choice.text)])]
            behind = [logprob or 0.0 for logprob, end in zip(found.token_logprobs, ends, strict=True) if end > start]
        logprobs.append(behind)
    return logprobs


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
