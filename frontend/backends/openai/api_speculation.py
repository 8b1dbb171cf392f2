"""Several gens out of one request to an API: SGLang's speculative execution (`num_api_spec_tokens`).

A gen that ends at a stop string asks for many tokens and no stop. What the model says behind the stop is kept, and
the texts and gens that the program appends next are looked for in it: those that are found there cost no request. Where
the program goes on otherwise, or with other options, a request of its own is made, as ever.

A chat API cannot continue a turn that has begun. There the whole turn is asked for, and has to say what the program
says; it is asked for again, N_TRIES times in all, where it does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from banyan.backends.job import Job, n_common
from banyan.backends.openai.format import Kind, options, outcome, prompt, turns
from banyan.runtime.errors import BadOutput
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire

N_TRIES = 3
"""As SGLang has it."""


class _Said(NamedTuple):
    """What the model said in a state. place: the turns before, where the API takes turns. text: from the start of the
    turn (of the prompt, where it takes text). is_whole: the model ended it, not a limit."""

    place: Any
    sampling: wire.Sampling
    text: str
    is_whole: bool


class ApiSpeculation:
    """What was said ahead in the states of one program."""

    def __init__(self, n_tokens: int, kind: Kind, extensions: Collection[str]) -> None:
        self._n_tokens, self._kind, self._extensions = n_tokens, kind, extensions
        self._is_whole_turn = kind == "chat" and "prefix" not in extensions
        self._said: dict[int, _Said] = {}

    def takes(self, job: Job) -> bool:
        """Whether `job` is a gen that may be found in what was said, or asks for more than itself."""
        op = job.op
        if not isinstance(op, wire.Gen) or op.tools is not None or op.reasoning is not None or op.retries:
            return False
        if replace(op.sampling, n=1, logprobs=False, constraint=None, stop_regex=(), stop_token_ids=()) != op.sampling:
            return False
        return bool(op.sampling.stop) or (self._kind == "chat" and bool(self._place(job)[1].strip()))

    def known(self, job: Job) -> GenOutcome | None:
        """Its answer, from what was said already. BadOutput: it departs from a turn that can only be had whole."""
        assert isinstance(job.op, wire.Gen)
        place, begun = self._place(job)
        said = self._said.get(job.state)
        if said is None or said.place != place:
            return None
        rest = said.text.removeprefix(begun)
        is_there = rest != "" and said.text.startswith(begun) and said.sampling == _shared(job.op.sampling)
        if is_there and (found := self._cut(job.op, rest, said.is_whole)) is not None:
            return found
        if self._is_whole_turn:
            why = "it has other options than those before it" if said.text.startswith(begun) and rest else ""
            raise BadOutput(_departed(said.text, [begun, job.op], why))
        return None

    async def ask(self, job: Job, max_tokens_as: str, create: Callable[[dict[str, Any]], Awaitable[Any]]) -> GenOutcome:
        """Its answer by a request, and what the model said behind it for those who come next."""
        op = job.op
        assert isinstance(op, wire.Gen)
        place, begun = self._place(job)
        asked = {"messages": place} if self._is_whole_turn else prompt(job, self._kind, self._extensions)
        asked |= options(replace(op.sampling, stop=()), self._kind, self._extensions)
        asked["max_tokens" if self._kind == "completion" else max_tokens_as] = max(
            self._n_tokens, op.sampling.max_tokens
        )
        usage, n_tries = wire.TokenUsage(), N_TRIES if self._is_whole_turn else 1
        for _ in range(n_tries):
            told = outcome(await create(asked), self._kind)
            usage = wire.TokenUsage(usage.prompt + told.usage.prompt, usage.cached + told.usage.cached,
                               usage.generated + told.usage.generated)  # fmt: skip
            sample = told.samples[0]
            text = sample.text if self._is_whole_turn else begun + sample.text
            self._said[job.state] = _Said(place, _shared(op.sampling), text, sample.finish_reason == "stop")
            # By now the program has mostly sent the rest of the turn: it tells whether this is what it wants.
            parts = [begun, op, *job.ahead()] if self._is_whole_turn else []
            if not (departed := _departed(text, parts)):
                break
        if departed and not text.startswith(begun):
            raise BadOutput(f"{departed} (it was asked {n_tries} times)")
        found = self._cut(op, text[len(begun) :], sample.finish_reason == "stop", is_asked=True)
        assert found is not None
        return found._replace(usage=usage)

    def _place(self, job: Job) -> tuple[Any, str]:
        if self._kind == "completion":
            return None, job.text
        messages, begun = turns(job.pieces)
        return messages, begun or ""

    def _cut(self, op: wire.Gen, rest: str, is_whole: bool, is_asked: bool = False) -> GenOutcome | None:
        """What of `rest` is the gen's. None: its end is not in there."""
        text, stop = _up_to(op.sampling.stop, rest)
        reason: wire.FinishReason = "stop" if stop or is_whole else "length"
        if reason == "length" and not is_asked and not self._is_whole_turn:
            return None
        return GenOutcome((wire.Sample(text, reason, matched=stop or None),), wire.TokenUsage())


def _shared(sampling: wire.Sampling) -> wire.Sampling:
    """What gens of one request have in common."""
    return replace(sampling, stop=(), max_tokens=0, seed=None)


def _up_to(stops: Sequence[str], text: str) -> tuple[str, str]:
    """What comes before the first of the stop strings, and which that is; all of it where there is none."""
    found = min(((at, stop) for stop in stops if (at := text.find(stop)) >= 0), default=(len(text), ""))
    return text[: found[0]], found[1]


def _departed(said: str, parts: Sequence[str | wire.Gen], why: str = "") -> str:
    """Where a turn of the model does not say what the program says: its texts, and something for each gen; "" if it
    does."""
    rest = said
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
    behind = f"behind {said[: len(said) - len(rest)][-40:]!r} " if len(rest) < len(said) else ""
    return (
        f"the model's turn is not the one that the program writes: {behind}it says {rest[:60]!r}, and {why}; show it "
        "the form in the prompt, or use a server that continues turns (extensions=['prefix'])"
    )
