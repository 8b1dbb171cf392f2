"""Answers several gens with one request to an API: SGLang's speculative execution (`num_api_spec_tokens`).

A gen with stop strings requests more tokens than it needs, without the stop strings. The output before the first stop
string is the value of the gen, and the output after it is kept. The texts that the program appends next are compared
with the kept output. If they match, the next gen takes its value from the kept output and needs no request. Otherwise,
or if the next gen has other options, that gen makes its own request.

A chat API cannot continue a turn that has begun. So the first gen of a turn requests the whole turn, which must contain
the texts that the program writes. If the turn lacks them, the request is repeated, up to N_TRIES times in all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from banyan.backends.job import Job, n_common
from banyan.backends.openai.format import Kind, joined, options, prompt, turns
from banyan.backends.openai.responses import outcome
from banyan.runtime.errors import BadOutput
from banyan.runtime.executor.generation import add_usage
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire

N_TRIES = 3
"""The number of requests for a whole turn, as in SGLang."""


class _GeneratedAhead(NamedTuple):
    """The text that the model generated in a state.

    context: for a chat API, the turns before the open turn; None for completions. text: the open turn from its start,
    generated text included; for completions, the whole prompt. is_complete: the model ended the text; no limit did.
    """

    context: Any
    sampling: wire.Sampling
    text: str
    is_complete: bool


class ApiSpeculation:
    """Answers several gens of one program with one request to an API. Keeps, for each state, the text that the model
    generated beyond a gen; later gens of the state take their values from this text."""

    def __init__(self, n_tokens: int, kind: Kind, extensions: Collection[str]) -> None:
        self._n_tokens, self._kind, self._extensions = n_tokens, kind, extensions
        self._is_whole_turn = kind == "chat" and "prefix" not in extensions
        self._generated: dict[int, _GeneratedAhead] = {}  # by state

    def takes(self, job: Job) -> bool:
        """Whether `job` may use kept text. It must be a gen with stop strings or, on a chat API, a gen in a turn that
        already has text. Gens with tools, retries, reasoning, n > 1, log-probabilities, a constraint, stop_regex or
        stop_token_ids never use kept text."""
        op = job.op
        if not isinstance(op, wire.Gen) or op.tools is not None or op.reasoning is not None or op.retries:
            return False
        if replace(op.sampling, n=1, logprobs=False, constraint=None, stop_regex=(), stop_token_ids=()) != op.sampling:
            return False
        return bool(op.sampling.stop) or (self._kind == "chat" and bool(self._split(job)[1].strip()))

    def find(self, job: Job) -> GenOutcome | None:
        """Returns the answer to `job` from kept text; None if the job needs a request.

        BadOutput: the kept text does not fit, and no request can help, because this chat API cannot continue a turn.
        The text differs from what the program appended, or was generated with options that differ from those of `job`.
        """
        assert isinstance(job.op, wire.Gen)
        context, begun = self._split(job)
        ahead = self._generated.get(job.state)
        if ahead is None or ahead.context != context:
            return None
        is_continued, rest = ahead.text.startswith(begun), ahead.text.removeprefix(begun)
        if is_continued and rest and ahead.sampling == _shared(job.op.sampling):
            found = self._cut(job, rest, ahead.is_complete)
            if found is not None:
                return found
        if self._is_whole_turn:
            why = "its options differ from those of the gens before it" if is_continued and rest else ""
            raise BadOutput(_mismatch(ahead.text, [begun, job.op], why))
        return None

    async def ask(self, job: Job, max_tokens_as: str, create: Callable[[dict[str, Any]], Awaitable[Any]]) -> GenOutcome:
        """Request more text than `job` needs. Returns the answer to `job`, and keeps the text after the answer for the
        gens that follow.

        create: sends a request to the API. max_tokens_as: the name of max_tokens in a chat request. BadOutput: the chat
        API cannot continue a turn, and after N_TRIES requests, its turn still does not begin with the text that the
        program appended.
        """
        op = job.op
        assert isinstance(op, wire.Gen)
        context, begun = self._split(job)
        request = {"messages": context} if self._is_whole_turn else prompt(job, self._kind, self._extensions)
        request = joined(request, options(replace(op.sampling, stop=())))
        max_tokens = max(self._n_tokens, op.sampling.max_tokens)
        request["max_tokens" if self._kind == "completion" else max_tokens_as] = max_tokens
        usage, n_tries = wire.TokenUsage(), N_TRIES if self._is_whole_turn else 1
        for _ in range(n_tries):
            answer = outcome(await create(request), self._kind)
            usage = add_usage(usage, answer.usage)
            sample = answer.samples[0]
            text = sample.text if self._is_whole_turn else begun + sample.text
            is_complete = sample.finish_reason == "stop"
            self._generated[job.state] = _GeneratedAhead(context, _shared(op.sampling), text, is_complete)
            # By now the program has usually sent the rest of the turn, with which the text is compared.
            mismatch = _mismatch(text, [begun, op, *job.owner.ahead(job.state)] if self._is_whole_turn else [])
            if not mismatch:
                break
        if mismatch and not text.startswith(begun):
            raise BadOutput(f"{mismatch} (it was asked {n_tries} times)")
        found = self._cut(job, text[len(begun) :], is_complete, is_requested=True)
        assert found is not None
        return found._replace(usage=usage)

    def _split(self, job: Job) -> tuple[Any, str]:
        """For a chat API, (the turns before the open one, the text of the open turn); else (None, the prompt)."""
        if self._kind == "completion":
            return None, job.text
        messages, begun = turns(job.prompt.pieces)
        return messages, begun or ""

    def _cut(self, job: Job, rest: str, is_complete: bool, is_requested: bool = False) -> GenOutcome | None:
        """Returns the start of `rest`, up to the first stop string of the gen, as the outcome of the gen. Returns None
        if the gen needs its own request: `rest` contains no stop string, and a limit cut it off.

        is_complete: the model ended `rest`; no limit did. is_requested: the gen has already made its request. Then the
        result is never None. The same holds for a chat API that cannot continue a turn.
        """
        assert isinstance(job.op, wire.Gen)
        text, stop = _up_to(job.op.sampling.stop if self._kind == "chat" else job.stops, rest)
        reason: wire.FinishReason = "stop" if stop or is_complete else "length"
        if reason == "length" and not is_requested and not self._is_whole_turn:
            return None
        return GenOutcome((wire.Sample(text, reason, matched=stop or None),))


def _shared(sampling: wire.Sampling) -> wire.Sampling:
    """Returns `sampling` without stop, max_tokens and seed. One request can answer two gens only if the results for
    both gens are equal."""
    return replace(sampling, stop=(), max_tokens=0, seed=None)


def _up_to(stops: Sequence[str], text: str) -> tuple[str, str]:
    """(the text before the first stop string, that stop string); (all of the text, ""), if there is none."""
    found = min(((at, stop) for stop in stops if (at := text.find(stop)) >= 0), default=(len(text), ""))
    return text[: found[0]], found[1]


def _mismatch(text: str, parts: Sequence[str | wire.Gen], why: str = "") -> str:
    """Compare `text`, the turn that the model generated, with what the program writes. Returns an error message that
    says where they differ; "" if they match.

    parts: what the program writes: texts, and gens, each of which stands for the text up to its stop string. why: a
    reason why the turn cannot be used even if they match; "": none.
    """
    rest = text
    for part in parts:
        if isinstance(part, str):
            n_same = n_common(rest, part)
            rest = rest[n_same:]
            if n_same < len(part):
                why = f"it should continue with {part[n_same:][:60]!r}"
                break
        elif not rest:
            why = f"it leaves nothing for gen {part.name!r}"
            break
        else:
            rest = rest[len(_up_to(part.sampling.stop, rest)[0]) :]
    if not why:
        return ""
    place = f"after {text[: len(text) - len(rest)][-40:]!r} " if len(rest) < len(text) else ""
    return (
        f"the model's turn is not the one that the program writes: {place}it says {rest[:60]!r}, and {why}; show the "
        "form of the turn in the prompt, or use a server that continues turns (extensions=['prefix'])"
    )
