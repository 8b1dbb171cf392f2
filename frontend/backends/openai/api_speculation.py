"""Several gens out of one request to an API: SGLang's speculative execution (`num_api_spec_tokens`).

A gen with stop strings asks for more tokens than it needs, and without the stop. The text behind the stop is kept, and
the texts and gens that the program appends next are matched with it: a gen that is found there needs no request. Where
the program goes on differently, or with other options, the gen makes its own request.

A chat API cannot continue a turn that has begun. There the whole turn is requested, and must say what the program
writes; it is requested up to N_TRIES times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from banyan.backends.job import Job, n_common
from banyan.backends.openai.format import Kind, options, prompt, turns
from banyan.backends.openai.responses import outcome
from banyan.runtime.errors import BadOutput
from banyan.runtime.executor.generation import add_usage
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire

N_TRIES = 3
"""As in SGLang."""


class _GeneratedAhead(NamedTuple):
    """What the model generated in a state.

    context: the turns before, where the API takes turns. text: from the start of the turn (of the prompt, where the API
    takes text). is_complete: the model ended it, not a limit.
    """

    context: Any
    sampling: wire.Sampling
    text: str
    is_complete: bool


class ApiSpeculation:
    """The text generated ahead in the states of one program."""

    def __init__(self, n_tokens: int, kind: Kind, extensions: Collection[str]) -> None:
        self._n_tokens, self._kind, self._extensions = n_tokens, kind, extensions
        self._is_whole_turn = kind == "chat" and "prefix" not in extensions
        self._generated: dict[int, _GeneratedAhead] = {}  # by state

    def takes(self, job: Job) -> bool:
        """Whether `job` is a gen that can be found in generated text, or can generate ahead."""
        op = job.op
        if not isinstance(op, wire.Gen) or op.tools is not None or op.reasoning is not None or op.retries:
            return False
        if replace(op.sampling, n=1, logprobs=False, constraint=None, stop_regex=(), stop_token_ids=()) != op.sampling:
            return False
        return bool(op.sampling.stop) or (self._kind == "chat" and bool(self._split(job)[1].strip()))

    def find(self, job: Job) -> GenOutcome | None:
        """The answer in text that was generated already. BadOutput: the turn must be whole, and says something else."""
        assert isinstance(job.op, wire.Gen)
        context, begun = self._split(job)
        ahead = self._generated.get(job.state)
        if ahead is None or ahead.context != context:
            return None
        is_continued, rest = ahead.text.startswith(begun), ahead.text.removeprefix(begun)
        if is_continued and rest and ahead.sampling == _shared(job.op.sampling):
            found = self._cut(job.op, rest, ahead.is_complete)
            if found is not None:
                return found
        if self._is_whole_turn:
            why = "it has other options than those before it" if is_continued and rest else ""
            raise BadOutput(_mismatch(ahead.text, [begun, job.op], why))
        return None

    async def ask(self, job: Job, max_tokens_as: str, create: Callable[[dict[str, Any]], Awaitable[Any]]) -> GenOutcome:
        """Request the answer, and keep the text behind it for the gens that follow."""
        op = job.op
        assert isinstance(op, wire.Gen)
        context, begun = self._split(job)
        request = {"messages": context} if self._is_whole_turn else prompt(job, self._kind, self._extensions)
        request |= options(replace(op.sampling, stop=()), self._kind, self._extensions)
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
            # By now the program has mostly sent the rest of the turn, which shows whether this is what it wants.
            mismatch = _mismatch(text, [begun, op, *job.ahead()] if self._is_whole_turn else [])
            if not mismatch:
                break
        if mismatch and not text.startswith(begun):
            raise BadOutput(f"{mismatch} (it was asked {n_tries} times)")
        found = self._cut(op, text[len(begun) :], is_complete, is_requested=True)
        assert found is not None
        return found._replace(usage=usage)

    def _split(self, job: Job) -> tuple[Any, str]:
        """(the turns before, the text of the open turn); (None, the prompt), where the API takes text."""
        if self._kind == "completion":
            return None, job.text
        messages, begun = turns(job.pieces)
        return messages, begun or ""

    def _cut(self, op: wire.Gen, rest: str, is_complete: bool, is_requested: bool = False) -> GenOutcome | None:
        """The part of `rest` that belongs to the gen. None: its end is missing."""
        text, stop = _up_to(op.sampling.stop, rest)
        reason: wire.FinishReason = "stop" if stop or is_complete else "length"
        if reason == "length" and not is_requested and not self._is_whole_turn:
            return None
        return GenOutcome((wire.Sample(text, reason, matched=stop or None),))


def _shared(sampling: wire.Sampling) -> wire.Sampling:
    """The options that gens of one request have in common."""
    return replace(sampling, stop=(), max_tokens=0, seed=None)


def _up_to(stops: Sequence[str], text: str) -> tuple[str, str]:
    """(the text before the first stop string, that stop string); (all of the text, ""), if there is none."""
    found = min(((at, stop) for stop in stops if (at := text.find(stop)) >= 0), default=(len(text), ""))
    return text[: found[0]], found[1]


def _mismatch(text: str, parts: Sequence[str | wire.Gen], why: str = "") -> str:
    """Where a turn of the model differs from what the program writes: its texts, and some text for each gen; "" if it
    does not."""
    rest = text
    for part in parts:
        if isinstance(part, str):
            n_same = n_common(rest, part)
            rest = rest[n_same:]
            if n_same < len(part):
                why = f"it should go on with {part[n_same:][:60]!r}"
                break
        elif not rest:
            why = f"it leaves nothing for gen {part.name!r}"
            break
        else:
            rest = rest[len(_up_to(part.sampling.stop, rest)[0]) :]
    if not why:
        return ""
    behind = f"behind {text[: len(text) - len(rest)][-40:]!r} " if len(rest) < len(text) else ""
    return (
        f"the model's turn is not the one that the program writes: {behind}it says {rest[:60]!r}, and {why}; show it "
        "the form in the prompt, or use a server that continues turns (extensions=['prefix'])"
    )
